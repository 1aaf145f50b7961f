"""What the cases of ckptd's StorageReader share: two loads that are compared byte by byte, and models."""

import os

import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_bench import Net, local, numbers, train
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORLD = 4


# -- what is compared ----------------------------------------------------------


def differences(mine, theirs, at="state"):
    """Where the two differ, in kind, in type or in any byte."""
    if type(mine) is not type(theirs):
        return [f"{at}: {type(mine)} and {type(theirs)}"]
    if isinstance(mine, dict):
        keys = [] if set(mine) == set(theirs) else [f"{at}: {sorted(mine)} and {sorted(theirs)}"]
        return keys + [d for k in mine.keys() & theirs.keys() for d in differences(mine[k], theirs[k], f"{at}.{k}")]
    if isinstance(mine, (list, tuple)):
        size = [] if len(mine) == len(theirs) else [f"{at}: {len(mine)} and {len(theirs)}"]
        return size + [d for i, pair in enumerate(zip(mine, theirs)) for d in differences(*pair, f"{at}.{i}")]
    if isinstance(mine, ShardedTensor):
        return differences(*([shard.tensor for shard in one.local_shards()] for one in (mine, theirs)), at)
    if isinstance(mine, torch.Tensor):
        a, b = local(mine).detach(), local(theirs).detach()
        same = (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device) and (
            a.contiguous().reshape(-1).view(torch.uint8).equal(b.contiguous().reshape(-1).view(torch.uint8)))
        if isinstance(mine, DTensor):
            same = same and mine.placements == theirs.placements
        return [] if same else [f"{at}: {mine} and {theirs}"]
    return [] if mine == theirs else [f"{at}: {mine!r} and {theirs!r}"]


def assert_same(mine, theirs):
    assert not differences(mine, theirs), "\n".join(differences(mine, theirs)[:5])


def reader(bench, path, **options):
    return ckptd.torch.StorageReader(path, address=bench.address, timeout=60, **options)


def compare(bench, path, make, theirs=dcp.FileSystemReader, planner=lambda: None, **options):
    """Loads into two state dicts of make(), and compares. Returns ours."""
    expected, mine = make(), make()
    dcp.load(expected, storage_reader=theirs(path), planner=planner(), **options)
    assert differences(mine, expected), "the load changes nothing, so that comparing shows nothing"
    dcp.load(mine, storage_reader=reader(bench, path), planner=planner(), **options)
    assert_same(mine, expected)
    return mine


def folder_of(bench, name="d"):
    """A folder for all ranks, which does not exist yet."""
    bench.saved += 1
    return os.path.join(bench.folder, f"{bench.case}-{bench.saved}-{name}")


def saved(bench, state, name="d", **options):
    path = folder_of(bench, name)
    dcp.save(state, checkpoint_id=path, **options)
    dist.barrier()
    return path


def failure_of(load):
    """What each rank raised: by rank, as dcp.load says."""
    try:
        load()
    except dcp.api.CheckpointException as error:
        return {rank: raised for rank, (raised, _) in error.failures.items()}
    raise AssertionError("it did not fail")


# -- models --------------------------------------------------------------------


def plain(model):
    return model


def fsdp(model):
    fully_shard(model.up)
    return fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))


def hsdp(model):
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def fsdp1(model):
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def tensor_parallel(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


def filled(wrap, seed, kind=torch.optim.AdamW):
    """A wrapped model with its own numbers, and its optimizer after a step."""
    model = Net()
    state = numbers(model)
    model.load_state_dict({n: t + seed if t.is_floating_point() else t for n, t in state.items()}, strict=False)
    model = wrap(model)
    optimizer = kind(model.parameters(), lr=0.01 * (seed + 1))
    train(model, optimizer, steps=1)
    return model, optimizer


def state_of(wrap, seed, options=None):
    model, optimizer = filled(wrap, seed)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    return {"model": model_state, "optim": optimizer_state, "step": seed}


def nested(seed):
    return {
        "a.b": {"c.d": torch.arange(6.0).reshape(2, 3) + seed, "c": {"e": torch.ones(2) * seed}},
        "list": [torch.full((2,), seed), {"x": torch.tensor(seed)}, seed, "word"],
        "plain": [seed, None, 1.5], "tuple": (seed, "x"), "none": None if seed else 0, "text": f"ä{seed}",
        "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5 + seed), "flags": torch.tensor([True, seed > 0]),
        "half": torch.full((5,), seed, dtype=torch.bfloat16), "turned": (torch.arange(12.0) * seed).reshape(3, 4).t(),
        "rng": torch.get_rng_state(), "numbers": {"7": torch.full((1,), seed, dtype=torch.int64)},
    }
