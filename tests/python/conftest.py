"""The package of the build, and a run to publish into."""

import importlib.util
import os
import sys

import places
import pytest

sys.path.insert(0, str(places.PACKAGE))
if not list((places.PACKAGE / "weightcast").glob("_core.*.so")):
    pytest.exit(f"{places.PACKAGE} has no weightcast: run make python", 2)


def pytest_collection_modifyitems(config, items):
    """Tests that take torch are for environments that have it: tests/megatron and make test-vllm run
    them."""
    if importlib.util.find_spec("torch") is None:
        apart = [item for item in items if "torch" in item.fixturenames]
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if item not in apart]


@pytest.fixture
def torch():
    import torch

    return torch


class Place:
    """A catalog, a store, baselines and images in one directory."""

    def __init__(self, path):
        self.path = path
        self.catalog = f"sqlite:{path}/catalog.db"
        self.store = f"file:{path}/store"
        self.image = path / "image"

    def publisher(self, weights, run="policy", baseline="baseline", **options):
        import weightcast

        return weightcast.Publisher(self.catalog, self.store, run, weights,
                                    baseline=self.path / baseline, **options)

    def pull(self, run="policy", image="image", **options):
        import weightcast

        return weightcast.pull(self.catalog, run, self.path / image, **options)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def script(tmp_path):
    """Runs a text as a Python program of its own; gives the finished process."""
    import subprocess

    def run(text, timeout=60, **environment):
        env = {**os.environ, "PYTHONPATH": str(places.PACKAGE), **environment}
        return subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, timeout=timeout,
                              capture_output=True, text=True, check=False)

    return run
