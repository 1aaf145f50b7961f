"""load_into's names: checked once by the leader, for all ranks, without files on the others."""

import concurrent.futures
import threading

import ckptd
import pytest
import torch
from ckptd.torch import load_into
from group import save
from torch import nn


def stage(*names):
    """One pipeline stage: a module of linear layers under those names, on meta."""
    module = nn.Module()
    with torch.device("meta"):
        for name in names:
            module.add_module(name, nn.Linear(4, 3))
    return module


def tensors(*names):
    generator = torch.Generator().manual_seed(5)
    return {
        f"{name}.{part}": torch.randn(shape, generator=generator)
        for name in names
        for part, shape in (("weight", (3, 4)), ("bias", (3,)))
    }


def load_together(pair, path, stages, **options):
    """Each rank's result or error."""

    def load(rank):
        PLACE.is_at = (rank, len(stages))
        with ckptd.connect(pair.address(rank)) as client:
            try:
                return load_into(stages[rank], path, client=client, timeout=60, **options)
            except ckptd.Error as error:
                return error

    with concurrent.futures.ThreadPoolExecutor(len(stages)) as pool:
        return list(pool.map(load, range(len(stages))))


PLACE = threading.local()


@pytest.fixture(autouse=True)
def ranks(monkeypatch):
    """Two ranks in one process, a thread each."""
    from ckptd.torch.load import _load_into

    monkeypatch.setattr(_load_into, "rank_and_size", lambda: PLACE.is_at)


def test_stages_of_a_pipeline_together_hold_every_name(pair, tmp_path):
    state = tensors("front", "back")
    path = save(tmp_path / "m.safetensors", state)
    stages = [stage("front"), stage("back")]
    results = load_together(pair, path, stages)
    assert [sorted(r.unexpected) for r in results] == [
        ["back.bias", "back.weight"],
        ["front.bias", "front.weight"],
    ]
    assert torch.equal(stages[0].front.weight, state["front.weight"])
    assert torch.equal(stages[1].back.bias, state["back.bias"])


def test_a_name_that_no_rank_has_fails_the_load_on_each(pair, tmp_path):
    path = save(tmp_path / "m.safetensors", tensors("front", "back", "extra"))
    for error in load_together(pair, path, [stage("front"), stage("back")]):
        assert (error.code, error.reason) == ("INVALID_ARGUMENT", "UNEXPECTED_TENSORS")
        assert "extra.weight" in error.message and "strict=False" in error.message


def test_a_name_that_one_rank_misses_fails_the_load_on_each_and_names_it(pair, tmp_path):
    path = save(tmp_path / "m.safetensors", tensors("front"))
    for error in load_together(pair, path, [stage("front"), stage("back")]):
        assert (error.code, error.reason) == ("NOT_FOUND", "TENSOR_NOT_FOUND")
        assert "back.bias" in error.message and error.facts["rank"] == "1"


def test_without_strict_both_are_reported_and_the_rest_is_loaded(pair, tmp_path):
    state = tensors("front", "extra")
    path = save(tmp_path / "m.safetensors", state)
    stages = [stage("front"), stage("front", "back")]
    results = load_together(pair, path, stages, strict=False)
    assert results[1].missing == ["back.bias", "back.weight"]
    assert results[0].unexpected == ["extra.bias", "extra.weight"]
    assert torch.equal(stages[1].front.weight, state["front.weight"])


def test_names_that_only_lack_a_prefix_are_an_error_even_without_strict(pair, tmp_path):
    path = save(tmp_path / "m.safetensors", {f"model.{k}": v for k, v in tensors("front").items()})
    for error in load_together(pair, path, [stage("front"), stage("front")], strict=False):
        assert error.reason == "TENSOR_NOT_FOUND" and "add the prefix 'model.'" in error.message


@pytest.mark.parametrize("equal", [True, False])
def test_tied_weights_that_are_stored_twice_must_be_equal(pair, tmp_path, equal):
    state = tensors("front", "back")
    if equal:
        state["back.weight"] = state["front.weight"].clone()
    path = save(tmp_path / "m.safetensors", state)
    stages = [stage("front", "back") for _ in range(2)]
    for module in stages:
        module.back.weight = module.front.weight
    for result in load_together(pair, path, stages):
        if not equal:
            assert (result.code, result.reason) == ("INVALID_ARGUMENT", "LAYOUT_MISMATCH")
            assert "'front.weight' and 'back.weight' are to share memory" in result.message
    for module in stages:
        assert module.front.weight.is_meta != equal and module.back.weight is module.front.weight


def test_untied_weights_of_one_stored_tensor_do_not_share_memory(pair, tmp_path):
    """A checkpoint that stores tied weights once, into models whose weights are not tied."""
    from safetensors.torch import save_file

    path = str(tmp_path / "m.safetensors")
    weight = torch.randn(3, 4)
    both = tensors("front")
    save_file({**both, "front.weight": weight}, path, metadata={"back.weight": "front.weight"})
    stages = [stage("front", "back") for _ in range(2)]
    for module in stages:
        del module.back.bias
        module.back.register_parameter("bias", None)
    load_together(pair, path, stages)
    with torch.no_grad():
        stages[0].front.weight.zero_()
    assert torch.equal(stages[0].back.weight, weight)


def test_ranks_load_again_after_their_shards_were_unloaded(pair, tmp_path):
    """The leader remembers who held what; what it remembers may be over."""
    path = save(tmp_path / "m.safetensors", tensors("front", "back"))
    name = load_together(pair, path, [stage("front"), stage("back")])[0].checkpoint
    for rank in range(2):
        pair.json("unload", name, "--force", rank=rank)
    again = load_together(pair, path, [stage("front"), stage("back")])
    assert [type(each).__name__ for each in again] == ["LoadResult", "LoadResult"], again
