"""The wheel: built from a clean tree, tried where nothing of the source tree is.

Nothing is fetched: the build runs with what build/venv has (nanobind and scikit-build-core are pure
Python, so an interpreter of another version takes them from there too).
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from places import BINARY, PACKAGE, ROOT

MINUTES = 60
OURS = sysconfig.get_paths()["purelib"]  # of build/venv

pytestmark = pytest.mark.skipif(not shutil.which("g++") or not shutil.which("cmake"),
                                reason="no g++ or no cmake: pip cannot build the wheel here")


def python312():
    """An interpreter from 3.12 on, or None."""
    homes = sorted(pathlib.Path.home().glob(".pyenv/versions/3.12*/bin/python"))
    for name in [*map(str, homes), "python3.12", "python3.13"]:
        path = shutil.which(name)
        works = path and subprocess.run([path, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 12))"],
                                        capture_output=True, check=False).returncode == 0
        if works:
            return path
    return None


def run(*words, **options):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WEIGHTCAST"))}
    env.update(options.pop("env", {}))
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, env=env,
                          timeout=15 * MINUTES, **options)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def venv_of(python, path, *folders):
    """A fresh environment, which sees the packages of some folders."""
    run(python, "-m", "venv", path)
    site = next((path / "lib").glob("python3*/site-packages"))
    (site / "others.pth").write_text("".join(f"{folder}\n" for folder in folders))
    return path / "bin/python"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """What a clone would have, changes of the day included."""
    tree = tmp_path_factory.mktemp("clone") / "weightcast"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                            capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return tree


def build(tree, python, out):
    jobs = str(len(os.sched_getaffinity(0)))
    run(python, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", out, "-q",
        "--disable-pip-version-check", cwd=tree, env={"CMAKE_BUILD_PARALLEL_LEVEL": jobs})
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    return build(tree, sys.executable, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in an environment of its own, with numpy."""
    path = tmp_path_factory.mktemp("fresh") / "venv"
    python = venv_of(sys.executable, path, OURS)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", wheel)
    return python


def test_it_is_of_this_python_and_holds_what_it_should(wheel):
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    expected = tag if sys.version_info < (3, 12) else "cp312"
    abi = tag if sys.version_info < (3, 12) else "abi3"
    assert re.fullmatch(rf"weightcast-[\d.]+-{expected}-{abi}-linux_\w+\.whl", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {n for n in names if n.startswith("weightcast/")}
    sources = {"weightcast/" + str(p.relative_to(ROOT / "python/weightcast"))
               for p in (ROOT / "python/weightcast").rglob("*.py")}
    core = {n for n in package if re.fullmatch(r"weightcast/_core\.[\w-]*\.?so", n)}
    assert len(core) == 1
    assert package == sources | core | {"weightcast/_core.pyi", "weightcast/py.typed"}
    rest = {n for n in names if not n.startswith("weightcast/")}
    assert {re.sub(r"^weightcast-[\d.]+\.", "", n) for n in rest} == {
        "data/scripts/weightcast", "dist-info/METADATA", "dist-info/WHEEL", "dist-info/RECORD",
        "dist-info/entry_points.txt"}
    assert wheel.stat().st_size < 10_000_000, "without debug information"


TRY = """
import importlib.metadata, pathlib, sys
import numpy, weightcast
weights = {"w": numpy.arange(12, dtype=numpy.float32).reshape(3, 4)}
with weightcast.Publisher("sqlite:c.db", "file:s", "policy", weights, baseline="b") as publisher:
    publisher.publish(weights).wait()
weightcast.pull("sqlite:c.db", "policy", "image")
with weightcast.Image("image") as image:
    assert (image.numpy("w") == weights["w"]).all()
where = pathlib.Path(weightcast.__file__).parent
assert where.is_relative_to(sys.prefix), where
assert {"_core.pyi", "py.typed"} <= {p.name for p in where.iterdir()}
(plugin,) = [e for e in importlib.metadata.entry_points(group="vllm.general_plugins")]
assert plugin.value == "weightcast.vllm:register" and callable(plugin.load())
assert importlib.metadata.version("weightcast") == weightcast.__version__
assert not [m for m in ("torch", "vllm") if m in sys.modules]
"""


def test_installed_it_works_alone(installed, tmp_path):
    run(installed, "-I", "-c", TRY, cwd=tmp_path)
    command = installed.parent / "weightcast"
    assert run(command, "--help") == run(BINARY, "--help")
    run(command, "verify", "image", "--catalog", "sqlite:c.db", cwd=tmp_path)
    assert "1" in run(command, "log", "--catalog", "sqlite:c.db", cwd=tmp_path)


# Without numpy, which build/venv has for its own Python only.
TRY_CORE = """
import sys, weightcast
from weightcast import _core
a = _core.PublisherArguments()
a.catalog, a.store, a.run, a.baseline, a.token = "sqlite:c.db", "file:s", "policy", "b", "t"
p = _core.Publisher.for_tensors(a, [("w", "U8", (5,))])
report = p.publish([(("w", "U8", (5,)), b"12345")], None, "", False, {}, "", 60.0, 60.0, None)
assert report["state"] == "READY", report
p.close()
weightcast.pull("sqlite:c.db", "policy", "image", progress=lambda done, total: None)
with weightcast.Image("image") as image:
    assert bytes(image.buffer("w")) == b"12345"
try:
    weightcast.versions("sqlite:c.db", "nobody")
except weightcast.errors.NotFound as error:
    print(error)
"""


def test_from_312_on_it_has_the_stable_abi(tree, tmp_path):
    python = python312()
    if python is None:
        pytest.skip("no Python 3.12 on PATH or below ~/.pyenv")
    wheel = build(tree, venv_of(python, tmp_path / "builder", OURS), tmp_path / "wheels")
    assert "-cp312-abi3-linux_" in wheel.name
    assert "weightcast/_core.abi3.so" in zipfile.ZipFile(wheel).namelist()
    fresh = venv_of(python, tmp_path / "fresh")
    run(fresh, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", wheel)
    assert "nobody" in run(fresh, "-I", "-c", TRY_CORE, cwd=tmp_path)
    run(tmp_path / "fresh/bin/weightcast", "--help")


def test_the_core_exports_its_entry_alone():
    (core,) = (PACKAGE / "weightcast").glob("_core.*so")
    listed = run("nm", "-D", "--defined-only", core)
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__core"]
