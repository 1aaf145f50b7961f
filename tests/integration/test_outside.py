"""One process beside the daemons of a job of which it is no rank: an evaluation, or the parent of spawned ranks.

It has no process group, nor RANK and WORLD_SIZE. Its loads are for one daemon alone and wait for nobody.
"""

import copy

import ckptd
import pytest
import torch
from group import Group
from safetensors import safe_open
from safetensors.torch import load_file, save_file

accelerate = pytest.importorskip("accelerate")
import ckptd.accelerate  # noqa: E402
import ckptd.torch  # noqa: E402
from torch import nn  # noqa: E402

WORLD = 2


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(3))


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("o"), WORLD) as running:
        yield running


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path):
    """The tied weight has the name that the model has last."""
    state = dict(Tied().state_dict())
    del state["embed.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return str(tmp_path / "model.safetensors")


def values(path):
    found = load_file(path)
    return {**found, "embed.weight": found["head.weight"]}


def assert_holds(model, path):
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, values(path)[name]) and tensor.dtype == values(path)[name].dtype, name


def on_meta():
    with torch.device("meta"):
        return Tied()


@pytest.mark.parametrize("rank", range(WORLD))
def test_load_into_fills_a_model_from_one_daemon_alone(rank, daemons, path):
    for model in (on_meta(), Tied()):
        result = ckptd.torch.load_into(model, path, address=daemons.address(rank), timeout=60)
        assert_holds(model, path)
        assert model.head.weight is model.embed.weight and not (result.missing or result.unexpected)
    sizes = [int(daemons.info(r)["memory"]["used_bytes"]) for r in range(WORLD)]
    assert sizes[rank] > 0, sizes
    with ckptd.connect(daemons.address(1 - rank)) as client:
        held = {c.name: c for c in client.list()}.get(result.checkpoint)
        assert held is None or held.slab_bytes == 0, "another rank has a copy"


def test_load_into_says_what_is_missing_and_what_is_too_much(daemons, path):
    near = {"address": daemons.address(0), "timeout": 20}
    other = on_meta()
    other.more = nn.Linear(2, 2, device="meta")
    del other.up
    with pytest.raises(ckptd.NotFound, match="more.bias|more.weight") as raised:
        ckptd.torch.load_into(other, path, **near)
    assert raised.value.reason == "TENSOR_NOT_FOUND"
    result = ckptd.torch.load_into(other, path, strict=False, **near)
    assert result.missing == ["more.bias", "more.weight"] and result.unexpected == ["up.bias", "up.weight"]
    less = on_meta()
    del less.up
    with pytest.raises(ckptd.InvalidArgument, match="up.bias, up.weight") as raised:
        ckptd.torch.load_into(less, path, **near)
    assert raised.value.reason == "UNEXPECTED_TENSORS"
    wide = on_meta()
    wide.up = nn.Linear(8, 9, device="meta")
    with pytest.raises(ckptd.InvalidArgument, match=r"'up.(bias|weight)' is F32 of shape \[8") as raised:
        ckptd.torch.load_into(wide, path, **near)
    assert raised.value.reason == "LAYOUT_MISMATCH"


@pytest.mark.parametrize("strict", [True, False])
def test_names_of_one_tensor_are_compared(strict, daemons, path):
    state, near = values(path), {"address": daemons.address(0), "timeout": 20, "strict": strict}
    save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    model = on_meta()
    assert not ckptd.torch.load_into(model, path, **near).unexpected
    assert torch.equal(model.head.weight, state["head.weight"])
    save_file({**state, "head.weight": state["head.weight"] + 1}, path)
    with pytest.raises(ckptd.InvalidArgument, match="'embed.weight' and 'head.weight' are to share") as raised:
        ckptd.torch.load_into(on_meta(), path, **near)
    assert raised.value.reason == "LAYOUT_MISMATCH"
    model = on_meta()
    ckptd.torch.load_into(model, path, tied="first", **near)
    assert torch.equal(model.head.weight, state["embed.weight"])


def test_a_number_saved_in_shape_1_is_taken(daemons, path):
    save_file({**load_file(path), "steps": torch.tensor([5])}, path)
    model = on_meta()
    ckptd.torch.load_into(model, path, address=daemons.address(0), timeout=60)
    assert model.steps == 5 and model.steps.shape == ()


def test_load_into_casts(daemons, path):
    model = on_meta()
    ckptd.torch.load_into(model, path, dtype=torch.bfloat16, address=daemons.address(0), timeout=60)
    assert torch.equal(model.up.weight, values(path)["up.weight"].bfloat16()) and model.steps == 3


def test_files_are_opened_and_read_through_one_daemon(daemons, path):
    near = {"address": daemons.address(0), "timeout": 20}
    want = load_file(path)
    assert all(torch.equal(t, want[n]) for n, t in ckptd.torch.load_file(path, **near).items())
    with ckptd.safe_open(path, "pt", **near) as mine, safe_open(path, "pt") as theirs:
        assert all(torch.equal(mine.get_tensor(n), theirs.get_tensor(n)) for n in theirs.keys())
    lazy = ckptd.torch.load_state_dict(path, **near)
    assert all(torch.equal(t, want[n]) for n, t in lazy.items())
    with ckptd.connect(near["address"]) as client, client.acquire(client.load(path)) as shard:
        assert set(shard.tensors) == set(want)


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}])
def test_load_checkpoint_in_model_fills_a_model_as_accelerate_does(device_map, daemons, path):
    mine = Tied()
    theirs = copy.deepcopy(mine)
    accelerate.load_checkpoint_in_model(theirs, path, device_map=device_map)
    with ckptd.accelerate.patch(address=daemons.address(0), timeout=60):
        accelerate.load_checkpoint_in_model(mine, path, device_map=device_map)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], tensor), name


def test_a_state_dict_in_memory_is_placed(daemons, path):
    model = on_meta()
    ckptd.torch.DistModule(model, address=daemons.address(0), timeout=60).load_state_dict(values(path))
    assert_holds(model, path)


def test_from_pretrained_loads_as_without_the_patch(daemons, tmp_path):
    pytest.importorskip("transformers")
    from transformers_cases import Case, difference, facts_of
    case = Case("llama", "llama")
    path = case.save(tmp_path)
    native, _ = case.load(path, 1)
    with ckptd.patch(address=daemons.address(0), timeout=60):
        mine, _ = case.load(path, 1)
    assert difference(facts_of(native), facts_of(mine), "model") is None


def test_a_process_that_is_a_rank_is_told_of_the_wrong_number_as_before(daemons, path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ckptd.InvalidArgument, match="this group has 2"):
        ckptd.torch.load_into(on_meta(), path, address=daemons.address(0), timeout=60)


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}])
def test_the_native_way_is_open_past_daemons_of_another_job(device_map, daemons, path, monkeypatch):
    """In accelerate's functions as in transformers'."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    mine = Tied()
    with ckptd.accelerate.patch(address=daemons.address(0), timeout=60, fallback="native"):
        accelerate.load_checkpoint_in_model(mine, path, device_map=device_map)
    assert torch.equal(mine.up.weight, values(path)["up.weight"])
