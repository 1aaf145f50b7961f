"""load_into and load_file on models that are not sharded: one process, no process group."""

import gc

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from fsdp_bench import (  # noqa: E402
    Net,
    assert_in_daemon_memory,
    equal_to,
    init_buffers,
    numbers,
    on_meta,
)
from torch import nn  # noqa: E402


def test_a_model_on_meta_gets_the_checkpoint_s_bytes(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    assert equal_to(model, state)


@pytest.mark.parametrize("model", ["/models/m.safetensors", None])
def test_what_is_no_model_is_refused_with_the_order_of_the_arguments(model):
    kind = type(model).__name__
    with pytest.raises(TypeError, match=rf"type {kind}, no torch.nn.Module.*load_into\(model, path\)"):
        ckptd.torch.load_into(model, on_meta())


@pytest.mark.parametrize("source, kind, advice", [
    (None, "NoneType", r"pass the path"),
    (["a.safetensors", "b.safetensors"], "list", r"pass the folder that holds them"),
    ({"weight": torch.ones(1)}, "dict", r"set_model_state_dict"),
    (ckptd.torch.LazyStateDict({}), "LazyStateDict", r"set_model_state_dict"),
    (torch.optim.SGD([torch.zeros(1)]), "SGD", r"load_training_state\(model, optimizer, path\)"),
    (3, "int", r"pass the path"),
])
def test_what_is_no_path_is_refused_with_what_takes_it(source, kind, advice):
    with pytest.raises(TypeError, match=f"filling a model: .* is of type {kind}, no path; .*{advice}"):
        ckptd.torch.load_into(nn.Linear(1, 1), source)


def test_every_tensor_lies_in_the_daemon_s_memory(make):
    model = on_meta()
    make.load(model, numbers(Net()))
    assert_in_daemon_memory(model, skip=("freq",))


def test_nothing_is_reported_copied(make):
    assert make.load(on_meta(), numbers(Net())).copied == {}


def test_a_model_that_was_loaded_in_inference_mode_can_be_trained(make):
    model = on_meta()
    with torch.inference_mode():
        make.load(model, numbers(Net()))
    model(torch.arange(6)).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_every_parameter_has_a_storage_of_its_own(make):
    model = on_meta()
    make.load(model, numbers(Net()))
    pointers = [p.untyped_storage().data_ptr() for p in model.parameters()]
    assert len(set(pointers)) == len(pointers)


def test_a_real_model_is_filled_in_place_too(make):
    model, state = Net(), numbers(Net())
    make.load(model, state)
    assert equal_to(model, state)
    assert_in_daemon_memory(model, skip=("freq",))


def test_an_optimizer_built_before_the_load_trains_the_model(make):
    model, state = on_meta(), numbers(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    make.load(model, state)
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.up.weight, state["up.weight"])


def test_training_leaves_the_daemon_s_weights_as_they_are(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    with torch.no_grad():
        model.up.weight.zero_()
    again = on_meta()
    make.load(again, state)
    assert torch.equal(again.up.weight, state["up.weight"])


def test_a_second_load_goes_back_to_the_checkpoint(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    parameter = model.up.weight
    with torch.no_grad():
        parameter.zero_()
    make.load(model, state)
    assert model.up.weight is parameter and torch.equal(parameter, state["up.weight"])


def test_a_second_load_finds_the_checkpoint_resident(make, daemon):
    path = make.save(numbers(Net()))
    options = {"address": daemon.path, "init_buffers": init_buffers}
    first = ckptd.torch.load_into(on_meta(), path, **options)
    second = ckptd.torch.load_into(on_meta(), path, **options)
    assert (first.resident, second.resident, first.checkpoint) == (False, True, second.checkpoint)


def test_tied_weights_stay_one_parameter(make):
    model = on_meta(lambda: Net(tied=True))
    make.load(model, numbers(Net(tied=True)))
    assert model.head.weight is model.embed.weight


def test_tied_weights_are_asked_for_once(make, daemon):
    make.load(on_meta(lambda: Net(tied=True)), numbers(Net(tied=True)))
    layout = daemon.requests[0].spec.layout.rank_layout
    assert "head.weight" not in layout.names and list(layout.alias_names) == ["head.weight"]


def test_backward_over_exchanged_weights_is_refused_by_torch(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    loss = model(torch.arange(4)).square().sum()
    make.load(model, state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_survives_a_second_load(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    model(torch.arange(4)).sum().backward()
    gradient = model.up.weight.grad.clone()
    make.load(model, state)
    assert torch.equal(model.up.weight.grad, gradient)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_registered_before_the_load_are_called(make, register):
    model, seen = on_meta(), []
    getattr(model.up.weight, register)(lambda tensor: seen.append(tensor.shape))
    make.load(model, numbers(Net()))
    model(torch.arange(4)).sum().backward()
    assert seen == [(12, 8)]


def test_parameters_keep_whether_they_are_trainable(make):
    model = on_meta()
    model.up.requires_grad_(False)
    make.load(model, numbers(Net()))
    assert (model.up.weight.requires_grad, model.down.weight.requires_grad) == (False, True)


def test_the_memory_outlives_result_and_client(make, daemon):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 1)
    assert equal_to(model, state)


def test_the_lease_ends_with_the_model(make, daemon):
    model = on_meta()
    make.load(model, numbers(Net()))
    daemon.wait_for(lambda: daemon.leases == 1)
    del model
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)


def test_a_loaded_model_survives_deepcopy(make):
    import copy

    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.up.weight.zero_()
    assert equal_to(model, state)


def test_the_model_s_dtype_is_what_is_asked_for(make):
    model, state = on_meta(), numbers(Net(), torch.bfloat16)
    make.load(model, state)
    assert torch.equal(model.up.weight, state["up.weight"].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "BF16"])
def test_dtype_changes_floating_parameters_only(make, dtype):
    model, state = on_meta(), numbers(Net())
    make.load(model, state, dtype=dtype)
    assert (
        torch.equal(model.up.weight, state["up.weight"].bfloat16())
        and model.steps.dtype == torch.int64
    )


def test_a_dtype_nothing_can_be_cast_to_is_refused(make):
    with pytest.raises(ckptd.InvalidArgument, match="bfloat16"):
        make.load(on_meta(), numbers(Net()), dtype=torch.int8)
    with pytest.raises(ckptd.InvalidArgument, match="float7"):
        make.load(on_meta(), numbers(Net()), dtype="float7")


# -- modes --------------------------------------------------------------------


def test_auto_is_private(make):
    assert make.load(on_meta(), numbers(Net())).mode == "private"


def test_shared_memory_is_refused_for_trainable_parameters(make):
    with pytest.raises(ckptd.InvalidArgument, match=r"requires_grad_\(False\)"):
        make.load(on_meta(), numbers(Net()), mode="shared")


def test_shared_memory_serves_a_frozen_model(make):
    model, state = on_meta(), numbers(Net())
    model.requires_grad_(False)
    assert make.load(model, state, mode="shared").mode == "shared"
    assert equal_to(model, state)


def test_exclusive_memory_is_asked_for_at_the_load(make, daemon):
    make.load(on_meta(), numbers(Net()), mode="exclusive")
    assert daemon.requests[0].spec.intended_mode == 3


# -- tensors that cannot be filled in place -----------------------------------


def test_another_memory_order_stays_and_so_does_the_parameter(make):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weight, pointer = model.weight, model.weight.data_ptr()
    state = {"weight": torch.randn(4, 3, 3, 3), "bias": torch.randn(4)}
    result = make.load(model, state)
    assert "row-major" in result.copied["weight"] and result.replaced == {}
    assert model.weight is weight and weight.data_ptr() == pointer
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, state["weight"]) and weight.requires_grad


def test_another_memory_order_on_meta_goes_by_torch_s_own_path_and_is_reported(make):
    with torch.device("meta"):
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    state = {"weight": torch.randn(4, 3, 3, 3), "bias": torch.randn(4)}
    result = make.load(model, state)
    assert "row-major" in result.replaced["weight"] and torch.equal(model.weight, state["weight"])


def test_a_model_that_was_built_in_inference_mode_is_filled(make):
    with torch.inference_mode():
        model = Net()
    state = numbers(Net())
    make.load(model, state)
    assert equal_to(model, state)


def test_torch_s_default_device_is_not_where_the_daemon_s_memory_is(make):
    model, state = Net(), numbers(Net())
    state["empty"] = torch.empty(0)
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    with torch.device("meta"):
        make.load(model, state)
    assert model.empty.device.type == "cpu"
    assert equal_to(model, state)


class Marked(torch.Tensor):
    pass


def with_buffer(buffer):
    model = nn.Module()
    model.register_buffer("table", buffer)
    return model


@pytest.mark.parametrize(
    "buffer",
    [torch.zeros(4).as_subclass(Marked), torch.zeros(4).requires_grad_(), nn.Parameter(torch.zeros(4))],
    ids=["subclass", "requires grad", "parameter"],
)
def test_a_buffer_with_ways_of_its_own_keeps_them(make, buffer):
    model = with_buffer(buffer)
    kind, learns = type(buffer), buffer.requires_grad
    result = make.load(model, {"table": torch.arange(4.0)})
    assert model.table is buffer and type(model.table) is kind and model.table.requires_grad == learns
    assert model.table.tolist() == [0, 1, 2, 3] and "table" in result.copied


def test_a_buffer_of_a_subclass_on_meta_is_refused_by_name(make):
    model = with_buffer(torch.zeros(4, device="meta").as_subclass(Marked))
    with pytest.raises(ckptd.FailedPrecondition, match="table: it is a Marked"):
        make.load(model, {"table": torch.arange(4.0)})


def test_a_parameter_subclass_is_refused_by_name(make):
    class Packed(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Packed(torch.ones(2, 2))
    with pytest.raises(ckptd.FailedPrecondition, match="weight: it is a Packed"):
        make.load(model, {"weight": torch.ones(2, 2), "bias": torch.ones(2)})


def test_without_the_private_exchange_the_public_path_is_taken(make, monkeypatch):
    monkeypatch.delattr(torch._C, "_swap_tensor_impl")
    model, state = on_meta(), numbers(Net())
    result = make.load(model, state)
    assert "up.weight" in result.replaced and equal_to(model, state)
    assert_in_daemon_memory(model, skip=("freq",))


def old_norm():
    """A batch norm, and a state dict from before there were counts."""
    state = numbers(nn.Sequential(nn.BatchNorm1d(4)))
    del state["0.num_batches_tracked"]
    return nn.Sequential(nn.BatchNorm1d(4)), state


@pytest.mark.parametrize("strict", [True, False])
def test_a_count_of_batches_that_the_checkpoint_lacks_is_kept_or_starts_at_zero_as_with_torch(make, strict):
    (model, state), (theirs, _) = old_norm(), old_norm()
    model[0].num_batches_tracked.fill_(7)
    theirs[0].num_batches_tracked.fill_(7)
    torch.nn.Module.load_state_dict(theirs, state)
    fresh = on_meta(lambda: old_norm()[0])
    for filled, count in ((model, theirs[0].num_batches_tracked), (fresh, torch.tensor(0))):
        result = make.load(filled, state, strict=strict, init_buffers=None)
        assert result.missing == [] and equal_to(filled, state)
        assert torch.equal(filled[0].num_batches_tracked, count)


def test_a_count_of_batches_that_the_checkpoint_has_is_loaded(make):
    state = numbers(nn.Sequential(nn.BatchNorm1d(4)))
    for model in (old_norm()[0], on_meta(lambda: old_norm()[0])):
        make.load(model, state, init_buffers=None)
        assert torch.equal(model[0].num_batches_tracked, state["0.num_batches_tracked"])


class Pretrained(nn.Module):
    """Initialises its batch norm without asking whether it has values."""

    config = None

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("made", torch.zeros(2), persistent=False)
        self.norm.register_buffer("made", torch.zeros(2), persistent=False)

    def _init_weights(self, module):
        for buffer in (getattr(module, "made", None),):
            if buffer is not None:
                buffer.fill_(3)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.constant_(module.weight, 1)
            nn.init.zeros_(module.bias)
            module.running_mean.zero_()


def test_a_model_that_computes_its_buffers_anew_keeps_what_was_loaded(make):
    state, model = numbers(Pretrained()), on_meta(Pretrained)
    del state["norm.num_batches_tracked"]
    make.load(model, state, init_buffers=None)
    assert equal_to(model, state)
    assert model.made.tolist() == model.norm.made.tolist() == [3, 3]
    assert model.norm.num_batches_tracked == 0


@pytest.mark.parametrize("count", [torch.tensor([1, 2]), torch.tensor([[9]])])
def test_a_count_of_batches_of_another_shape_is_refused(make, count):
    model, state = old_norm()
    with pytest.raises(ckptd.InvalidArgument, match=r"0.num_batches_tracked.*in shape \[[12]"):
        make.load(model, {**state, "0.num_batches_tracked": count})


def test_a_count_that_two_norms_share_is_there_under_either_name(make):
    def build():
        model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
        model[1].num_batches_tracked = model[0].num_batches_tracked
        return model

    state = numbers(build())
    state["1.num_batches_tracked"] = state["0.num_batches_tracked"].clone()
    for lacks in ((), ("0.num_batches_tracked",), ("1.num_batches_tracked",)):
        model = on_meta(build)
        make.load(model, {name: value for name, value in state.items() if name not in lacks}, init_buffers=None)
        assert model[0].num_batches_tracked is model[1].num_batches_tracked
        assert torch.equal(model[0].num_batches_tracked, state["0.num_batches_tracked"])


def test_only_counts_that_torch_forgives_may_be_missing(make):
    shared, frozen = nn.Sequential(nn.BatchNorm1d(4)), nn.Sequential(nn.BatchNorm1d(4))
    shared.register_buffer("steps", shared[0].num_batches_tracked)
    frozen[0].track_running_stats = False
    for model in (shared, frozen):
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict(old_norm()[1])
        with pytest.raises(ckptd.NotFound, match="num_batches_tracked|steps"):
            make.load(model, old_norm()[1])


def test_a_model_on_another_device_is_refused(make, monkeypatch):
    from ckptd.torch.compat import _checkpoint_names
    from ckptd.torch.load import _load_into, _targets

    targets = _load_into.list_targets(_checkpoint_names.modules_of(on_meta()))
    elsewhere = _targets.Arrangement(None, None, torch.device("xpu", 0))
    monkeypatch.setattr(targets[0], "arrangement", elsewhere)
    with pytest.raises(ckptd.Unimplemented, match="belongs on"):
        _load_into._check_devices(targets)
