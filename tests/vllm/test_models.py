"""The tiny models are what they say; that vLLM loads them is seen wherever it is tested."""

import pytest

torch = pytest.importorskip("torch")

import models  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


def weights(directory):
    return load_file(directory / "model.safetensors")


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", models.KINDS)
def test_a_model_loads_without_a_missing_or_unknown_tensor(kind, dtype, tmp_path):
    transformers = pytest.importorskip("transformers")
    made = models.make(kind, tmp_path / "made", dtype=dtype)
    auto = (transformers.AutoModelForImageTextToText if models.KINDS[kind].vision
            else transformers.AutoModelForCausalLM)
    loaded, info = auto.from_pretrained(made, dtype=dtype, output_loading_info=True)
    assert type(loaded).__name__ == models.KINDS[kind].architecture
    assert not any(info.values()), info
    assert {w.dtype for w in weights(made).values()} == {getattr(torch, dtype)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    assert tokenizer("w5 w7 nonsense")["input_ids"] == [5, 7, 0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_changed_copy_differs_in_the_share_of_every_tensor(dtype, tmp_path):
    old = models.make("llama", tmp_path / "old", dtype=dtype)
    # So small a step that bf16 rounds it back must still be a change.
    new = models.changed(old, tmp_path / "new", seed=1, density=0.1, size=1e-6)
    assert (new / "tokenizer.json").exists()
    for name, weight in weights(new).items():
        differ = (bits(weight) != bits(weights(old)[name])).sum().item()
        assert differ == round(0.1 * weight.numel()), name


def test_a_changed_copy_differs_in_the_named_tensors_only(tmp_path):
    old = models.make("qwen3", tmp_path / "old")
    names = ["model.norm.weight", "lm_head.weight"]
    new = models.changed(old, tmp_path / "new", seed=1, names=names)
    before, after = weights(old), weights(new)
    assert [n for n in before if not torch.equal(bits(before[n]), bits(after[n]))] == sorted(names)


def test_a_seed_decides_everything(tmp_path):
    made = [models.make("qwen3_moe", tmp_path / str(k), seed=4) for k in range(2)]
    again = [models.changed(d, d.with_suffix(".new"), seed=5) for d in made]
    for one, two in (made, again):
        assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
