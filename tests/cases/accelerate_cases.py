"""Cases of load_state_dict, fsdp2_prepare_model, the optimizer's switch and patch().

accelerate makes no FSDP accelerator without a GPU, so the cases give its own methods one
that says what such a one says; plugin, wrapping and functions are accelerate's.
"""

import os

import accelerate.utils
import accelerate.utils.fsdp_utils
import accelerate.utils.modeling
import ckptd
import ckptd.accelerate
import ckptd.torch
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import fsdp_utils
from fsdp_bench import numbers
from safetensors.torch import save_file
from spread_bench import (
    Bare,
    accelerates,
    assert_equal,
    assert_same_bytes,
    assert_trains_alike,
    fails,
    losses,
    only_on_first,
    sharded,
    storage_bytes_of,
)
from torch import nn
from torch.distributed.checkpoint import state_dict as torch_state_dict
from torch.distributed.tensor import DTensor

RAM = "FSDP_CPU_RAM_EFFICIENT_LOADING"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Layers, an embedding that the head shares, and a buffer that no state dict has."""

    _no_split_modules = ["Block"]

    def __init__(self, width=8, tied=True):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 11, bias=False)
        self.tied = tied
        self.rotary = nn.Module()
        self.rotary.register_buffer("freq", torch.arange(float(width)), persistent=False)
        self.tie_weights()

    def tie_weights(self):
        if self.tied:
            self.head.weight = self.embed.weight

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def forward(self, tokens):
        x = self.embed(tokens) + self.rotary.freq
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class OnTheHost(Accelerator):
    """An FSDP2 accelerator of a gloo group."""

    def __init__(self, rank, precision="no", **plugin):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # asked for, though the group is there
        os.environ.setdefault("MASTER_PORT", "1")
        PartialState(cpu=True)
        plugin = {"cpu_ram_efficient_loading": True, "auto_wrap_policy": "transformer_based_wrap", **plugin}
        self.rank, self.precision, self._models = rank, precision, []

        class State:
            fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, **plugin)

            class dynamo_plugin:
                backend = accelerate.utils.DynamoBackend.NO

        self.state = State

    def _prepare_one(self, obj, first_pass=False):
        return obj  # a wrapper of optimizers that needs more of an accelerator

    fp8_backend = None
    device = torch.device("cpu")
    torch_device_mesh = None
    is_main_process = property(lambda self: self.rank == 0)
    mixed_precision = property(lambda self: self.precision)


def loaded(bench, state, build=Stack):
    """What every rank has before accelerate prepares it: rank 0 the weights, others whatever."""
    torch.manual_seed(bench.rank)
    model = build()
    if bench.rank == 0:
        model.load_state_dict(state)
    return model


def states(build=Stack, dtype=None):
    state = numbers(build(), dtype)
    state["head.weight"] = state["embed.weight"]
    return state


def assert_same_model(mine, theirs):
    assert_equal(mine, theirs, "after it was prepared")
    for (name, a), (_, b) in zip(mine.named_buffers(), theirs.named_buffers()):
        assert torch.equal(a, b), name
    names = [[n for n, m in model.named_modules() if type(m).__name__.startswith("FSDP")] for model in (mine, theirs)]
    assert names[0] == names[1], names


def a_model_is_prepared_as_by_accelerate(bench):
    for precision in ("no", "bf16"):
        state = states()
        theirs, mine = loaded(bench, state), loaded(bench, state)
        accelerator = OnTheHost(bench.rank, precision)
        fsdp_utils.fsdp2_prepare_model(accelerator, theirs)
        loading = fsdp_utils.fsdp2_load_full_state_dict
        assert ckptd.accelerate.fsdp2_prepare_model(accelerator, mine, address=bench.address) is mine
        assert fsdp_utils.fsdp2_load_full_state_dict is loading
        assert_same_model(mine, theirs)
        assert_trains_alike(mine, theirs)
        assert ckptd.accelerate.fsdp2_prepare_model(accelerator, mine, address="/nowhere/x") is mine


def a_model_on_meta_is_prepared_from_a_file_by_every_rank(bench):
    state = states(dtype=torch.bfloat16)
    theirs = loaded(bench, state, lambda: Stack().to(torch.bfloat16))
    theirs.rotary.freq = torch.arange(8.0)
    accelerator = OnTheHost(bench.rank, "bf16")
    fsdp_utils.fsdp2_prepare_model(accelerator, theirs)
    with torch.device("meta"):
        mine = Stack().to(torch.bfloat16)
    mine.rotary.freq = mine.rotary.freq.float()

    def buffers(model, names):
        assert names == ["rotary.freq"]
        model.rotary.freq.copy_(torch.arange(8.0))

    path = bench.save({k: v for k, v in state.items() if k != "head.weight"})
    ckptd.torch.fsdp2_prepare_model(
        accelerator, mine, source=path, init_buffers=buffers, address=bench.address
    )
    assert mine.layers[0].up.weight.dtype == torch.float32, "it was upcast"
    assert_same_model(mine, theirs)
    assert_trains_alike(mine, theirs)


def without_ram_efficient_loading_nothing_is_spread(bench):
    accelerator = OnTheHost(bench.rank, cpu_ram_efficient_loading=False)
    state = states()
    theirs, mine = (loaded(bench, state) for _ in range(2))
    for model in (theirs, mine):  # each rank has the weights itself
        model.load_state_dict(state)
    fsdp_utils.fsdp2_prepare_model(accelerator, theirs)
    ckptd.torch.fsdp2_prepare_model(accelerator, mine, address="/nowhere/x.sock")
    assert_same_model(mine, theirs)
    with fails(ckptd.InvalidArgument, "enable_fsdp_ram_efficient_loading"):
        ckptd.torch.fsdp2_prepare_model(accelerator, Stack(), source="/a/path")


def accelerate_prepares_model_and_optimizer_under_the_patch(bench):
    state, results = states(), []
    for patched in (False, True):
        accelerator = OnTheHost(bench.rank)
        model = loaded(bench, state)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if patched:
            with ckptd.accelerate.patch(address=bench.address):
                model, optimizer = accelerator._prepare_fsdp2(model, optimizer)
        else:
            model, optimizer = accelerator._prepare_fsdp2(model, optimizer)
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert held == [id(p) for p in model.parameters()]
        results.append((model, train(model, optimizer)))
    assert results[0][1] == results[1][1], "losses differ"
    assert_same_model(results[1][0], results[0][0])


def train(model, optimizer):
    found = []
    for step in range(5):
        loss = model(torch.arange(6).add(step).remainder(11)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def an_optimizer_goes_on_with_the_sharded_parameters(bench):
    for switch in (fsdp_utils.fsdp2_switch_optimizer_parameters, ckptd.torch.fsdp2_switch_optimizer_parameters):
        first, second = (nn.Linear(3, 2) for _ in range(2))
        optimizer = torch.optim.SGD([{"params": first.weight, "lr": 1.0}, {"params": first.bias}], lr=0.1)
        mapping = {p.data_ptr(): other for p, other in zip(first.parameters(), second.parameters())}
        for group in optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                group["params"][i] = torch.empty(1)
                group["params"][i].data_ptr = p.data_ptr()
        assert switch(optimizer, mapping) is None
        assert [g["params"] for g in optimizer.param_groups] == [[second.weight], [second.bias]]
        assert [g["lr"] for g in optimizer.param_groups] == [1.0, 0.1]


def a_parameter_without_a_sharded_one_is_a_key_error(bench):
    for switch in (fsdp_utils.fsdp2_switch_optimizer_parameters, ckptd.torch.fsdp2_switch_optimizer_parameters):
        module = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for group in optimizer.param_groups:
            group["params"] = [torch.empty(1) for _ in group["params"]]
            for p in group["params"]:
                p.data_ptr = 8
        with fails(KeyError, "sharded version" if switch is fsdp_utils.fsdp2_switch_optimizer_parameters else "none"):
            switch(optimizer, {})
    with torch.device("meta"):
        module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with fails(KeyError, "on meta"):  # accelerate's would go on with the last one, for all
        ckptd.torch.fsdp2_switch_optimizer_parameters(optimizer, {0: nn.Linear(2, 2).weight})
    assert optimizer.param_groups[0]["params"] == list(module.parameters())


# -- load_state_dict -----------------------------------------------------------


def written(bench, state, metadata):
    path = os.path.join(bench.folder, f"{bench.case}-{bench.saved}.safetensors")
    bench.saved += 1
    if bench.rank == 0:
        save_file(state, path, metadata=metadata)
    dist.barrier()
    return path


def a_file_is_a_dict_on_rank_0_and_nothing_elsewhere(bench):
    state = {**numbers(Bare()), "half": torch.randn(3, 5).to(torch.bfloat16), "flag": torch.tensor([True, False]),
             "one": torch.tensor(3)}
    path = written(bench, state, {"format": "pt"})
    mine = ckptd.torch.load_state_dict(path, address=bench.address)
    if bench.rank != 0:
        assert mine == {}
    else:
        theirs = accelerate.utils.modeling.load_state_dict(path)
        assert list(mine) == list(theirs) and len(mine) == len(theirs) and isinstance(mine, dict)
        for name, value in mine.items():
            assert_same_bytes(value, theirs[name], name)
            assert_same_bytes(mine[name], theirs[name], name)
            assert value.requires_grad == theirs[name].requires_grad
        value.fill_(1)  # its own, as a tensor that was read
        theirs[name].fill_(1)
        assert torch.equal(mine[name], theirs[name])
        with fails(KeyError, "nothing"):
            mine["nothing"]
    dist.barrier()


def a_folder_is_read_by_accelerate_where_that_was_allowed(bench):
    state = numbers(Bare())
    folder = bench.save_shards(state)
    for path in (folder, os.path.join(folder, "model.safetensors.index.json")):
        for devices in (None, {"": "cpu"}, {"up": "cpu", "head": "disk"}):
            mine = ckptd.torch.load_state_dict(
                path, devices, every_rank=True, address="/nowhere/x.sock", fallback="native")
            assert sorted(mine) == sorted(state)
            assert all(torch.equal(value, state[name]) for name, value in mine.items())


def names_of_a_lazy_dict_change_without_reading(bench):
    state = numbers(Bare())
    path = written(bench, state, {"format": "pt"})
    lazy = ckptd.torch.load_state_dict(path, every_rank=True, address=bench.address)
    other = ckptd.torch.LazyStateDict({"kept": torch.ones(2)}, address=bench.address)
    other.update(lazy)
    other["up.bias"] = torch.full((12,), 5.0)
    del other["head.weight"]
    assert len(other) == len(state) and "head.weight" not in other
    assert storage_bytes_of(bench, path) == 0
    dist.barrier()
    if bench.rank == 0:
        assert torch.equal(other["up.bias"], torch.full((12,), 5.0)) and torch.equal(other["up.weight"], state["up.weight"])
    dist.barrier()
    mine = sharded(Bare)
    other["head.weight"] = state["head.weight"]
    ckptd.torch.set_model_state_dict(
        mine, other if bench.rank == 0 else {}, address=bench.address,
        options=torch_state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False))
    assert_same_bytes(mine.up.bias.full_tensor(), torch.full((12,), 5.0), "replaced")
    assert_same_bytes(mine.up.weight.full_tensor(), state["up.weight"], "from the file")
    assert_same_bytes(mine.head.weight.full_tensor(), state["head.weight"], "from memory")


def files_of_other_formats_are_refused_as_by_accelerate(bench):
    state = {"a": torch.ones(2)}
    if bench.rank == 0:
        for metadata, kind in (({"format": "mlx"}, OSError), ({"format": "tf"}, ValueError), ({"x": "y"}, OSError)):
            path = os.path.join(bench.folder, "other.safetensors")
            save_file(state, path, metadata=metadata)
            for load in (accelerate.utils.modeling.load_state_dict, lambda p: ckptd.torch.load_state_dict(p, address=bench.address)):
                with fails(kind):
                    load(path)
        for load in (accelerate.utils.modeling.load_state_dict, lambda p: ckptd.torch.load_state_dict(p, address=bench.address)):
            with fails(FileNotFoundError):
                load("/nowhere/model.safetensors")
    dist.barrier()


def files_of_torch_are_lazy_as_others(bench):
    if bench.rank == 0:
        tied = torch.arange(12.0).reshape(3, 4)
        state = {"a": torch.ones(2, dtype=torch.complex128), "b": tied.t(), "c": tied, "d": tied, "module.e": tied[1]}
        path = os.path.join(bench.folder, "model.bin")
        torch.save(state, path)
        theirs = accelerate.utils.modeling.load_state_dict(path)
        mine = ckptd.torch.load_state_dict(path, address=bench.address)
        assert isinstance(mine, ckptd.torch.LazyStateDict) and mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        torch.save({**state, "epoch": 3}, path)  # more than tensors: torch's own dict
        assert ckptd.torch.load_state_dict(path, address=bench.address)["epoch"] == 3
    dist.barrier()


def devices_are_those_of_accelerate_s_map(bench):
    state = {"a.x": torch.ones(2), "a.y": torch.ones(3), "b": torch.ones(1), "ab": torch.ones(4)}
    path = written(bench, state, {"format": "pt"})
    if bench.rank == 0:
        for device_map in ({"": "cpu"}, {"": "meta"}, {"a": "meta", "b": "cpu"}, {"a": "meta", "a.x": "cpu"},
                           {"a": "meta", "b": "disk"}):
            mine = ckptd.torch.load_state_dict(path, device_map, address=bench.address)
            devices = {name: value.device.type for name, value in mine.items()}
            if set(device_map.values()) == {"meta"}:  # a device that safetensors does not know
                assert set(devices.values()) == {"meta"}
                continue
            if "meta" not in device_map.values():
                theirs = accelerate.utils.modeling.load_state_dict(path, device_map)
                assert devices == {name: t.device.type for name, t in theirs.items()}
                continue
            under = {n for n in state if n.startswith("a.")} - ({"a.x"} if "a.x" in device_map else set())
            assert {n for n, d in devices.items() if d == "meta"} == under, (device_map, devices)
    dist.barrier()


# -- patch ---------------------------------------------------------------------


def functions():
    return [accelerate.utils.modeling.load_state_dict, accelerate.utils.load_state_dict,
            fsdp_utils.fsdp2_load_full_state_dict, accelerate.utils.fsdp2_load_full_state_dict,
            accelerate.accelerator.fsdp2_prepare_model, accelerate.accelerator.fsdp2_switch_optimizer_parameters,
            torch_state_dict.set_model_state_dict]


def what_is_patched_is_put_back(bench):
    before = functions()
    with ckptd.torch.patch(address=bench.address):
        during = functions()
        assert not set(map(id, before)) & set(map(id, during))
        ckptd.torch.patch(address=bench.address)
    assert functions() == before
    ckptd.torch.patch(address=bench.address)
    ckptd.torch.unpatch()
    ckptd.torch.unpatch()
    assert functions() == before
    with fails(RuntimeError, "inside"), ckptd.torch.patch(address=bench.address):
        raise RuntimeError("inside")
    assert functions() == before


def a_checkpoint_is_loaded_by_accelerate_under_the_patch(bench):
    state = numbers(Bare())
    path = written(bench, state, {"format": "pt"})
    theirs, mine = sharded(Bare), sharded(Bare)
    load = accelerate.utils.modeling.load_checkpoint_in_model
    load(theirs, path, broadcast_from_rank0=True, strict=True)
    os.environ.pop(RAM, None)
    ckptd.accelerate.enable_fsdp_ram_efficient_loading()
    with ckptd.torch.patch(address=bench.address):
        load(mine, path, broadcast_from_rank0=True, strict=True)
        assert len(accelerate.utils.load_state_dict(path)) == (len(state) if bench.rank == 0 else 0)
    assert_equal(mine, theirs, "after the load")
    size = sum(t.numel() * t.element_size() for t in state.values())
    if bench.rank == 0:
        assert storage_bytes_of(bench, path) == size, "rank 0 read it besides"
    ckptd.accelerate.disable_fsdp_ram_efficient_loading()
    with ckptd.torch.patch(address=bench.address):
        plain = Bare()
        load(plain, path)  # each rank for itself
        assert len(accelerate.utils.load_state_dict(path)) == len(state)
    assert all(torch.equal(t, state[n]) for n, t in plain.state_dict().items())


def the_original_is_reached_from_under_the_patch(bench):
    state = numbers(Bare())
    theirs, mine = sharded(Bare), sharded(Bare)
    accelerates(bench, theirs, only_on_first(bench, state))
    with ckptd.torch.patch(address="/nowhere/x.sock", fallback="native"):
        accelerates(bench, mine, only_on_first(bench, state))
    assert_equal(mine, theirs, "by the original")


# -- apply_fsdp2 ---------------------------------------------------------------


def layers_then_the_root_are_sharded(bench):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    class Unnamed(Stack):
        _no_split_modules = None

    mesh = init_device_mesh("cpu", (bench.world,))
    options = {"reshard_after_forward": False, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
               "offload_policy": CPUOffloadPolicy(pin_memory=False)}
    for build in (Stack, Unnamed):
        for given in ({}, options):
            torch.manual_seed(1)
            theirs = build()
            torch.manual_seed(1)
            mine = build()
            for layer in theirs.layers:
                fully_shard(layer, mesh=mesh, **given)
            fully_shard(theirs, mesh=mesh, **given)
            assert ckptd.torch.apply_fsdp2(mine, mesh, **given) is mine
            assert_same_model(mine, theirs)
            if given:
                assert [m._get_fsdp_state()._mp_policy for m in (mine, mine.layers[0])] == [given["mp_policy"]] * 2
            assert losses(mine) == losses(theirs)
    with fails(ValueError, "Blok"):
        ckptd.torch.apply_fsdp2(Stack(), mesh, classes=["Blok"])
    model = ckptd.torch.apply_fsdp2(Stack(), mesh, classes=["Linear"])
    assert isinstance(model.layers[0].up.weight, DTensor) and type(model.layers[0].up).__name__ == "FSDPLinear"
    assert type(model.layers[0]).__name__ == "Block"


TWO = [
    a_model_is_prepared_as_by_accelerate,
    a_model_on_meta_is_prepared_from_a_file_by_every_rank,
    without_ram_efficient_loading_nothing_is_spread,
    accelerate_prepares_model_and_optimizer_under_the_patch,
    an_optimizer_goes_on_with_the_sharded_parameters,
    a_parameter_without_a_sharded_one_is_a_key_error,
    a_file_is_a_dict_on_rank_0_and_nothing_elsewhere,
    a_folder_is_read_by_accelerate_where_that_was_allowed,
    names_of_a_lazy_dict_change_without_reading,
    files_of_other_formats_are_refused_as_by_accelerate,
    files_of_torch_are_lazy_as_others,
    devices_are_those_of_accelerate_s_map,
    what_is_patched_is_put_back,
    a_checkpoint_is_loaded_by_accelerate_under_the_patch,
    the_original_is_reached_from_under_the_patch,
    layers_then_the_root_are_sharded,
]
CASES = {2: TWO, 4: [accelerate_prepares_model_and_optimizer_under_the_patch]}
