"""Publishing a state dict and pulling an image: bytes, versions, errors."""

import json
import subprocess
import threading

import numpy
import pytest
import weightcast
from places import BINARY, ROOT
from safetensors import safe_open
from weightcast import errors

# Every dtype that numpy has, with the bit patterns that a careless copy changes.
DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
          "float32", "float64", "complex64"]


def bits_of(dtype, count, seed):
    """Random bits, so NaN payloads, infinities and subnormals among floats."""
    raw = numpy.random.default_rng(seed).integers(0, 256, count * numpy.dtype(dtype).itemsize,
                                                  dtype=numpy.uint8)
    return (raw & 1).astype(bool) if dtype == "bool" else raw.view(dtype)


def state(seed=0):
    weights = {f"w.{dtype}": bits_of(dtype, 60, seed).reshape(3, 4, 5) for dtype in DTYPES}
    weights["scalar"] = numpy.array(bits_of("float32", 1, seed)[0])
    weights["empty"] = numpy.zeros((0, 7), numpy.float32)
    weights["nan"] = numpy.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0],
                                 numpy.uint32).view(numpy.float32)  # quiet, signalling, -0.0, 0.0
    weights["large"] = bits_of("float16", 300_000, seed).reshape(300, 1000)
    return weights


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_image_is(path, weights):
    with weightcast.Image(path) as image:
        assert image.names() == sorted(weights)
        for name, array in weights.items():
            assert same(image.numpy(name), numpy.asarray(array)), name


def test_a_state_dict_is_published_and_an_image_pulled_in_five_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    weights = state()
    with weightcast.Publisher("sqlite:c.db", "file:bytes", "policy", weights) as publisher:
        publisher.publish(weights).wait()
    weightcast.pull("sqlite:c.db", "policy", "image")
    with weightcast.Image("image") as image:
        assert same(image.numpy("nan"), weights["nan"])
    assert_image_is("image", weights)


def test_versions_follow_each_other_exactly(place):
    weights = state(1)
    with place.publisher(weights) as publisher:
        assert publisher.params == sorted(
            [(n, s[1], list(s[2])) for n, s in
             ((n, weightcast.publisher.tensors.spec(n, w)) for n, w in weights.items())])
        for seed in (1, 2, 3):
            weights = state(seed)
            report = publisher.publish(weights).wait()
            assert (report["number"], report["state"]) == (seed, "READY")
            assert place.pull()["root"] == report["root"]
            assert_image_is(place.image, weights)
        weights["nan"] = weights["nan"].copy()
        weights["nan"].view(numpy.uint32)[3] ^= 0x80000000  # -0.0 becomes 0.0: equal, and a change
        report = publisher.publish(weights).wait()
        assert report["changed_elements"] == 1
        assert place.pull()["how"] == "journal"
        assert_image_is(place.image, weights)
    assert place.pull(version=2)["number"] == 2
    assert_image_is(place.image, state(2))
    assert weightcast.verify(place.image, catalog=place.catalog)["verified"]


def test_the_image_is_what_the_safetensors_package_reads(place):
    weights = state()
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    place.pull()
    with safe_open(place.image / "model.safetensors", "numpy") as theirs:
        assert sorted(theirs.keys()) == sorted(weights)
        for name, array in weights.items():
            assert same(theirs.get_tensor(name), numpy.asarray(array)), name


class BFloat16:
    """An array of a dtype that numpy lacks, as ml_dtypes has it: named, and with a buffer."""

    class _DType:
        def __str__(self):
            return "bfloat16"

    dtype = _DType()

    def __init__(self, bits):
        self._bits = bits
        self.shape = bits.shape

    def __array__(self, dtype=None, copy=None):
        return self._bits


class Dlpack:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack_and_buffers_are_tensors_too(place):
    import array

    floats = bits_of("float32", 6, 7)
    weights = {"dlpack": Dlpack(floats.reshape(2, 3)), "memory": memoryview(floats),
               "array": array.array("d", [1.5, -0.0]), "bytes": b"abc", "number": numpy.float64(2)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    place.pull()
    with weightcast.Image(place.image) as image:
        assert [s[1:] for s in image.specs] == [("F64", (2,)), ("U8", (3,)), ("F32", (2, 3)),
                                                ("F32", (6,)), ("F64", ())]
        assert same(image.numpy("dlpack"), floats.reshape(2, 3))
        assert bytes(image.buffer("bytes")) == b"abc"
        assert image.numpy("number") == 2.0 and image.numpy("number").shape == ()


def test_narrow_floats_are_their_bits(place, monkeypatch):
    torch_like = numpy.arange(8, dtype=numpy.uint16)
    monkeypatch.setattr(weightcast.tensors, "_array", lambda name, t: t if isinstance(t, BFloat16)
                        else numpy.asarray(t))
    monkeypatch.setattr(weightcast.tensors, "host_bytes", lambda name, t: numpy.asarray(t).view("u1"))
    weights = {"w": BFloat16(torch_like)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    place.pull()
    with weightcast.Image(place.image) as image:
        assert image.specs == [("w", "BF16", (8,))]
        assert same(image.numpy("w"), torch_like)
        assert image.units("w") == 8


@pytest.mark.parametrize("weights, names", [
    ({"t": numpy.zeros((4, 6), numpy.float32).T, "u": numpy.zeros(9, numpy.int8)[::2]}, ["t", "u"]),
    ({"x": [1.0, 2.0], "y": 3, "z": None}, ["x", "y", "z"]),
    ({"big": numpy.zeros(3, ">f4"), "text": numpy.array(["a"]), "wide": numpy.zeros(2, "complex128")},
     ["big", "text", "wide"]),
    ({3: numpy.zeros(1), "\ud800": numpy.zeros(1)}, ["3", "ud800"]),
])
def test_unfit_tensors_are_all_refused_by_name(place, weights, names):
    good = {"good": numpy.zeros(2, numpy.float32)}
    with place.publisher(good) as publisher:
        with pytest.raises(errors.InvalidData) as raised:
            publisher.publish({**good, **weights})
        for name in names:
            assert name in str(raised.value)
        assert publisher.publish(good).wait()["number"] == 1, "and nothing was begun"


def test_wrong_names_shapes_and_dtypes_are_listed_at_once(place):
    weights = {name: numpy.zeros((2, 3), numpy.float32) for name in ("a", "b", "c", "d")}
    with place.publisher(weights) as publisher:
        wrong = {**weights, "a": weights["a"].astype("float16"), "b": weights["b"].reshape(3, 2),
                 "new": weights["a"]}
        del wrong["d"]
        with pytest.raises(errors.InvalidData) as raised:
            publisher.publish(wrong)
        for word in ("unknown", "new", "missing", "d", "a is F16 [2, 3], expected F32 [2, 3]",
                     "b is F32 [3, 2]"):
            assert word in str(raised.value)
        assert publisher.publish(weights).wait()["number"] == 1
    with pytest.raises(errors.Conflict, match="other tensors than the run's"):
        place.publisher(wrong, baseline="other")


def test_nothing_to_publish_is_refused(place):
    for weights in ({}, {"e": numpy.zeros((0, 2), numpy.float32)}):
        with pytest.raises(errors.InvalidData):
            place.publisher(weights)
    with pytest.raises(errors.InvalidArgument, match="expected {name: tensor}"):
        place.publisher([numpy.zeros(1)])


# ---- errors ----

def codes_of_the_core():
    text = (ROOT / "src/base/status.cc").read_text()
    rows = text[text.index("kCodes[] = {"):text.index("};", text.index("kCodes[] = {"))]
    import re

    return {name: int(exit_code) for name, exit_code in re.findall(r'\{"([a-z-]+)", (\d)\}', rows)}


def test_every_code_of_the_core_has_a_class_with_its_exit_code():
    header = (ROOT / "src/base/status.h").read_text()
    enum = header[header.index("enum class Code"):header.index("};", header.index("enum class Code"))]
    codes = codes_of_the_core()
    assert len(codes) == enum.count("  k")
    assert {c: kind.exit_code for c, kind in errors.BY_CODE.items()} == codes
    kinds = set(errors.BY_CODE.values())
    assert len(kinds) == len(codes)
    assert all(issubclass(kind, errors.Error) and kind.__doc__ for kind in kinds)
    assert {kind.__name__ for kind in kinds} | {"Error", "BY_CODE"} == set(errors.__all__)


def test_the_command_ends_with_the_exit_code_of_the_class(place):
    weights = {"w": numpy.ones(4, numpy.float32)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    place.pull()
    (place.path / "own").mkdir()
    (place.path / "own" / "file").write_text("mine")
    torn = place.path / "torn"
    place.pull(image="torn")
    data = bytearray((torn / "model.safetensors").read_bytes())
    (torn / "model.safetensors").write_bytes(bytes(data[:-1]))
    cases = [
        (errors.InvalidArgument, dict(catalog="ftp:x", run="policy", image=place.image)),
        (errors.NotFound, dict(catalog=place.catalog, run="nobody", image=place.image)),
        (errors.Unavailable, dict(catalog="sqlite:/nowhere/c.db", run="policy", image=place.image)),
        (errors.Conflict, dict(catalog=place.catalog, run="policy", image=place.path / "own")),
    ]
    for kind, options in cases:
        with pytest.raises(kind) as raised:
            weightcast.pull(**options)
        assert type(raised.value) is kind
        done = subprocess.run([BINARY, "pull", "--catalog", options["catalog"], "--run", options["run"],
                               options["image"], "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == kind.exit_code, done.stderr
        document = json.loads(done.stdout)["error"]
        assert document["code"] == kind.code and document["message"] == str(raised.value)
    with pytest.raises(errors.Error) as raised:
        weightcast.verify(torn)
    done = subprocess.run([BINARY, "verify", torn, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == raised.value.exit_code == 3


def test_a_message_that_is_no_utf8_is_still_of_its_class(place):
    import os

    folder = os.fsencode(place.path / "own")
    os.mkdir(folder)
    with open(os.path.join(folder, b"caf\xe9"), "wb"):
        pass
    weights = {"w": numpy.ones(4, numpy.float32)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    with pytest.raises(errors.Conflict, match=r"caf\\xe9"):
        place.pull(image="own")


@pytest.mark.parametrize("call", [
    lambda place, p, w: p.publish(w, wait=float("nan")),
    lambda place, p, w: p.publish(w, wait=-1.0),
    lambda place, p, w: p.publish(w, staging_timeout=float("nan")),
    lambda place, p, w: p.publish(w, labels={"a": 1}),
    lambda place, p, w: place.pull(hold_seconds=-1.0),
    lambda place, p, w: place.pull(threads=-1),
    lambda place, p, w: place.pull(threads=1_000_000),
    lambda place, p, w: place.pull(durability="forever"),
    lambda place, p, w: weightcast.verify(place.image, threads=-2),
    lambda place, p, w: weightcast.Image(place.image, timeout=float("nan")),
    lambda place, p, w: place.publisher(w, run="two words", baseline="x"),
    lambda place, p, w: place.publisher(w, run="r", baseline="x", threads=100_000),
])
def test_calls_that_are_wrong_say_so(place, call):
    weights = {"w": numpy.ones(4, numpy.float32)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights, wait=float("inf"), staging_timeout=1e300).wait()
        with pytest.raises(errors.InvalidArgument):
            call(place, publisher, weights)


def test_none_is_no_path(place):
    weights = {"w": numpy.ones(4, numpy.float32)}
    with place.publisher(weights, seed=None, carry=None, side_files=None) as publisher:
        publisher.publish(weights).wait()
    assert place.pull(seed=None, store=None)["number"] == 1
    assert weightcast.verify(place.image, catalog=None)["verified"]


# ---- versions ----

def seed_directory(path, weights):
    from safetensors.numpy import save_file

    path.mkdir()
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text('{"model_type": "none"}')
    return path


def test_a_run_with_a_seed_and_carried_tensors(place):
    weights = state(4)
    carried = {"vision.a": numpy.ones(3, numpy.float32), "vision.b": numpy.ones(2, numpy.int8)}
    seed = seed_directory(place.path / "seed", {**weights, **carried})
    with pytest.raises(errors.Conflict, match="vision.a"):
        place.publisher(weights, seed=seed, baseline="no-carry")
    with place.publisher(weights, seed=seed, carry="vision.*") as publisher:  # one pattern, no list
        moved = state(5)
        report = publisher.publish(moved).wait()
        assert (report["kind"], report["number"]) == ("delta", 1)
    place.pull(seed=seed)
    assert_image_is(place.image, {**moved, **carried})
    assert (place.image / "config.json").exists()
    assert [(v["number"], v["kind"]) for v in weightcast.versions(place.catalog, "policy")] == [
        (0, "seed"), (1, "delta")]
    with pytest.raises(errors.Unavailable, match="seed"):
        place.pull(image="without")


def test_full_versions_labels_numbers_and_side_files(place):
    side = place.path / "side"
    side.mkdir()
    (side / "config.json").write_text("{}")
    weights = state()
    with place.publisher(weights, side_files=side) as publisher:
        publisher.publish(weights).wait()
        weights["w.int8"] += 1
        report = publisher.publish(weights, number=7, full=True, labels={"step": "70"},
                                   step="token").wait()
        assert (report["kind"], report["number"]) == ("full", 7)
        again = publisher.publish(weights, number=7, full=True, labels={"step": "70"},
                                  step="token").wait()
        assert again["already"] and again["uid"] == report["uid"]
        other = {**weights, "w.int8": weights["w.int8"] + 1}
        with pytest.raises(errors.Conflict, match="7"):
            publisher.publish(other, number=7, full=True, labels={"step": "70"}, step="token")
        with pytest.raises(errors.Conflict, match="6"):
            publisher.publish(other, number=6)
        assert publisher.publish(other).wait()["number"] == 8
    rows = {v["number"]: v for v in weightcast.versions(place.catalog, "policy")}
    assert rows[7]["labels"] == {"step": "70"} and rows[7]["step"] == "token"
    place.pull(version="7")
    assert (place.image / "config.json").read_text() == "{}"
    assert_image_is(place.image, weights)


def test_a_newer_publisher_fences_an_older_one(place):
    weights = state()
    with place.publisher(weights) as old:
        old.publish(weights).wait()
        with place.publisher(weights, baseline="other") as new:
            with pytest.raises(errors.Conflict, match="epoch"):
                old.publish(weights)
            assert new.publish(weights).wait()["number"] == 2
    with place.publisher(weights, baseline="a", token="same") as first:
        with place.publisher(weights, baseline="b", token="same"):
            assert first.publish(weights).wait()["number"] == 3, "one token is one life"


def test_a_lost_baseline_is_rebuilt_ahead_of_the_next_publish(place):
    weights = state()
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    weights["w.int32"] = weights["w.int32"] + 1
    with place.publisher(weights, baseline="empty") as publisher:
        publisher.prepare_base()
        report = publisher.publish(weights).wait()
        assert not report["baseline_rebuilt"], "it was done before"
        assert report["changed_elements"] == 60
    with place.publisher(weights, baseline="late") as publisher:
        report = publisher.publish(weights).wait()
        assert report["baseline_rebuilt"] and report["changed_elements"] == 0
    with place.publisher(weights, run="fresh", baseline="fresh") as publisher:
        publisher.prepare_base()  # no version yet


def test_a_baseline_is_one_publishers(place):
    weights = state()
    with place.publisher(weights):
        with pytest.raises(errors.Unavailable, match="in use"):
            place.publisher(weights)
    with place.publisher(weights) as publisher:
        failed = publisher.publish
        with pytest.raises(errors.InvalidData) as kept:  # the exception must not keep the baseline
            failed({"w": numpy.zeros(1)})
    with place.publisher(weights):
        assert kept.value.code == "invalid-data"


def test_close_waits_and_ends_the_publisher(place):
    weights = state()
    publisher = place.publisher(weights)
    publication = publisher.publish(weights)
    publisher.close()
    publisher.close()
    assert publication.done and publication.wait()["state"] == "READY"
    for call in (lambda: publisher.publish(weights), publisher.prepare_base, lambda: publisher.params):
        with pytest.raises(errors.Conflict, match="closed"):
            call()
    assert publisher.pop_metrics()["weightcast/version"] == 1


def test_metrics_are_of_the_last_version_and_given_once(place):
    weights = state()
    with place.publisher(weights) as publisher:
        assert publisher.pop_metrics() == {}
        report = publisher.publish(weights).wait()
        metrics = publisher.pop_metrics()
        assert metrics["weightcast/density"] == 1.0
        assert metrics["weightcast/wire_bytes"] == report["wire_bytes"] > 0
        assert 0 <= metrics["weightcast/stage_seconds"] <= metrics["weightcast/stall_seconds"]
        assert metrics["weightcast/stall_seconds"] <= metrics["weightcast/publish_seconds"]
        assert publisher.pop_metrics() == {}


def test_an_error_is_raised_once(place):
    """From the publish, or from wait; from the next call only if nobody saw it."""
    weights = state()
    bad = {"w": numpy.zeros(1)}
    with place.publisher(weights) as publisher:
        for _ in range(20):  # never late: what fails before encoding fails in publish
            with pytest.raises(errors.InvalidData):
                publisher.publish(bad)
        publisher.publish(weights).wait()
        lost = publisher.publish(weights)
        lost.end()
        lost._error = errors.Unavailable("made up")
        with pytest.raises(errors.Unavailable, match="made up"):
            publisher.publish(weights)
        assert publisher.publish(weights).wait()["state"] == "READY"


def test_many_publishers_live_in_one_process(place):
    weights = [{"w": numpy.full(50_000, i, numpy.float32)} for i in range(8)]
    publishers = [place.publisher(w, run=f"run-{i}", baseline=f"b{i}") for i, w in enumerate(weights)]
    publications = [p.publish(w) for p, w in zip(publishers, weights)]
    for i, publication in enumerate(publications):
        assert publication.wait()["run"] == f"run-{i}"
    for publisher in publishers:
        publisher.close()
    for i, w in enumerate(weights):
        place.pull(run=f"run-{i}", image=f"image-{i}")
        assert_image_is(place.path / f"image-{i}", w)


# ---- images ----

def test_views_are_read_only_and_the_image_says_what_it_has(place):
    weights = state()
    with place.publisher(weights) as publisher:
        report = publisher.publish(weights).wait()
    place.pull()
    with weightcast.Image(place.image) as image:
        assert (image.version, image.number, image.root) == (report["uid"], 1, report["root"])
        assert len(image.digests) == len(image.specs) == len(weights)
        view = image.numpy("large")
        with pytest.raises(ValueError):
            view[0] = 1
        assert image.buffer("large").readonly
        assert image.units("scalar") == 1
        for name in ("nobody", None, ["large"]):
            with pytest.raises(errors.NotFound):
                image.numpy(name)
        with pytest.raises(IndexError):
            image.hold.tensor(10_000)
    image.close()
    with pytest.raises(errors.Conflict, match="given back"):
        image.buffer("large")
    assert same(view, weights["large"]), "a view outlives the image"
    with pytest.raises(errors.NotFound):
        weightcast.Image(place.path / "none")


def test_a_view_keeps_the_hold_and_an_update_names_what_it_waits_for(place):
    weights = state()
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
        place.pull()
        image = weightcast.Image(place.image)
        view = image.numpy("large")[3:5]  # a view of a view
        before = view.tobytes()
        image.close()
        del image
        weights["large"] = bits_of("float16", 300_000, 9).reshape(300, 1000)
        publisher.publish(weights).wait()
    with pytest.raises(errors.DeadlineExceeded, match=str(place.image)):
        place.pull(hold_seconds=0.3)
    assert view.tobytes() == before
    del view
    assert place.pull()["number"] == 2
    assert_image_is(place.image, weights)


def test_a_pull_waits_for_its_turn(place):
    """As workers of a host do that share an image."""
    weights = state()
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    began, goes_on = threading.Event(), threading.Event()

    def stand_still(done, total):
        began.set()
        assert goes_on.wait(60)

    first = threading.Thread(target=place.pull, kwargs={"progress": stand_still})
    first.start()
    try:
        assert began.wait(60)
        with pytest.raises(errors.DeadlineExceeded, match=str(place.image)):
            place.pull(turn_seconds=0.3)
        threading.Timer(0.5, goes_on.set).start()
        assert place.pull(turn_seconds=60)["number"] == 1
    finally:
        goes_on.set()
        first.join()
    assert_image_is(place.image, weights)


def test_a_changed_byte_is_found(place):
    weights = state()
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    place.pull()
    path = place.image / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    report = weightcast.verify(place.image, catalog=place.catalog)
    assert not report["verified"] and len(report["tensors_bad"]) == 1


def test_torch_reads_an_image_where_it_is_installed(place, torch):
    weights = {"w": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4), "s": torch.tensor(2.0),
               "t": torch.arange(6.0).reshape(2, 3).T, "e": torch.zeros(0, 4)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    place.pull()
    with weightcast.Image(place.image) as image:
        for name, tensor in weights.items():
            found = image.torch(name)
            assert found.dtype == tensor.dtype and torch.equal(found, tensor), name
