"""What others hold of a model goes on to be the model's: objects, storages, graphs, wrappers, values."""

import gc

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


class Kept(nn.Module):
    """A buffer with a second name outside of what modules know of."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))
        self.weight = nn.Parameter(torch.ones(3))
        self.__dict__["same"] = self.table


class Flat(nn.Module):
    """Two parameters and a buffer, each a part of one storage."""

    def __init__(self):
        super().__init__()
        self.memory = torch.zeros(12)
        self.a = nn.Parameter(self.memory[:4])
        self.b = nn.Parameter(self.memory[4:10].view(2, 3))
        self.register_buffer("c", self.memory[8:12])


class Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.seen = torch.tensor([1])

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, value):
        self.seen = value


def state_of(model):
    return {name: value.detach().clone() + 5 for name, value in model.state_dict().items()}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_buffer_stays_the_object_that_it_was(make, device):
    state = state_of(Kept())
    with torch.device(device):
        model = Kept()
    make.load(model, state)
    assert model.same is model.table and torch.equal(model.same, state["table"])


def test_a_graph_over_an_old_buffer_refuses_to_run_backward(make):
    model = Kept()
    loss = (model.weight * model.table[:3] * model.table[3:]).sum()
    make.load(model, state_of(model))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_in_one_storage_stay_in_it_and_are_reported_copied(make):
    model = Flat()
    state = state_of(model)
    state["c"] = torch.arange(8.0, 12)
    result = make.load(model, state)
    assert torch.equal(model.memory[:4], state["a"]) and torch.equal(model.a, state["a"])
    assert torch.equal(model.memory[4:8], state["b"].flatten()[:4])
    # As by load_state_dict: the last one's are there where two overlap.
    assert torch.equal(model.memory[8:], state["c"]) and torch.equal(model.b[1, 1:], state["c"][:2])
    assert set(result.copied) == {"a", "b", "c"} and "storage with a" in result.copied["c"]


def test_parameters_in_one_storage_stay_tied_in_training(make):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data)
    state = {"0.weight": torch.full((2, 2), 3.0), "1.weight": torch.full((2, 2), 3.0)}
    make.load(model, state)
    with torch.no_grad():
        model[0].weight.add_(1)
    assert torch.equal(model[1].weight, state["1.weight"] + 1)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_sparse_buffer_has_no_storage_to_share(make, persistent):
    model = nn.Linear(2, 2)
    model.register_buffer("edges", torch.eye(3).to_sparse(), persistent=persistent)
    state = {**state_of(nn.Linear(2, 2)), **({"edges": torch.ones(3, 3)} if persistent else {})}
    make.load(model, state)
    assert torch.equal(model.weight, state["weight"]) and model.edges.is_sparse != persistent


def test_expanded_parameters_of_one_storage_which_cannot_be_written_get_their_own(make):
    model, one = nn.Module(), torch.zeros(1)
    model.a, model.b = nn.Parameter(one.expand(3)), nn.Parameter(one.expand(2, 2))
    state = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}
    make.load(model, state)
    assert torch.equal(model.a, state["a"]) and torch.equal(model.b, state["b"])


def test_what_was_loaded_once_is_not_taken_for_shared_storage(make):
    model = Kept()
    make.load(model, state_of(Kept()))
    assert make.load(model, state_of(Kept())).copied == {}


def test_tensors_in_one_storage_cannot_become_another_type(make):
    model = Flat()
    with pytest.raises(ckptd.Unimplemented, match="shares its storage") as caught:
        make.load(model, state_of(model), dtype=torch.bfloat16)
    assert caught.value.reason == "MODEL_UNSUPPORTED"
    assert model.a.dtype == torch.float32 and not model.memory.any()


def test_a_parameter_that_a_graph_holds_cannot_become_another_type(make):
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    loss = model(torch.ones(1, 2)).sum()
    with pytest.raises(ckptd.FailedPrecondition, match="a graph, holds it") as caught:
        make.load(model, state_of(model), dtype=torch.bfloat16)
    assert caught.value.reason == "MODEL_IN_USE"
    loss.backward()
    assert torch.equal(model.weight, before) and model.weight.grad is not None


@pytest.fixture
def alone(tmp_path):
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("device, dtype", [("meta", None), ("cpu", torch.bfloat16)])
def test_a_wrapper_that_would_miss_the_gradients_is_refused(make, alone, device, dtype):
    with torch.device(device):
        model = nn.Linear(2, 2)
    wrapped = DistributedDataParallel(model, init_sync=device != "meta")
    with pytest.raises(ckptd.FailedPrecondition, match="DistributedDataParallel") as caught:
        make.load(wrapped, state_of(nn.Linear(2, 2)), dtype=dtype)
    assert caught.value.reason == "MODEL_IN_USE"
    assert model.weight.device.type == device


def test_a_wrapped_model_in_its_own_type_is_filled(make, alone):
    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    state = state_of(nn.Linear(2, 2))
    make.load(wrapped, state)
    assert torch.equal(wrapped.module.weight, state["weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_is_given_the_value_of_its_own_that_the_checkpoint_has(make, strict):
    model = nn.Sequential(Extra())
    state = {**state_of(model), "0._extra_state": torch.tensor([3, 4])}
    result = make.load(model, state, strict=strict)
    assert torch.equal(model[0].seen, torch.tensor([3, 4]))
    assert (result.missing, result.unexpected) == ([], [])
    model[0].seen += 1  # it is the module's, not the daemon's
    make.load(model, state)
    assert torch.equal(model[0].seen, torch.tensor([3, 4]))


def test_a_module_s_own_value_is_no_memory_of_the_daemon_s(make, daemon):
    model = Extra()
    make.load(model, {**state_of(model), "_extra_state": torch.tensor([3, 4])})
    seen = model.seen
    del model
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)
    assert torch.equal(seen, torch.tensor([3, 4]))


def test_a_value_of_a_module_s_own_that_the_checkpoint_lacks_is_missing_as_with_torch(make):
    model = Extra()
    state = state_of(model)
    del state["_extra_state"]
    with pytest.raises(RuntimeError, match="_extra_state"):
        Extra().load_state_dict(state)
    with pytest.raises(ckptd.Error, match="_extra_state"):
        make.load(model, state)
    assert make.load(model, state, strict=False).missing == ["_extra_state"]
    assert torch.equal(model.seen, torch.tensor([1]))


def test_a_module_s_own_value_is_read_where_a_path_is_spread(make, daemon):
    model = Extra()
    path = make.save({**state_of(model), "_extra_state": torch.tensor([7])})
    ckptd.torch.set_model_state_dict(model, path, address=daemon.path)
    assert torch.equal(model.seen, torch.tensor([7]))


def test_a_state_dict_that_is_spread_in_inference_mode_can_be_trained(make, daemon):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    path = make.save(state_of(model))
    with torch.inference_mode():
        ckptd.torch.set_model_state_dict(model, path, address=daemon.path)
    model(torch.ones(2, 2)).sum().backward()
    assert model[1].num_batches_tracked == 6 and model[0].weight.grad is not None


def test_a_buffer_of_a_type_that_checkpoints_lack_is_none_of_theirs_unless_it_is_saved(make):
    model = nn.Linear(2, 2)
    state = state_of(model)
    model.register_buffer("turns", torch.empty(2, dtype=torch.bits2x4), persistent=False)
    make.load(model, state)
    assert torch.equal(model.weight, state["weight"])
    model.register_buffer("turns", torch.empty(2, dtype=torch.bits2x4))
    with pytest.raises(ckptd.Unimplemented, match="turns: it is torch.bits2x4"):
        make.load(model, state)


@pytest.mark.parametrize("dtype", ["fp16", "F4", torch.int8, "I64"])
def test_a_type_that_weights_are_not_cast_to_is_refused_with_those_they_are(make, dtype):
    with pytest.raises(ckptd.InvalidArgument, match="can be cast to torch.float16, torch.bfloat16"):
        make.load(nn.Linear(2, 2), state_of(nn.Linear(2, 2)), dtype=dtype)
