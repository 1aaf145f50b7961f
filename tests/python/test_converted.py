"""Hugging Face models that transformers fills by its own converters: load_into's errors say what does."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith("5."):
    pytest.skip("transformers 4 has no such converters", allow_module_level=True)

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from transformers_cases import CONFIGS, SIZES  # noqa: E402

CONVERTED = {
    "MixtralForCausalLM": CONFIGS["mixtral"],
    "Qwen3MoeForCausalLM": CONFIGS["qwen3-moe"],
    "GPTNeoXForCausalLM": lambda: transformers.GPTNeoXConfig(**SIZES),
}


def on_meta(kind, config):
    with torch.device("meta"):
        return getattr(transformers, kind)(config())


def save(kind, config, folder):
    getattr(transformers, kind)(config()).save_pretrained(folder)
    return folder / "model.safetensors"


@pytest.fixture
def alone(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "root wrapped"])
@pytest.mark.parametrize("kind", CONVERTED)
def test_whoever_loads_a_converted_model_hears_of_from_pretrained(daemon, tmp_path, alone, kind, sharded):
    path, model = save(kind, CONVERTED[kind], tmp_path), on_meta(kind, CONVERTED[kind])
    if sharded:
        fully_shard(model, mesh=alone)
    with pytest.raises(ckptd.Error) as caught:
        ckptd.torch.load_into(model, path, address=daemon.path)
    assert f"use {kind}.from_pretrained under ckptd.patch()" in caught.value.message
    assert "CKPTD_PATCH=transformers" in caught.value.message
    assert caught.value.reason in ("TENSOR_NOT_FOUND", "UNEXPECTED_TENSORS")


def test_names_that_no_converter_changes_are_missed_without_that_advice(daemon, tmp_path):
    kind, config = "LlamaForCausalLM", CONFIGS["llama"]
    path = save(kind, config, tmp_path)
    state = load_file(path)
    state["model.other.weight"] = state.pop("model.norm.weight")
    save_file(state, path)
    with pytest.raises(ckptd.Error, match="model.other.weight|model.norm.weight") as caught:
        ckptd.torch.load_into(on_meta(kind, config), path, address=daemon.path)
    assert "from_pretrained" not in caught.value.message


def test_a_missing_file_is_no_matter_of_converters(daemon, tmp_path):
    kind = "MixtralForCausalLM"
    with pytest.raises(ckptd.NotFound) as caught:
        ckptd.torch.load_into(on_meta(kind, CONVERTED[kind]), tmp_path / "none", address=daemon.path)
    assert "from_pretrained" not in caught.value.message
