"""What load_into puts under each name that a tensor has: parameters, buffers, both; and in which memory order."""

import itertools

import ckptd
import pytest

torch = pytest.importorskip("torch")

from fsdp_bench import copied, on_meta  # noqa: E402
from torch import nn  # noqa: E402


class Holder(nn.Module):
    """Holds a tensor as a parameter, a buffer, or one that is not saved."""

    def __init__(self, kind, name, tensor):
        super().__init__()
        if kind == "parameter":
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor, persistent=kind == "buffer")


KINDS = ("parameter", "buffer", "buffer that is not saved")


def held_as(*kinds):
    """One tensor in each of the modules, as that kind."""
    weight = nn.Parameter(torch.zeros(3, 2))
    return nn.ModuleDict({f"m{i}": Holder(kind, f"w{i}", weight) for i, kind in enumerate(kinds)})


def held_twice_in_one():
    model = Holder("parameter", "weight", nn.Parameter(torch.zeros(3, 2)))
    model.register_buffer("table", model.weight)
    return model


@pytest.mark.parametrize("meta", [True, False], ids=["meta", "real"])
def test_a_tensor_that_is_a_parameter_and_a_buffer_stays_both(make, meta):
    for kinds in (k for n in (2, 3) for k in itertools.product(KINDS, repeat=n) if KINDS[0] in k):
        check_that_kinds_stay(make, kinds, meta)


def check_that_kinds_stay(make, kinds, meta):
    model = on_meta(lambda: held_as(*kinds)) if meta else held_as(*kinds)
    parameter = next(model.parameters())
    registered = [(list(m._parameters), list(m._buffers)) for m in model.modules()]
    values = torch.arange(6.0).reshape(3, 2)
    # Under the first name that is saved, as files hold tied tensors once.
    result = make.load(model, {next(iter(model.state_dict())): values}, init_buffers=None)
    assert not result.missing and not result.unexpected
    assert [(list(m._parameters), list(m._buffers)) for m in model.modules()] == registered
    for name, holder in enumerate(model.values()):
        assert getattr(holder, f"w{name}") is parameter
    assert type(parameter) is nn.Parameter and parameter.requires_grad
    assert torch.equal(parameter, values)


def test_both_may_be_in_one_module(make):
    model, values = on_meta(held_twice_in_one), torch.arange(6.0).reshape(3, 2)
    make.load(model, {"weight": values}, init_buffers=None)
    assert model.table is model.weight and torch.equal(model.weight, values)
    model.weight.sum().backward()


@pytest.mark.parametrize("way", ["in place", "torch's own path"])
def test_what_was_asked_for_and_is_still_on_meta_is_an_error(make, monkeypatch, way):
    from ckptd.torch.compat import _torch_internals
    from ckptd.torch.load import _place_tensors

    def forgets(*_):
        pass

    if way == "in place":
        monkeypatch.setattr(_torch_internals, "set_parameter_memory", forgets)
    else:
        monkeypatch.setattr(_torch_internals, "can_swap_implementation", lambda: False)
        monkeypatch.setattr(_place_tensors, "_fill_publicly", forgets)
    with pytest.raises(ckptd.Internal, match="filling weight: it was loaded and is still on meta") as raised:
        make.load(on_meta(lambda: nn.Linear(2, 2, bias=False)), {"weight": torch.ones(2, 2)})
    assert raised.value.reason == "LEFT_ON_META"


ORDERS = {
    "rows": lambda t: t,
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "permuted": lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "every second": lambda t: t.new_zeros(*t.shape[:-1], 2 * t.shape[-1])[..., ::2],
}


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_real_tensor_keeps_its_memory_order_as_by_load_state_dict(make, kind):
    for order, shape in itertools.product(ORDERS, [(2, 3, 4, 5), (1, 3, 1, 2), (4, 1, 2, 2)]):
        check_that_the_order_stays(make, order, kind, shape)


def check_that_the_order_stays(make, order, kind, shape):
    def build():
        tensor = ORDERS[order](torch.zeros(shape))
        return Holder(kind, "w", nn.Parameter(tensor) if kind == "parameter" else tensor)

    mine, theirs = build(), build()
    state = {"w": torch.randn(shape)}
    theirs.load_state_dict(copied(state))
    kept = mine.w
    result = make.load(mine, state)
    assert mine.w is kept and torch.equal(mine.w, theirs.w) and mine.w.stride() == theirs.w.stride()
    assert list(result.copied) == ([] if theirs.w.is_contiguous() else ["w"])


def test_a_buffer_keeps_its_memory_order_when_its_type_changes(make):
    model = Holder("buffer", "w", ORDERS["channels last"](torch.zeros(2, 3, 4, 5)))
    state, order = {"w": torch.randn(2, 3, 4, 5)}, model.w.stride()
    result = make.load(model, state, dtype=torch.bfloat16)
    assert torch.equal(model.w, state["w"].bfloat16()) and model.w.stride() == order
    assert list(result.copied) == ["w"]


def test_a_buffer_that_was_made_in_inference_mode_keeps_its_memory_order(make):
    with torch.inference_mode():
        model = Holder("buffer", "w", ORDERS["channels last"](torch.zeros(2, 3, 4, 5)))
    state, order = {"w": torch.randn(2, 3, 4, 5)}, model.w.stride()
    make.load(model, state)
    assert torch.equal(model.w, state["w"]) and model.w.stride() == order
