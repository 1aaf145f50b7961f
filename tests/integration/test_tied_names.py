"""Names that share one tensor in a model and have several values in a checkpoint: one rule in all functions."""

import ckptd
import pytest
import torch
from group import Group
from torch import nn

pytest.importorskip("accelerate")
import ckptd.accelerate  # noqa: E402
import ckptd.torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions  # noqa: E402

FULL = StateDictOptions(full_state_dict=True)
METADATA = {"format": "pt"}


class Tied(nn.Module):
    """Its names are in another order than the alphabet's."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 300, bias=False)
        self.middle = nn.Linear(4, 4)
        self.inner = nn.Embedding(300, 4)
        self.inner.weight = self.out.weight


FIRST, LAST = "out.weight", "inner.weight"


def values(**more):
    torch.manual_seed(5)
    return {**{name: torch.randn(t.shape) for name, t in Tied().state_dict().items()}, **more}


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("t"), 1) as running:
        yield running


def lazy(path, state, near):
    return ckptd.torch.load_state_dict(path, **near)


def looked_up(path, state, near):
    found = lazy(path, state, near)
    found[LAST]
    return found


def replaced(path, state, near):
    found = lazy(path, state, near)
    found[FIRST] = state[FIRST].clone()
    return found


GIVEN = {"a path": lambda path, state, near: path, "a lazy dict": lazy, "a lazy dict, looked into": looked_up,
         "a lazy dict and a tensor": replaced, "a dict": lambda path, state, near: dict(state)}
SPREAD = {
    "set_model_state_dict": lambda m, given, **o: ckptd.torch.set_model_state_dict(m, given, options=FULL_OF(given), **o),
    "DistModule": lambda m, given, **o: ckptd.torch.DistModule(m, **o).load_state_dict(given),
    "fsdp2_load_full_state_dict": lambda m, given, **o: ckptd.torch.fsdp2_load_full_state_dict(None, m, given, **o),
}
BY_PATH = {
    "load_checkpoint_in_model": lambda m, path, **o: ckptd.accelerate.load_checkpoint_in_model(m, path, **o),
    "load_checkpoint_in_model, with a map": lambda m, path, **o: ckptd.accelerate.load_checkpoint_in_model(
        m, path, device_map={"": "cpu"}, **o),
}


def FULL_OF(given):
    together = isinstance(given, dict) and not isinstance(given, ckptd.torch.LazyStateDict)
    return StateDictOptions(full_state_dict=True, broadcast_from_rank0=True) if together else FULL


WAYS = [pytest.param(load, make, id=f"{name}, {what}") for name, load in SPREAD.items() for what, make in GIVEN.items()]
BY_PATH["load_into"] = ckptd.torch.load_into
WAYS += [pytest.param(load, GIVEN["a path"], id=name) for name, load in BY_PATH.items()]


@pytest.fixture
def alone(tmp_path):
    """A process group of one, as torch's function of a dict wants."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("meta", [True, False], ids=["meta", "real"])
@pytest.mark.parametrize("load,make", WAYS)
def test_different_values_are_refused_by_name_or_the_first_is_taken(group, alone, tmp_path, load, make, meta):
    near, path, state = {"address": group.address(0)}, tmp_path / "model.safetensors", values()
    save_file(state, path, metadata=METADATA)

    def model():
        with torch.device("meta" if meta else "cpu"):
            return Tied()

    with pytest.raises(ckptd.InvalidArgument, match=f"'{FIRST}' and '{LAST}' are to share memory, and have different values") as caught:
        load(model(), make(path, state, near), **near)
    assert caught.value.reason == "LAYOUT_MISMATCH" and "untie them in the model" in caught.value.message
    filled = model()
    load(filled, make(path, state, near), tied="first", **near)
    assert torch.equal(filled.out.weight, state[FIRST]) and filled.inner.weight is filled.out.weight
    state = values(**{LAST: state[FIRST].clone()})
    save_file(state, path, metadata=METADATA)
    filled = model()
    load(filled, make(path, state, near), **near)
    assert torch.equal(filled.out.weight, state[FIRST]) and filled.inner.weight is filled.out.weight


def test_load_into_takes_the_first_and_misses_nothing_else(group, tmp_path):
    near, state = {"address": group.address(0)}, values(more=torch.ones(2))
    save_file(state, tmp_path / "model.safetensors", metadata=METADATA)
    with pytest.raises(ckptd.InvalidArgument, match="no rank asks for: more;") as caught:
        ckptd.torch.load_into(Tied(), tmp_path / "model.safetensors", tied="first", **near)
    assert caught.value.reason == "UNEXPECTED_TENSORS"
    result = ckptd.torch.load_into(Tied(), tmp_path / "model.safetensors", tied="first", strict=False, **near)
    assert (result.missing, result.unexpected) == ([], ["more"])
    del state["more"], state[FIRST]
    save_file(state, tmp_path / "model.safetensors", metadata=METADATA)
    model = Tied()
    result = ckptd.torch.load_into(model, tmp_path / "model.safetensors", tied="first", **near)
    assert torch.equal(model.out.weight, state[LAST]) and (result.missing, result.unexpected) == ([], [])


@pytest.mark.parametrize("load", [*SPREAD.values(), *BY_PATH.values()], ids=[*SPREAD, *BY_PATH])
def test_another_way_is_refused(tmp_path, load):
    save_file(values(), tmp_path / "model.safetensors", metadata=METADATA)
    with pytest.raises(ckptd.InvalidArgument, match="tied='last'.*'first'"):
        load(Tied(), tmp_path / "model.safetensors", tied="last")
