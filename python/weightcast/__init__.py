"""Weightcast: moves new policy weights from a trainer to inference engines, right or not at all.

    import weightcast

    with weightcast.Publisher("sqlite:c.db", "file:/data/bytes", "policy", model.state_dict()) as p:
        p.publish(model.state_dict()).wait()             # the next version of the run
    weightcast.pull("sqlite:c.db", "policy", "/images/policy")
    with weightcast.Image("/images/policy") as image:    # verified, and held while it is open
        embedding = image.numpy("model.embed_tokens.weight")

Importing this package imports neither torch nor vLLM. ``weightcast.megatron`` publishes live
Megatron modules, ``weightcast.vllm`` is the plugin that vLLM finds by itself.
"""

import logging as _logging

from weightcast import _core, errors
from weightcast.image import Image, pull, verify, versions
from weightcast.publisher import Publication, Publisher

__all__ = ["Image", "Publication", "Publisher", "errors", "pull", "verify", "versions"]
__version__ = _core.version

_LEVELS = (_logging.DEBUG, _logging.INFO, _logging.WARNING, _logging.ERROR)


def _to_logging(level, line):
    _logging.getLogger("weightcast").log(_LEVELS[level], line)


def _install():
    import atexit

    _core.set_log_sink(_to_logging)
    atexit.register(_core.leave, 5.0)  # no thread enters an interpreter that is going down


_install()
