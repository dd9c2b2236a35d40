"""Where units lie: boxes of strided copies against brute force, the core's target on numpy memory, and
what `record` sees of loaders that do odd things."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import numpy  # noqa: E402

import weightcast  # noqa: E402
from weightcast import _core  # noqa: E402
from weightcast.errors import InvalidData  # noqa: E402
from weightcast.vllm import placement  # noqa: E402


def units_of(boxes, cols):
    """[(unit of the tensor, offset in the parameter)] that boxes say."""
    return [((row + i) * cols + col + j, at + i * row_stride + j * col_stride)
            for row, rows, col, count, at, row_stride, col_stride in boxes
            for i in range(rows) for j in range(count)]


def brute(sizes, source, target, offset):
    return [(offset + sum(i * s for i, s in zip(index, source)), sum(i * t for i, t in zip(index, target)))
            for index in itertools.product(*(range(n) for n in sizes))]


def assert_boxes(sizes, source, target, offset, cols):
    boxes = list(placement._boxes(placement._merged(sizes, source, target), offset, cols))
    expected = brute(sizes, source, target, offset)
    assert sorted(units_of(boxes, cols)) == sorted(expected), (sizes, source, target, offset, cols)
    for row, rows, col, count, _, row_stride, col_stride in boxes:  # what the core takes
        assert rows > 0 and count > 0 and 0 <= col and col + count <= cols and row >= 0
        assert row_stride > 0 and col_stride > 0
    return boxes


def test_boxes_of_random_strided_copies():
    rng = random.Random(7)
    for _ in range(3000):
        rank = rng.randint(0, 4)
        sizes = [rng.randint(2, 5) for _ in range(rank)]
        # A strided view: steps through a larger dense tensor, in any order of dimensions.
        def strides():
            order, out, step = rng.sample(range(rank), rank), [0] * rank, 1
            for d in order:
                step *= rng.choice((1, 1, 1, 2, 3))
                out[d] = step
                step *= sizes[d]
            return out
        source, target = strides(), strides()
        assert_boxes(sizes, source, target, rng.randint(0, 40),
                     rng.choice((1, 2, 3, 4, 5, 6, 8, 12, 60, 200)))


@pytest.mark.parametrize("sizes, source, target, offset, cols, boxes", [
    ((), (), (), 5, 4, 1),  # one element
    ((4, 8), (8, 1), (8, 1), 0, 8, 1),  # whole
    ((4, 8), (8, 1), (1, 4), 0, 8, 1),  # transposed
    ((2, 8), (8, 1), (32, 1), 16, 8, 1),  # rows into a wider parameter
    ((4, 3), (8, 1), (3, 1), 2, 8, 1),  # columns
    ((30,), (1,), (1,), 5, 8, 3),  # a run over the ends of rows
    ((4,), (8,), (1,), 3, 8, 1),  # down a column
    ((2, 4, 8), (32, 8, 1), (32, 1, 4), 0, 8, 2),  # experts, each transposed
])
def test_boxes_are_as_few_as_they_can_be(sizes, source, target, offset, cols, boxes):
    assert len(assert_boxes(sizes, source, target, offset, cols)) == boxes


@pytest.mark.parametrize("module", [torch.float32, torch.bfloat16])
def test_same_bits_is_about_bits(module):
    zero = torch.zeros(4, dtype=module)
    assert placement.same_bits(zero, zero.clone())
    assert not placement.same_bits(zero, -zero)
    assert not placement.same_bits(zero, zero.reshape(2, 2))
    nan = torch.full((4,), float("nan"), dtype=module)
    assert placement.same_bits(nan, nan.clone())
    assert placement.same_bits(torch.eye(3, dtype=module).t(), torch.eye(3, dtype=module))


# ---- the core's target ----

SHAPE = (24, 40)


@pytest.fixture(scope="module", params=["uint8", "uint16", "float32", "float64"])
def image(request, tmp_path_factory):
    """An image at version 1, that keeps the journal from 0: (image, old, new)"""
    directory = tmp_path_factory.mktemp("target")
    rng = numpy.random.default_rng(3)
    old = rng.integers(0, 200, SHAPE).astype(request.param)
    new = old.copy()
    new.flat[rng.choice(old.size, 60, replace=False)] += 1
    arguments = f"sqlite:{directory}/c.db", f"file:{directory}/bytes", "t"
    with weightcast.Publisher(*arguments, {"w": old}, baseline=directory / "base",
                              side_files=directory) as p:
        for values in (old, new):
            p.publish({"w": values}, full=values is old).wait()
            weightcast.pull(arguments[0], "t", directory / "image", durability="process")
    held = weightcast.Image(directory / "image")
    [first, _] = weightcast.versions(arguments[0], "t")
    yield held, old, new, first["uid"]


def layouts(values):
    """{name: (memory that holds the values, view of them in it)}: as parameters do."""
    def framed(shape, view):
        memory = numpy.zeros(shape, values.dtype)
        view(memory)[...] = values
        return memory, view(memory)
    return {
        "as it is": framed(SHAPE, lambda m: m),
        "transposed": framed(SHAPE[::-1], lambda m: m.T),
        "rows of a wider one": framed((30, 100), lambda m: m[4:28, 7:47]),
        "every other column": framed((24, 80), lambda m: m[:, ::2]),
        "transposed, apart": framed((90, 60), lambda m: m[1:81:2, ::2][:, :24].T),
    }


def blocks_of(view, parts):
    """Block rows of a view's parts [(row, rows, col, cols)]."""
    size = view.itemsize
    return [[0, row, rows, col, cols, view[row:, col:].ctypes.data, view.strides[0] // size,
             view.strides[1] // size] for row, rows, col, cols in parts]


PARTS = {"whole": [(0, 24, 0, 40)], "halves": [(0, 11, 0, 40), (11, 13, 0, 40)],
         "a slice": [(3, 9, 5, 30)], "quarters": [(r, 12, c, 20) for r in (0, 12) for c in (0, 20)],
         "units": [(r, 1, c, 1) for r in range(0, 24, 5) for c in range(0, 40, 7)]}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_target_compares_writes_and_digests_where_units_lie(parts, image):
    held, old, new, first = image
    [step] = held.hold.steps_from(first)
    inside = numpy.zeros(SHAPE, bool)
    for row, rows, col, cols in parts:
        inside[row:row + rows, col:col + cols] = True
    changed = int(((old != new) & inside).sum())
    for name, (memory, view) in layouts(old).items():
        outside = memory.copy()
        target = _core.Target.make(held.hold, blocks_of(view, parts))
        assert target.units(0) == inside.sum(), name
        canonical = target.digest_canonical(0, held.buffer("w"))
        assert target.compare(step, [0], 2) == []
        assert target.compare(step, [], 2) == [] and target.write(step, [], 2) == 0
        assert (target.digest_live([0], 2)[0][:2] == canonical) == (changed == 0)
        assert target.write(step, [0], 2) == changed
        assert (view == numpy.where(inside, new, old)).all(), name
        assert target.digest_live([0], 1)[0][:2] == canonical
        if parts is PARTS["whole"]:
            assert canonical == (held.digests[0], held.units("w"))
        strangers = target.compare(step, [0], 1)  # now all of them are the new version's
        assert strangers == ([(0, changed)] if changed else [])
        view[...] = numpy.where(inside, old, view)
        assert (memory == outside).all(), f"{name}: nothing beside it was written"
        row, _, col, _ = parts[0]
        view[row, col] += 1
        assert target.digest_live([0], 2)[0][:2] != canonical


def test_spans_are_of_what_is_held_not_of_how_it_is_cut(image):
    held, old, *_ = image
    spans = {name: _core.Target.make(held.hold, blocks_of(old, parts)).span(0)
             for name, parts in PARTS.items()}
    assert spans["whole"] == spans["halves"]
    assert len(set(spans.values())) == 4


@pytest.mark.parametrize("row, why", [
    ([0, 0, 25, 0, 40, 40, 1], "outside"), ([0, 0, 1, 39, 2, 40, 1], "outside"),
    ([0, -1, 1, 0, 1, 40, 1], "outside"), ([1, 0, 1, 0, 1, 40, 1], "no such tensor"),
    ([0, 0, 2, 0, 2, 0, 1], "stride"), ([0, 0, 2, 0, 2, 40, -1], "stride"), ([0, 0, 0, 0, 1, 1, 1], "empty"),
])
def test_blocks_that_are_no_places(row, why, image):
    held, old, *_ = image
    with pytest.raises(InvalidData):
        _core.Target.make(held.hold, [[*row[:5], old.ctypes.data, *row[5:]]])


def test_two_places_for_one_unit(image):
    held, old, *_ = image
    with pytest.raises(InvalidData, match="placed twice"):
        _core.Target.make(held.hold, blocks_of(old, [(0, 10, 0, 40), (9, 5, 3, 3)]))


# ---- recording ----

class Odd(torch.nn.Module):
    """One parameter of 4 x 6, filled by a loader of choice from "w", and a plain one."""

    def __init__(self, load):
        super().__init__()
        self.child = torch.nn.Linear(6, 4, bias=False)
        self.other = torch.nn.Linear(3, 2, bias=False)
        for module in self.children():
            module.weight.requires_grad_(False)
        self.child.weight.weight_loader = load

    def load_weights(self, given):
        for name, tensor in given:
            param = getattr(self, {"w": "child", "x": "other"}[name]).weight
            getattr(param, "weight_loader", lambda p, t: p.data.copy_(t))(param, tensor)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An image of two tensors: (image, {name: tensor})"""
    directory = tmp_path_factory.mktemp("record")
    tensors = {"w": torch.randn(4, 6), "x": torch.randn(2, 3)}
    with weightcast.Publisher(f"sqlite:{directory}/c.db", f"file:{directory}/bytes", "t", tensors,
                              baseline=directory / "base", side_files=directory) as p:
        p.publish(tensors, full=True).wait()
    weightcast.pull(f"sqlite:{directory}/c.db", "t", directory / "image", durability="process")
    return weightcast.Image(directory / "image"), tensors


def recorded(load, small):
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    model = Odd(load)
    record_metadata_for_reloading(model)
    before = {name: (p, p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    try:
        place = placement.record(model, None, small[0])
    finally:  # whatever loaders do, the live model is what it was
        for name, param in model.named_parameters():
            old, address, values = before[name]
            assert param is old and param.data_ptr() == address and torch.equal(param, values)
    return model, place


def halves_assigned(param, tensor):
    param.data[:2] = tensor[:2]
    param.data[2:] = tensor[2:]


LOADERS = {
    "copy": (lambda p, t: p.data.copy_(t), ""),
    "narrow": (lambda p, t: [p.data.narrow(1, i, 2).copy_(t.narrow(1, i, 2)) for i in (0, 2, 4)], ""),
    "assign": (halves_assigned, ""),
    "strided": (lambda p, t: [p.data[:, i::2].copy_(t[:, i::2]) for i in (0, 1)], ""),
    "then scaled": (lambda p, t: p.data.copy_(t).mul_(2), "mul_"),
    "then computed": (lambda p, t: (p.data.copy_(t), p.data.copy_(-t)), "computes what it stores"),
    "then indexed": (lambda p, t: (p.data.copy_(t), p.data.__setitem__(torch.tensor([0]), t[:1] * 2)),
                     "its loader"),
}


@pytest.mark.parametrize("load, why", LOADERS.values(), ids=LOADERS)
def test_loaders_are_understood_or_not_believed(load, why, small):
    model, place = recorded(load, small)
    assert why in place.params["child", "weight"].why
    target = place.bind(small[0].hold)
    assert set(place.repacked) == ({"child"} if why else set())
    assert [target.units(i) for i in range(2)] == [0 if why else 24, 6]
    if not why:
        assert torch.equal(place.fill("child", "weight", small[0]), small[1]["w"])
        model.child.weight.data.copy_(small[1]["w"])
        assert target.digest_live([0], 1)[0][:2] == (small[0].digests[0], 24)


@pytest.mark.parametrize("load, named", [
    (lambda p, t: p.data.copy_(t * 2), "takes these tensors of the version nowhere: w"),
    (lambda p, t: p.data.narrow(0, 0, 2).copy_(t.narrow(0, 0, 2)), r"child\.weight \(12 of 24"),
    (lambda p, t: None, "nowhere: w"),
    (lambda p, t: [p.data.copy_(t) for _ in range(2)], r"child\.weight \(48 of 24"),
    (lambda p, t: 1 / 0, "does not take w .F32 .4, 6..: ZeroDivisionError"),
])
def test_loaders_that_do_not_fill_a_parameter_are_refused(load, named, small):
    with pytest.raises(InvalidData, match=named):
        recorded(load, small)


class Twice(Odd):
    """A tensor that two modules hold, in memory of their own."""

    def __init__(self):
        super().__init__(lambda p, t: p.data.copy_(t))
        self.second = torch.nn.Linear(6, 4, bias=False).requires_grad_(False)

    def load_weights(self, given):
        for name, tensor in given:
            super().load_weights([(name, tensor)])
            if name == "w":
                param = self.second.weight
                getattr(param, "weight_loader", lambda p, t: p.data.copy_(t))(param, tensor)


def test_a_tensor_that_two_modules_hold_is_written_to_one_and_reloaded_to_the_other(small):
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from weightcast.vllm import kernels

    model = Twice()
    record_metadata_for_reloading(model)
    place = placement.record(model, None, small[0])
    assert place.modules_of[0] == {"child", "second"}
    target = place.bind(small[0].hold)
    assert place.repacked == {"second": "weight holds what child holds too"}
    assert target.units(0) == 24
    assert place.closure({"second"}) == {0}
    for module in (model.child, model.second):
        module.weight.data.copy_(small[1]["w"])
    assert kernels.prove_memory(place, "second", small[0]) == "repacked"
    assert place.canonical_share(0, small[0])[:2] == (small[0].digests[0], 24)
    model.second.weight.data[1, 1] += 1
    assert kernels.prove_memory(place, "second", small[0]) == "wrong"


def test_a_reload_that_fails_leaves_a_whole_model(small):
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    model = Odd(lambda param, t: param.data.copy_(t))  # vLLM gives it again as "param"
    record_metadata_for_reloading(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError, match="planted"):
        with placement.layerwise_reload(model, None):
            model.load_weights([("x", small[1]["x"])])
            raise RuntimeError("planted")
    assert torch.equal(model.other.weight, small[1]["x"]), "what was loaded to its end stays"
    assert torch.equal(model.child.weight, before["child.weight"])
    with placement.layerwise_reload(model, None) as notes_of:  # and it can be reloaded
        model.load_weights(small[1].items())
        assert not notes_of(model.child).can_load()
    assert torch.equal(model.child.weight, small[1]["w"])
