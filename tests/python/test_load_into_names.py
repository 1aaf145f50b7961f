"""The names that load_into finds in a checkpoint, and those that it misses: one process, no process group."""

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from fsdp_bench import (  # noqa: E402
    Net,
    numbers,
    on_meta,
)
from torch import nn  # noqa: E402


def test_missing_names_are_an_error_that_names_them(make):
    state = numbers(Net())
    del state["up.bias"]
    with pytest.raises(ckptd.NotFound, match="up.bias"):
        make.load(on_meta(), state)


def test_unexpected_names_are_an_error_that_names_them(make):
    with pytest.raises(ckptd.InvalidArgument, match="extra"):
        make.load(on_meta(), {**numbers(Net()), "extra": torch.ones(2)})


def test_a_refused_load_leaves_the_model_as_it_was(make):
    state, model = numbers(Net()), on_meta()
    del state["up.bias"]
    with pytest.raises(ckptd.NotFound):
        make.load(model, state)
    assert all(p.is_meta for p in model.parameters())


def test_without_strict_both_are_reported(make):
    state, model = numbers(Net()), on_meta()
    del state["up.bias"]
    result = make.load(model, {**state, "extra": torch.ones(2)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["up.bias"], ["extra"])


def test_without_strict_missing_parameters_are_left_alone(make):
    state, model = numbers(Net()), Net()
    before = model.up.bias.detach().clone()
    del state["up.bias"]
    make.load(model, state, strict=False)
    assert torch.equal(model.up.bias, before)


def test_another_shape_is_refused_and_the_tensor_named(make):
    state = {**numbers(Net()), "up.bias": torch.ones(5)}
    with pytest.raises(ckptd.InvalidArgument, match="up.bias"):
        make.load(on_meta(), state)


def test_names_of_compiled_models_are_the_plain_ones(make):
    state = numbers(Net())
    model = torch.compile(on_meta(), backend="eager")
    make.load(model, state, init_buffers=lambda m, names: m._orig_mod.freq.fill_(0))
    assert torch.equal(model._orig_mod.up.weight, state["up.weight"])


def test_a_shard_that_differs_from_what_was_stated_is_refused_untouched(make, daemon, monkeypatch):
    def transposed(slab, tensors, layout, fill=daemon._fill_stated):
        fill(slab, tensors, layout)
        slab.rows = [(n, d, tuple(reversed(s)), o, b, p) for n, d, s, o, b, p in slab.rows]

    monkeypatch.setattr(daemon, "_fill_stated", transposed)
    model = on_meta()
    with pytest.raises(ckptd.DataLoss, match="understood differently"):
        make.load(model, numbers(Net()))
    assert all(p.is_meta for p in model.parameters())


def test_a_load_reads_nothing_on_the_trainer_s_side(make, daemon):
    make.load(on_meta(), numbers(Net()))
    assert "InspectCheckpoint" not in daemon.calls


def test_a_tied_weight_is_found_under_any_of_its_names(make):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)
            self.head.weight = self.embed.weight

    with torch.device("meta"):
        model = Tied()
    weight = torch.randn(3, 4)
    make.load(model, {"head.weight": weight})
    assert model.embed.weight is model.head.weight and torch.equal(model.embed.weight, weight)


def test_a_buffer_the_model_computed_is_not_overwritten(make):
    model, state = Net(), {**numbers(Net()), "freq": torch.full((4,), 7.0)}
    before = model.freq.clone()
    make.load(model, state)
    assert torch.equal(model.freq, before)
