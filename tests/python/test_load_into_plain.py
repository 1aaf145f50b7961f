"""load_into and load_file on models that are not sharded: one process, no process group."""

import gc

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from ckptd.torch import _fsdp  # noqa: E402
from fsdp_cases import Net, assert_in_daemon_memory, init_buffers, numbers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def make(tmp_path, daemon):
    """Saves tensors and loads them into a model."""

    class Maker:
        def save(self, tensors, name="m.safetensors"):
            save_file(tensors, str(tmp_path / name))
            return str(tmp_path / name)

        def load(self, model, tensors, name="m.safetensors", **options):
            options.setdefault("init_buffers", init_buffers)
            return ckptd.torch.load_into(model, self.save(tensors, name), address=daemon.path, **options)

    return Maker()


def on_meta(build=Net):
    with torch.device("meta"):
        return build()


def equal_to(model, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items() if name in state)


def test_a_model_on_meta_gets_the_checkpoint_s_bytes(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    assert equal_to(model, state)


def test_every_tensor_lies_in_the_daemon_s_memory(make):
    model = on_meta()
    make.load(model, numbers(Net()))
    assert_in_daemon_memory(model, skip=("freq",))


def test_nothing_is_reported_copied(make):
    assert make.load(on_meta(), numbers(Net())).copied == {}


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
    layout = daemon.requests[0].layout.rank_layout
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


def test_dtype_changes_floating_parameters_only(make):
    model, state = on_meta(), numbers(Net())
    make.load(model, state, dtype=torch.bfloat16)
    assert torch.equal(model.up.weight, state["up.weight"].bfloat16()) and model.steps.dtype == torch.int64


def test_a_dtype_nothing_can_be_cast_to_is_refused(make):
    with pytest.raises(ckptd.InvalidArgument, match="bfloat16"):
        make.load(on_meta(), numbers(Net()), dtype=torch.int8)


# -- names --------------------------------------------------------------------


def test_missing_names_are_an_error_that_names_them(make):
    state = numbers(Net())
    del state["up.bias"]
    with pytest.raises(ckptd.NotFound, match="lacks 1 tensors of the model .up.bias.*strict=False"):
        make.load(on_meta(), state)


def test_unexpected_names_are_an_error_that_names_them(make):
    with pytest.raises(ckptd.InvalidArgument, match="has 1 the model has not .extra"):
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


def test_a_rank_that_cannot_see_the_files_loads_with_a_warning(make, daemon, monkeypatch):
    from fake_daemon import Refusal

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    daemon.rank, daemon.world_size = 1, 2
    daemon.fail_next["InspectCheckpoint"] = [Refusal(5, "SOURCE_NOT_FOUND", "no such file here")]
    model, state = on_meta(), numbers(Net())
    with pytest.warns(UserWarning, match="rank 1 cannot see"):
        make.load(model, state)
    assert equal_to(model, state)


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
    assert daemon.requests[0].intended_mode == 3


# -- tensors that cannot be filled in place -----------------------------------


def test_another_memory_order_goes_by_torch_s_own_path_and_is_reported(make):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    state = {"weight": torch.randn(4, 3, 3, 3), "bias": torch.randn(4)}
    result = make.load(model, state)
    assert "row-major" in result.replaced["weight"] and torch.equal(model.weight, state["weight"])


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


def test_a_model_on_another_device_is_refused(make, monkeypatch):
    from ckptd.torch import _load

    class Elsewhere:
        type = "cuda"

    model = on_meta()
    targets = [t for t in _load._targets.collect(model, _fsdp.Groups(model))]
    monkeypatch.setattr(targets[0], "tensor", type("T", (), {"device": Elsewhere()})())
    with pytest.raises(ckptd.Unimplemented, match="belongs on cuda"):
        _load._check_devices(targets)


# -- buffers no checkpoint holds ----------------------------------------------


def test_buffers_left_on_meta_are_an_error_that_names_them(make):
    with pytest.raises(ckptd.FailedPrecondition, match=r"\(freq\); pass init_buffers="):
        make.load(on_meta(), numbers(Net()), init_buffers=None)


def test_buffers_nobody_filled_are_not_left_with_arbitrary_values(make):
    model = on_meta()
    with pytest.raises(ckptd.FailedPrecondition):
        make.load(model, numbers(Net()), init_buffers=lambda m, names: None)
    assert model.freq.is_meta


def test_a_buffer_may_be_filled_in_place(make):
    model = on_meta()
    assert make.load(model, numbers(Net())).made == ["freq"]
    assert torch.equal(model.freq, torch.arange(8.0))


def test_a_buffer_that_two_modules_share_stays_one(make):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Module(), nn.Module()
            self.first.register_buffer("table", torch.zeros(3))
            self.second.register_buffer("table", self.first.table)

    model = on_meta(Pair)
    make.load(model, {"first.table": torch.arange(3.0)})
    assert model.second.table is model.first.table and model.first.table.tolist() == [0, 1, 2]


def test_a_buffer_may_be_replaced(make):
    def replace(model, names):
        model.freq = torch.full((8,), 2.0)
    model = on_meta()
    make.load(model, numbers(Net()), init_buffers=replace)
    assert torch.equal(model.freq, torch.full((8,), 2.0))


def test_a_real_non_persistent_buffer_is_left_alone(make):
    model = Net()
    model.freq.fill_(9)
    make.load(model, numbers(Net()))
    assert torch.equal(model.freq, torch.full((8,), 9.0))


def test_a_non_persistent_buffer_in_the_checkpoint_fills_one_on_meta(make):
    model = on_meta()
    make.load(model, {**numbers(Net()), "freq": torch.full((8,), 4.0)}, init_buffers=None)
    assert torch.equal(model.freq, torch.full((8,), 4.0))


class Rotary(nn.Module):
    """As transformers has it: frequencies that only _init_weights can compute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", torch.zeros(4), persistent=False)


class Pretrained(nn.Module):
    config = object()

    def __init__(self):
        super().__init__()
        self.rotary = Rotary()
        self.proj = nn.Linear(2, 2)
        self.touched = []

    def _init_weights(self, module):
        self.touched.append(type(module).__name__)
        for parameter in module.parameters():
            if not getattr(parameter, "_is_hf_initialized", False):
                parameter.fill_(float("nan"))
        if isinstance(module, Rotary):
            module.inv_freq.copy_(torch.tensor([1.0, 0.5, 0.25, 0.125]))


def test_a_hugging_face_model_computes_its_own_buffers(make):
    model = on_meta(Pretrained)
    result = make.load(model, numbers(Pretrained()), init_buffers=None)
    assert result.made == ["rotary.inv_freq"] and model.rotary.inv_freq.tolist() == [1.0, 0.5, 0.25, 0.125]


def test_a_hugging_face_model_initialises_only_modules_with_open_buffers(make):
    model = on_meta(Pretrained)
    make.load(model, numbers(Pretrained()), init_buffers=None)
    assert model.touched == ["Rotary"]


def test_a_hugging_face_model_that_does_not_fill_them_is_an_error(make, monkeypatch):
    monkeypatch.setattr(Pretrained, "_init_weights", lambda self, module: None)
    with pytest.raises(ckptd.FailedPrecondition, match="rotary.inv_freq"):
        make.load(on_meta(Pretrained), numbers(Pretrained()), init_buffers=None)


# -- load_file ----------------------------------------------------------------


def test_load_file_gives_every_tensor(make, daemon):
    state = numbers(Net())
    loaded = ckptd.torch.load_file(make.save(state), address=daemon.path)
    assert loaded.keys() == state.keys() and all(torch.equal(loaded[n], state[n]) for n in state)


def test_load_file_s_tensors_may_be_written(make, daemon):
    path = make.save(numbers(Net()))
    first = ckptd.torch.load_file(path, address=daemon.path)
    first["up.weight"].zero_()
    assert not torch.equal(ckptd.torch.load_file(path, address=daemon.path)["up.weight"], first["up.weight"])


def test_load_file_s_tensors_keep_the_memory(make, daemon):
    state = numbers(Net())
    weight = ckptd.torch.load_file(make.save(state), address=daemon.path)["up.weight"]
    gc.collect()
    assert torch.equal(weight, state["up.weight"])


def test_load_file_carries_scalars_and_empty_tensors(make, daemon):
    state = {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "fp8": torch.ones(8).to(torch.float8_e4m3fn)}
    loaded = ckptd.torch.load_file(make.save(state), address=daemon.path)
    assert loaded["scalar"].item() == 3.5 and loaded["empty"].shape == (0, 4)
    assert torch.equal(loaded["fp8"].view(torch.uint8), state["fp8"].view(torch.uint8))


def test_load_file_to_another_device_is_refused(make, daemon):
    with pytest.raises(ckptd.Unimplemented, match="cuda"):
        ckptd.torch.load_file(make.save(numbers(Net())), "cuda", address=daemon.path)
