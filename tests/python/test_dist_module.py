"""DistModule inside of other modules and of another DistModule: as the wrapped module would be there."""

import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from fsdp_bench import copied, numbers, on_meta  # noqa: E402
from torch import nn  # noqa: E402


class Part(nn.Module):
    """A parameter and buffers of its own, and parts with theirs."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("made", torch.zeros(3), persistent=False)
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.layers(x * self.gain))


def plain(module):
    return module


PLACES = {
    "in a list": lambda wrap: nn.ModuleList([wrap(Part()), Part()]),
    "in a model": lambda wrap: nn.ModuleDict({"a": nn.Sequential(wrap(nn.Linear(2, 2))), "b": wrap(Part())}),
    "in itself": lambda wrap: nn.ModuleDict({"a": wrap(wrap(Part()))}),
    "around another": lambda wrap: nn.ModuleDict({"a": wrap(nn.Sequential(wrap(Part()), nn.Linear(2, 2)))}),
    "shared": lambda wrap: (lambda part: nn.ModuleList([part, part]))(wrap(Part())),
}


def built(place, wrap=ckptd.torch.DistModule):
    torch.manual_seed(4)
    return PLACES[place](wrap)


@pytest.mark.parametrize("place", PLACES)
def test_names_are_those_of_the_wrapped_module_wherever_it_is(place):
    mine, theirs = built(place), built(place, plain)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    for duplicates in (True, False):
        for method in ("named_parameters", "named_buffers"):
            names = [[n for n, _ in getattr(m, method)(remove_duplicate=not duplicates)] for m in (mine, theirs)]
            assert names[0] == names[1], method
    wrappers = {n for n, m in mine.named_modules() if isinstance(m, ckptd.torch.DistModule)}
    modules = [n for n, m in mine.named_modules() if not isinstance(m, ckptd.torch.DistModule)]
    assert modules == [n for n, _ in theirs.named_modules()] and wrappers <= set(modules)


@pytest.mark.parametrize("place", PLACES)
def test_a_model_around_it_loads_its_own_state_dict_back(place):
    mine, theirs = built(place), built(place, plain)
    state = numbers(theirs)
    assert mine.load_state_dict(copied(state)) == theirs.load_state_dict(copied(state))
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in mine.state_dict().items())


@pytest.mark.parametrize("place", PLACES)
def test_what_does_not_fit_is_said_by_the_names_of_the_wrapped_module(place):
    state = numbers(built(place, plain))
    lost, odd = next(n for n in state if n.endswith("gain")), next(n for n in state if n.endswith("0.weight"))
    del state[lost]
    state.update({odd: torch.ones(7, 7), lost[: -len("gain")] + "strange": torch.ones(1)})
    said = []
    for model in (built(place), built(place, plain)):
        with pytest.raises(RuntimeError) as raised:
            model.load_state_dict(copied(state))
        said.append(sorted(str(raised.value).splitlines()))
        del state[odd]
        said[-1] += [sorted(each) for each in model.load_state_dict(copied(state), strict=False)]
        state[odd] = torch.ones(7, 7)
    assert said[0] == said[1]


@pytest.mark.parametrize("place", PLACES)
def test_load_into_fills_a_model_around_it(make, place):
    state, mine = numbers(built(place, plain)), on_meta(lambda: built(place))
    if place == "shared":
        state = {name: value for name, value in state.items() if name.startswith("0.")}
    make.load(mine, state, init_buffers=lambda m, names: [b.fill_(5) for n, b in m.named_buffers() if n in names])
    assert all(torch.equal(mine.state_dict()[name], value) for name, value in state.items())


@pytest.mark.parametrize("around", [1, 2, 3])
def test_one_around_another_loads_by_the_names_of_the_innermost_module(daemon, around):
    mine, state = on_meta(Part), numbers(Part())
    for _ in range(around):
        mine = ckptd.torch.DistModule(mine, address=daemon.path)
    result = mine.load_state_dict(state)
    assert not result.missing_keys and not result.unexpected_keys
    assert all(torch.equal(value, state[name]) for name, value in mine.state_dict().items())


@pytest.mark.parametrize("around", [1, 2])
def test_what_is_registered_is_registered_with_the_wrapped_module(around):
    part = Part()
    mine = part
    for _ in range(around):
        mine = ckptd.torch.DistModule(mine)
    mine.register_parameter("more", nn.Parameter(torch.ones(1)))
    mine.register_buffer("table", torch.ones(1), persistent=False)
    mine.add_module("child", nn.Linear(1, 1))
    mine.register_module("other", nn.Linear(1, 1))
    mine.assigned = nn.Linear(1, 1)
    assert "more" in dict(part.named_parameters()) and "table" in dict(part.named_buffers())
    assert {"child", "other", "assigned"} <= dict(part.named_children()).keys()
    assert "table" not in mine.state_dict() and "child.weight" in mine.state_dict()
    assert list(mine.state_dict()) == list(part.state_dict())


def test_torch_s_own_functions_see_no_wrapper_in_names():
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    for place in PLACES:
        mine, theirs = built(place), built(place, plain)
        state = get_model_state_dict(mine)
        assert state.keys() == get_model_state_dict(theirs).keys(), place
        set_model_state_dict(mine, {name: value + 1 for name, value in state.items()})
