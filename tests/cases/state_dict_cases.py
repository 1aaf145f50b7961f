"""Cases of set_model_state_dict and the functions for plain dicts, with those of DistModule.

Each case calls torch's function on one model and ours on another, on every rank, and
compares what they did, what they returned and what they raised.
"""

import os

import ckptd
import ckptd.torch
import torch
from dist_module_cases import DIST_MODULE, by_the_contract, dist_module, real
from fsdp_bench import Net, assert_in_daemon_memory, local, numbers
from spread_bench import (
    BROADCAST,
    assert_equal,
    assert_same_bytes,
    assert_trains_alike,
    fails,
    only_on_first,
    settle_buffers,
    sharded,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.checkpoint.state_dict import set_model_state_dict as torchs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

LENIENT = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)


def set_ours(bench, model, state, options=BROADCAST, **more):
    more.setdefault("address", bench.address)
    return ckptd.torch.set_model_state_dict(model, state, options=options, **more)


def a_model_on_meta_takes_the_checkpoint_s_types_as_with_torch(bench):
    state = {name: t.bfloat16() if "up" in name or "embed" in name else t for name, t in numbers(Net()).items()}

    def wrap(model):
        fully_shard([model.up])
        fully_shard(model.embed)
        fully_shard(model)

    theirs, mine = sharded(Net, wrap), sharded(Net, wrap)
    expected = torchs(theirs, only_on_first(bench, state), options=BROADCAST)
    for given in (only_on_first(bench, state), bench.save(state)):
        returned = set_ours(bench, mine, given)
        assert returned == expected and type(returned) is type(expected), returned
        assert mine.up.weight.dtype == torch.bfloat16
        settle_buffers(mine, theirs)
        assert_equal(mine, theirs, "after the load")
    assert_in_daemon_memory(mine, skip=("freq",))


def a_model_on_meta_trains_as_with_torch(bench):
    state = numbers(Net())
    theirs, mine = sharded(Net), sharded(Net)
    torchs(theirs, only_on_first(bench, state), options=BROADCAST)
    set_ours(bench, mine, only_on_first(bench, state))
    settle_buffers(mine, theirs)
    assert_trains_alike(mine, theirs)


def a_real_model_keeps_its_types_as_with_torch(bench):
    state = numbers(Net(), torch.bfloat16)
    theirs, mine = real(), real()
    identities = [id(p) for p in mine.parameters()]
    assert set_ours(bench, mine, bench.save(state)) == torchs(
        theirs, only_on_first(bench, state), options=BROADCAST
    )
    assert mine.up.weight.dtype == torch.float32
    assert [id(p) for p in mine.parameters()] == identities
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def tied_weights_of_a_real_model_stay_tied_as_with_torch(bench):
    def build():
        return Net(tied=True)

    state = numbers(build())
    both = {**state, "head.weight": state["embed.weight"]}
    theirs, mine = real(build), real(build)
    torchs(theirs, only_on_first(bench, both), options=BROADCAST)
    set_ours(bench, mine, only_on_first(bench, both))
    assert mine.head.weight is mine.embed.weight
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def a_file_of_torch_is_loaded_as_its_dict_with_torch(bench):
    def build():
        return Net(tied=True)

    state = numbers(build())
    both = {**state, "head.weight": state["embed.weight"]}
    theirs = real(build)
    torchs(theirs, only_on_first(bench, both), options=BROADCAST)
    path = bench.save_pickled(both)
    for mine in (real(build), sharded(build)):
        set_ours(bench, mine, path)
        settle_buffers(mine, theirs)
        assert_equal(mine, theirs, "after the load")
    inner = real(build)
    dist_module(bench, inner).load_state_dict(path)
    assert_equal(inner, theirs, "after DistModule's load")


def a_missing_key_is_torch_s_error_on_every_rank(bench):
    state = numbers(Net())
    del state["odd.bias"]
    with fails(RuntimeError, 'Missing key(s) in state_dict: "odd.bias"'):
        torchs(sharded(Net), only_on_first(bench, state), options=BROADCAST)
    mine = sharded(Net)
    with fails(RuntimeError, 'Missing key(s) in state_dict: "odd.bias"', "Net"):
        set_ours(bench, mine, only_on_first(bench, state))
    assert mine.up.weight.is_meta


def an_unexpected_key_is_an_error_on_every_rank_and_not_only_on_the_first(bench):
    state = {**numbers(Net()), "extra": torch.ones(2)}
    theirs = sharded(Net)
    if bench.rank == 0:
        with fails(RuntimeError, 'Unexpected key(s) in state_dict: "extra"'):
            torchs(theirs, dict(state), options=BROADCAST)
    else:
        torchs(theirs, {}, options=BROADCAST)
    with fails(RuntimeError, 'Unexpected key(s) in state_dict: "extra"'):
        set_ours(bench, sharded(Net), only_on_first(bench, state))


def without_strict_the_result_is_torch_s(bench):
    state = {**numbers(Net()), "extra": torch.ones(2)}
    del state["odd.bias"]
    theirs, mine = real(), real()
    expected = torchs(theirs, only_on_first(bench, state), options=LENIENT)
    returned = set_ours(bench, mine, only_on_first(bench, state), LENIENT)
    assert returned == expected and type(returned) is type(expected), (returned, expected)
    assert_equal(mine, theirs, "after the load")


class Counted(nn.Module):
    """Puts a value that is no tensor into its state dict."""

    def __init__(self):
        super().__init__()
        self.up, self.seen = nn.Linear(4, 4), 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def a_value_that_is_no_tensor_reaches_every_rank(bench):
    whole = Counted()
    whole.seen = 7
    theirs, mine = sharded(Counted), sharded(Counted)
    torchs(theirs, only_on_first_deep(bench, whole.state_dict()), options=BROADCAST)
    set_ours(bench, mine, only_on_first_deep(bench, whole.state_dict()))
    assert theirs.seen == mine.seen == 7
    assert_same_bytes(local(mine.up.weight), local(theirs.up.weight), "up.weight")


def only_on_first_deep(bench, state):
    return dict(state) if bench.rank == 0 else {}


def options_that_torch_refuses_are_refused_alike(bench):
    options = StateDictOptions(broadcast_from_rank0=True)
    for call in (torchs, lambda *a, **k: ckptd.torch.set_model_state_dict(*a, address=bench.address, **k)):
        with fails(ValueError, "full_state_dict must be True"):
            call(sharded(Net), {}, options=options)


def sharded_state_dicts_are_left_to_torch(bench):
    theirs, mine = real(), real()
    state = {name: t.clone() + 1 for name, t in theirs.state_dict().items()}
    ckptd.torch.set_model_state_dict(mine, dict(state), address="/nowhere/ckptd.sock")
    torchs(theirs, dict(state))
    assert_equal(mine, theirs, "after the load")


def a_lazy_dict_that_every_rank_has_needs_no_broadcast(bench):
    state = numbers(Net())
    path = bench.save(state)
    theirs, mine = real(), real()
    torchs(theirs, dict(state), options=StateDictOptions(full_state_dict=True))
    lazy = ckptd.torch.load_state_dict(path, every_rank=True, address=bench.address)
    set_ours(bench, mine, lazy, StateDictOptions(full_state_dict=True))
    assert_equal(mine, theirs, "after the load")


def a_path_is_a_full_state_dict_without_being_told(bench):
    state = numbers(Net())
    path = bench.save(state)
    theirs, mine = real(), real()
    torchs(theirs, dict(state), options=StateDictOptions(full_state_dict=True))
    ckptd.torch.set_model_state_dict(mine, path, address=bench.address)
    assert_equal(mine, theirs, "after the load")
    with fails(ValueError, "pass StateDictOptions(full_state_dict=True), or no options"):
        set_ours(bench, real(), path, StateDictOptions())


def torch_is_called_where_that_was_allowed(bench):
    state = numbers(Net())
    theirs, mine = sharded(Net), sharded(Net)
    torchs(theirs, only_on_first(bench, state), options=BROADCAST)
    set_ours(bench, mine, only_on_first(bench, state), address="/nowhere/x.sock", fallback="native")
    settle_buffers(mine, theirs)
    assert_equal(mine, theirs, "after the load")
    with fails(ckptd.Unavailable, "ckptd launch"):
        set_ours(bench, sharded(Net), only_on_first(bench, state), address="/nowhere/x.sock")


def a_path_is_read_for_torch_where_that_was_allowed(bench):
    state, away = numbers(Net()), {"address": "/nowhere/x.sock", "fallback": "native"}
    theirs = sharded(Net)
    torchs(theirs, only_on_first(bench, state), options=BROADCAST)
    folder = bench.save_shards(state)
    for path in (bench.save(state), folder, os.path.join(folder, "model.safetensors.index.json")):
        first_only = sharded(Net)
        set_ours(bench, first_only, path if bench.rank == 0 else {}, **away)
        settle_buffers(first_only, theirs)
        assert_equal(first_only, theirs, "rank 0's path")
        everywhere = real()
        set_ours(bench, everywhere, path, None, **away)
        for name, value in everywhere.state_dict().items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            assert torch.equal(whole, state[name]), name


def what_rank_0_cannot_read_for_torch_is_said_on_every_rank(bench):
    """By its kind to the others, which have no key to tell a rank's sentence from anybody's."""
    away = {"address": "/nowhere/x.sock", "fallback": "native"}
    given = ckptd.torch.load_state_dict(bench.save(numbers(Net())), address=bench.address)
    says = ("LazyStateDict", "pass the checkpoint's path instead") if bench.rank == 0 else ("rank 0: ", "see its log")
    with fails(ckptd.Unavailable, *says):
        set_ours(bench, sharded(Net), given, **away)
    with fails(OSError):
        set_ours(bench, sharded(Net), "/nowhere/m.safetensors" if bench.rank == 0 else {}, **away)


# -- plain dicts -----------------------------------------------------------------


def shard_ours(bench, state, meta, into, **options):
    options.setdefault("address", bench.address)
    if bench.rank == 0:
        ckptd.torch.broadcast_and_shard_state_dict(state, meta, into, **options)
    else:
        ckptd.torch.shard_broadcasted_state_dict(meta, into, **options)


def a_dict_is_sharded_as_the_model_says(bench):
    state = numbers(Net())
    theirs, mine = sharded(Net), sharded(Net)
    by_the_contract(bench, theirs, state)
    parts = {}
    shard_ours(bench, state, mine.state_dict(), parts)
    assert list(parts) == list(mine.state_dict())
    mine.load_state_dict(parts, assign=True)
    settle_buffers(mine, theirs)
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def a_dict_over_any_placements_is_distribute_tensor_s(bench):
    mesh = init_device_mesh("cpu", (bench.world,))
    generator = torch.Generator().manual_seed(5)
    state = {name: torch.randn(shape, generator=generator) for name, shape in
             {"rows": (5, 6), "columns": (3, 5), "whole": (4,), "none": (1, 2), "plain": (3, 3)}.items()}
    places = {"rows": [Shard(0)], "columns": [Shard(1)], "whole": [Replicate()], "none": [Shard(0)]}
    expected = {name: distribute_tensor(state[name], mesh, p) for name, p in places.items()}
    meta = {name: distribute_tensor(torch.empty_like(state[name], device="meta"), mesh, p)
            for name, p in places.items()}
    meta["plain"] = torch.empty(3, 3, device="meta")
    away = {"address": "/nowhere/x.sock", "fallback": "native"}
    for given, options in ((state, {}), (state, away), (bench.save(state), away)):
        parts = {}
        shard_ours(bench, given, meta, parts, **options)
        for name, there in expected.items():
            here = parts[name]
            assert here.placements == there.placements and here.device_mesh == there.device_mesh
            assert here.shape == there.shape and here.stride() == there.stride(), name
            assert_same_bytes(here.to_local(), there.to_local().contiguous(), name)
        assert torch.equal(parts["plain"], state["plain"]) and not isinstance(parts["plain"], DTensor)


def each_side_of_sharding_belongs_to_its_ranks(bench):
    if bench.rank == 0:
        with fails(ValueError, "rank 0"):
            ckptd.torch.shard_broadcasted_state_dict({}, {})
    else:
        with fails(ValueError, "not rank 0"):
            ckptd.torch.broadcast_and_shard_state_dict({}, {}, {})


def a_name_that_rank_0_lacks_is_a_key_error_on_every_rank(bench):
    state, parts = numbers(Net()), {}
    del state["up.bias"]
    with fails(KeyError, "up.bias"):
        shard_ours(bench, state, sharded(Net).state_dict(), parts)
    assert parts == {}


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)


def a_count_of_batches_may_be_missing_as_with_torch(bench):
    state = numbers(Normed())
    state["norm.num_batches_tracked"].fill_(5)
    without = {name: value for name, value in state.items() if "num_batches" not in name}
    for given in (state, without):
        for build in (sharded, real):
            theirs, mine, module = build(Normed), build(Normed), build(Normed)
            expected = torchs(theirs, only_on_first(bench, given), options=BROADCAST)
            assert set_ours(bench, mine, only_on_first(bench, given)) == expected
            loads = ckptd.torch.DistModule(module, address=bench.address)
            assert loads.load_state_dict(only_on_first(bench, given)) == expected
            for model in (mine, module):
                assert_equal(model, theirs, "after the load")


def hooks_after_load_state_dict_are_run_as_with_torch(bench):
    state, found = numbers(Net()), {}

    def hooked(name):
        model = sharded(Net)
        if name != "module":  # torch's function runs them without gradients
            model.odd.register_load_state_dict_post_hook(
                lambda module, keys: setattr(module.bias.mul_(2), "seen", True))
        for path, module in model.named_modules():
            module.register_load_state_dict_post_hook(
                lambda module, keys, path=path: found.setdefault(name, []).append((path, keys)))
        model.odd.register_load_state_dict_post_hook(
            lambda module, keys: found[name].append(local(module.weight).clone()))
        return model

    first = only_on_first(bench, state)
    torchs(hooked("torch"), dict(first), options=BROADCAST)
    set_ours(bench, hooked("ours"), dict(first))
    ckptd.torch.DistModule(hooked("module"), address=bench.address).load_state_dict(dict(first))
    assert len(found["torch"]) == len(found["ours"]) == len(found["module"]) == 8, found
    assert torch.is_grad_enabled()
    for name in ("ours", "module"):
        for mine, theirs in zip(found[name], found["torch"]):
            same = torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
            assert same, f"{name}: {mine} beside {theirs}"


def the_keys_that_hooks_get_are_torch_s(bench):
    state, found = numbers(Net()), {}
    del state["up.bias"]
    state["more"] = torch.ones(1)

    def hooked(name):
        model = real()
        model.register_load_state_dict_post_hook(
            lambda module, keys: found.update({name: [list(part) for part in keys]}))
        model.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.append(name))
        return model

    first = only_on_first(bench, state)
    expected = torchs(hooked("hook"), dict(first), options=LENIENT)
    seen = found.pop("hook")
    returned = set_ours(bench, hooked("hook"), dict(first), LENIENT)
    assert found["hook"] == seen and returned == expected, f"{found} beside {seen}, {returned} beside {expected}"


def a_dist_module_runs_hooks_of_its_own_and_knows_the_age_of_a_state_dict(bench):
    calls, module = [], ckptd.torch.DistModule(real(Normed), address=bench.address)
    module.register_load_state_dict_post_hook(lambda module, keys: calls.append(type(module).__name__))
    full = Normed().state_dict()
    module.load_state_dict(full if bench.rank == 0 else {})
    assert calls == ["DistModule"]
    del full["norm.num_batches_tracked"]
    with fails(RuntimeError, "norm.num_batches_tracked"):
        module.load_state_dict(full if bench.rank == 0 else {})
    missing = module.load_state_dict(full if bench.rank == 0 else {}, strict=False).missing_keys
    assert missing == ["norm.num_batches_tracked"]


TWO = [
    a_model_on_meta_takes_the_checkpoint_s_types_as_with_torch,
    a_model_on_meta_trains_as_with_torch,
    a_real_model_keeps_its_types_as_with_torch,
    tied_weights_of_a_real_model_stay_tied_as_with_torch,
    a_file_of_torch_is_loaded_as_its_dict_with_torch,
    a_missing_key_is_torch_s_error_on_every_rank,
    an_unexpected_key_is_an_error_on_every_rank_and_not_only_on_the_first,
    without_strict_the_result_is_torch_s,
    a_value_that_is_no_tensor_reaches_every_rank,
    options_that_torch_refuses_are_refused_alike,
    sharded_state_dicts_are_left_to_torch,
    a_lazy_dict_that_every_rank_has_needs_no_broadcast,
    a_path_is_a_full_state_dict_without_being_told,
    torch_is_called_where_that_was_allowed,
    a_path_is_read_for_torch_where_that_was_allowed,
    what_rank_0_cannot_read_for_torch_is_said_on_every_rank,
    *DIST_MODULE,
    a_dict_is_sharded_as_the_model_says,
    a_dict_over_any_placements_is_distribute_tensor_s,
    each_side_of_sharding_belongs_to_its_ranks,
    a_name_that_rank_0_lacks_is_a_key_error_on_every_rank,
    a_count_of_batches_may_be_missing_as_with_torch,
    hooks_after_load_state_dict_are_run_as_with_torch,
    the_keys_that_hooks_get_are_torch_s,
    a_dist_module_runs_hooks_of_its_own_and_knows_the_age_of_a_state_dict,
]
CASES = {2: TWO, 4: [TWO[1], TWO[2], DIST_MODULE[0],
                     a_dict_over_any_placements_is_distribute_tensor_s]}
