"""Cold start: a vLLM engine that begins at a version, not at a checkpoint.

    --load-format weightcast
    --model-loader-extra-config '{"catalog": "sqlite:/c.db", "run": "policy", "image": "/images/policy"}'

Further keys: version (default "latest"), seed, store, threads, durability. The image is pulled and
proven first; a running engine's image is moved only by updates.
"""

from vllm.distributed.parallel_state import get_world_group
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

import weightcast
from weightcast.errors import Conflict, InvalidArgument
from weightcast.vllm.settings import Settings


class Loader(DefaultModelLoader):
    """Loads a model from an image, as vLLM's own loader does from a checkpoint."""

    def __init__(self, load_config):
        extra = dict(load_config.model_loader_extra_config or {})
        self._version = str(extra.pop("version", "latest"))
        self._settings = Settings.parse(extra, "--model-loader-extra-config")
        load_config.model_loader_extra_config = {}  # the base class knows no key of ours
        super().__init__(load_config)
        load_config.model_loader_extra_config = {**extra, "version": self._version}

    def download_model(self, model_config):
        self._settings.pull(self._version)

    def _agreed_uid(self):
        """The version's uid, which the first worker looks up: "latest" may be another a moment later."""
        group = get_world_group()
        uid = self._settings.uid(self._version) if group.rank_in_group == 0 else None
        return uid if group.world_size == 1 else group.broadcast_object(uid, src=0)

    def get_all_weights(self, model_config, model):
        uid = self._agreed_uid()
        self._settings.pull(uid)  # on each host
        with weightcast.Image(self._settings.image) as image:
            if image.version != uid:
                raise Conflict(f"weightcast: {self._settings.image} moved to version {image.version} "
                               f"before {uid} was loaded: start again")
            # The engine takes it from here: its weights are known to be this version's.
            model.weightcast_origin = (self._settings, image.version, image.number)
            for name in image.names():
                yield name, image.torch(name)


def check_origin(origin):
    """The settings of an engine that started cold; None if it did not."""
    if origin is None:
        return None
    if not isinstance(origin, tuple) or len(origin) != 3:
        raise InvalidArgument(f"weightcast_origin: expected (settings, version, number), found {origin!r}")
    return origin
