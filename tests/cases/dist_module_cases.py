"""Cases of DistModule: each compares it with what its contract says, or with torch's own function."""

import ckptd
import ckptd.torch
import torch
import torch.distributed as dist
from fsdp_bench import Net, numbers
from spread_bench import (
    BROADCAST,
    Bare,
    assert_equal,
    assert_trains_alike,
    fails,
    filled_before,
    only_on_first,
    settle_buffers,
    sharded,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import set_model_state_dict as torchs
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def real(build=Net):
    torch.manual_seed(3)
    model = build()
    fully_shard(model)
    return model


def dist_module(bench, module, **options):
    options.setdefault("address", bench.address)
    return ckptd.torch.DistModule(module, **options)


def by_the_contract(bench, model, state):
    """What a DistModule does, with torch alone: broadcast whole tensors, shard, assign."""
    parts = {}
    for name, like in model.state_dict().items():
        whole = state[name].clone() if bench.rank == 0 else torch.empty(like.shape, dtype=like.dtype)
        dist.broadcast(whole, src=0)
        if isinstance(like, DTensor):
            whole = distribute_tensor(whole, like.device_mesh, like.placements)
        parts[name] = whole
    return model.load_state_dict(parts, assign=True)


def a_dist_module_loads_as_its_contract_says(bench):
    state = numbers(Net())
    theirs, inner = sharded(Net), sharded(Net)
    expected = by_the_contract(bench, theirs, state)
    mine = dist_module(bench, inner)
    returned = mine.load_state_dict(only_on_first(bench, state), assign=True)
    assert returned == expected and type(returned) is type(expected)
    settle_buffers(inner, theirs)
    assert_equal(inner, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def a_dist_module_fills_a_real_model_too(bench):
    state = numbers(Net())
    theirs, inner = filled_before(Net, state), real()
    dist_module(bench, inner).load_state_dict(bench.save(state))
    assert_equal(inner, theirs, "after the load")


def a_dist_module_says_which_keys_do_not_fit_on_every_rank(bench):
    state = {**numbers(Net()), "extra": torch.ones(2)}
    del state["odd.bias"]
    whole = Net().load_state_dict(dict(state), strict=False)
    mine = dist_module(bench, real())
    assert mine.load_state_dict(only_on_first(bench, state), strict=False) == whole
    with fails(RuntimeError, 'Missing key(s) in state_dict: "odd.bias"', '"extra"'):
        mine.load_state_dict(only_on_first(bench, state))


def a_dist_module_is_its_module_in_all_else(bench):
    inner = Bare()
    mine = dist_module(bench, inner)
    mine.note = "kept"
    assert inner.note == "kept" and mine.note == "kept" and mine.up is inner.up
    assert mine.module is inner
    assert mine.state_dict().keys() == inner.state_dict().keys()
    assert mine.state_dict(prefix="a.").keys() == inner.state_dict(prefix="a.").keys()
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in inner.named_parameters()]
    mine.eval()
    assert not inner.training and not mine.training and not inner.up.training
    tokens = torch.arange(4)
    assert torch.equal(mine(tokens), inner(tokens))
    mine.up = nn.Linear(8, 12)
    assert inner.up is mine.up and "up" not in dict(mine.named_children())
    del mine.note
    assert not hasattr(inner, "note")
    with fails(AttributeError, "nothing"):
        mine.nothing  # noqa: B018


def torch_fills_a_dist_module_where_that_was_allowed(bench):
    state = numbers(Net())
    theirs, inner = sharded(Net), sharded(Net)
    torchs(theirs, only_on_first(bench, state), options=BROADCAST)
    mine = dist_module(bench, inner, address="/nowhere/x.sock", fallback="native")
    for given in (only_on_first(bench, state), bench.save(state)):
        mine.load_state_dict(given)
        settle_buffers(inner, theirs)
        assert_equal(inner, theirs, "after the load")


DIST_MODULE = [
    a_dist_module_loads_as_its_contract_says,
    a_dist_module_fills_a_real_model_too,
    a_dist_module_says_which_keys_do_not_fit_on_every_rank,
    a_dist_module_is_its_module_in_all_else,
    torch_fills_a_dist_module_where_that_was_allowed,
]
