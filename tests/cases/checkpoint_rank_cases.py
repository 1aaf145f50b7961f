"""Cases of load_checkpoint_in_model by several ranks, beside accelerate's own.

Over two dimensions beside the other functions that spread rank 0's state.
"""

import ckptd.accelerate
import ckptd.torch
import torch
import torch.distributed as dist
from accelerate.utils import modeling
from accelerate_cases import written
from fsdp_bench import assert_in_daemon_memory, local, numbers
from spread_bench import (
    BROADCAST,
    Bare,
    assert_equal,
    assert_trains_alike,
    fails,
    losses,
    only_on_first,
    ours as full_state_dict,
    sharded,
    storage_bytes_of,
)
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

METADATA = {"format": "pt"}


def ours(bench, model, path, **options):
    return ckptd.accelerate.load_checkpoint_in_model(model, path, address=bench.address, **options)


def size_of(state):
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def a_sharded_model_is_filled_as_by_accelerate(bench):
    for dtype in (None, torch.bfloat16):
        state = numbers(Bare(), dtype)
        for options in ({"broadcast_from_rank0": True, "strict": True}, {"broadcast_from_rank0": True}, {}):
            path = written(bench, state, METADATA)
            theirs, mine = sharded(Bare), sharded(Bare)
            modeling.load_checkpoint_in_model(theirs, path, **options)
            assert ours(bench, mine, path, **options) is None
            assert_equal(mine, theirs, f"{dtype} {options}")
            assert_in_daemon_memory(mine)
            assert storage_bytes_of(bench, path) == size_of(state) or bench.rank != 0
            assert_trains_alike(mine, theirs)


def names_that_differ_are_an_error_on_every_rank(bench):
    # Where rank 0 alone has other names, torch's broadcast hangs.
    state = numbers(Bare())
    for wrong in ({**state, "more": torch.ones(2)}, {n: t for n, t in state.items() if n != "up.bias"}):
        path, model = written(bench, wrong, METADATA), sharded(Bare)
        with fails(RuntimeError, "more" if "more" in wrong else "up.bias"):
            ours(bench, model, path, strict=True, broadcast_from_rank0=True)
        assert all(local(p).is_meta for p in model.parameters()), "it was touched"


def what_every_rank_takes_whole_is_read_once(bench):
    state = numbers(Bare())
    path = written(bench, state, METADATA)
    theirs, mine = Bare(), Bare()
    modeling.load_checkpoint_in_model(theirs, path, device_map={"": "cpu"}, dtype=torch.bfloat16)
    ours(bench, mine, path, device_map={"": "cpu"}, dtype=torch.bfloat16)
    assert_equal(mine, theirs, "a copy for each rank")
    dist.barrier()
    if bench.rank == 0:
        assert storage_bytes_of(bench, path) == size_of(state)
    dist.barrier()


def one_rank_may_load_alone(bench):
    state = numbers(Bare())
    path = written(bench, state, METADATA)
    if bench.rank == 1:
        mine = Bare()
        ours(bench, mine, path, device_map={"": "cpu"}, timeout=60)
        assert all(torch.equal(tensor, state[name]) for name, tensor in mine.state_dict().items())
    dist.barrier()


def by_a_dict_of_shards(bench, model, given):
    meta, parts, near = model.state_dict(), {}, {"address": bench.address}
    if bench.rank == 0:
        ckptd.torch.broadcast_and_shard_state_dict(given, meta, parts, **near)
    else:
        ckptd.torch.shard_broadcasted_state_dict(meta, parts, **near)
    model.load_state_dict(parts, assign=True)


def every_function_fills_shards_of_tensor_parallel_parts_as_torch_does(bench):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def wrap(model):
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        for unit in (model.up, model):
            fully_shard(unit, mesh=mesh["dp"])

    state, theirs = numbers(Bare()), sharded(Bare, wrap)
    path, near = written(bench, state, METADATA), {"address": bench.address}
    assert "_StridedShard" in str(theirs.up.weight.placements)
    set_model_state_dict(theirs, only_on_first(bench, state), options=BROADCAST)
    ways = {
        "set_model_state_dict": lambda m, given: ckptd.torch.set_model_state_dict(m, given, options=BROADCAST, **near),
        "fsdp2_load_full_state_dict": lambda m, given: full_state_dict(bench, m, given),
        "DistModule": lambda m, given: ckptd.torch.DistModule(m, **near).load_state_dict(given),
        "a dict of shards": lambda m, given: by_a_dict_of_shards(bench, m, given),
        "load_checkpoint_in_model": lambda m, _: ours(bench, m, path, broadcast_from_rank0=True),
    }
    filled = {}
    for name, fill in ways.items():
        for given in (path, only_on_first(bench, state)):
            filled[name] = sharded(Bare, wrap)
            fill(filled[name], given)
            assert_equal(filled[name], theirs, f"{name} of {type(given).__name__}")
        if name != "a dict of shards":  # of which FSDP2 copies those that it pads
            assert_in_daemon_memory(filled[name])
    expected = losses(theirs)
    for name, model in filled.items():
        assert losses(model) == expected, name


CASES = {2: [a_sharded_model_is_filled_as_by_accelerate, names_that_differ_are_an_error_on_every_rank,
             what_every_rank_takes_whole_is_read_once, one_rank_may_load_alone],
         4: [what_every_rank_takes_whole_is_read_once,
             every_function_fills_shards_of_tensor_parallel_parts_as_torch_does]}
