"""The vLLM plugin: ``--weight-transfer-config '{"backend": "weightcast"}'`` on an unmodified vLLM.

vLLM calls ``register`` in each of its processes (entry-point group ``vllm.general_plugins``).
``--load-format weightcast`` starts an engine straight from a version of a run.

    engine ops, by /collective_rpc with method "weightcast": status, prepare, prove
    (weightcast.vllm.engine.Engine.rpc); ``weightcast round`` drives them over HTTP.
"""

__all__ = ["register"]


def register():
    """Makes the backend and the load format known. Fine if called again."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader

    try:
        WeightTransferEngineFactory.register_engine("weightcast", "weightcast.vllm.engine", "Engine")
    except ValueError:
        pass  # known already: plugins may be called more than once in a process
    if "weightcast" not in _LOAD_FORMAT_TO_MODEL_LOADER:
        from weightcast.vllm.loader import Loader

        register_model_loader("weightcast")(Loader)
