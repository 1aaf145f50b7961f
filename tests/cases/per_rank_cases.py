"""Ranks save DTensors and ShardedTensors by torch.save, each a file of its own, as verl and accelerate do.

Each case leaves FOLDER/CASE/model_world_size_W_rank_R.pt and, as rank 0 knows them, the whole tensors in
FOLDER/CASE.whole.pt.
"""

import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def save(bench, state, whole):
    folder = os.path.join(bench.folder, bench.case)
    os.makedirs(folder, exist_ok=True)
    torch.save(state, f"{folder}/model_world_size_{bench.world}_rank_{bench.rank}.pt")
    if bench.rank == 0:
        torch.save(whole, folder + ".whole.pt")
    dist.barrier()


def numbered(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def all_sizes_along_each_dimension(bench):
    mesh = init_device_mesh("cpu", (bench.world,))
    whole = {f"rows.{size}": numbered(size, 2) for size in range(10)}
    whole |= {f"columns.{size}": numbered(3, size, dtype=torch.bfloat16) for size in range(1, 10)}
    dims = {"rows": 0, "columns": -1}
    state = {name: distribute_tensor(tensor, mesh, [Shard(dims[name.split(".")[0]])])
             for name, tensor in whole.items()}
    whole |= {"scalar": numbered(), "buffer": numbered(3, dtype=torch.int64)}
    state |= {"scalar": distribute_tensor(whole["scalar"], mesh, [Replicate()]), "buffer": whole["buffer"]}
    save(bench, state, whole)


def all_placements_of_two_dimensions(bench):
    mesh = init_device_mesh("cpu", (2, bench.world // 2), mesh_dim_names=("a", "b"))
    whole, state = {}, {}
    for first, second in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
        for rows in (3, 4, 7):
            name = f"{first}-{second}-{rows}"
            whole[name] = numbered(rows, 5)
            state[name] = distribute_tensor(whole[name], mesh, [first, second])
    whole["of_a"] = numbered(5, 3)
    state["of_a"] = distribute_tensor(whole["of_a"], mesh["a"], [Shard(0)])
    save(bench, state, whole)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 9)
        self.down = nn.Linear(9, 5)
        self.register_buffer("rope", torch.arange(7.0))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape)
            dist.broadcast(parameter.data, 0)


def whole_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def fsdp2_over_tensor_parallel(bench):
    mesh = init_device_mesh("cpu", (2, bench.world // 2), mesh_dim_names=("dp", "tp"))
    model = Model()
    whole = whole_of(model)
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    save(bench, model.state_dict(), whole)


def fsdp2_with_replicas(bench):
    mesh = init_device_mesh("cpu", (2, bench.world // 2), mesh_dim_names=("replicate", "shard"))
    model = Model()
    whole = whole_of(model)
    fully_shard(model, mesh=mesh)
    save(bench, model.state_dict(), whole)


def fsdp1_sharded_tensors(bench):
    model = Model()
    whole = whole_of(model)
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"),
                                     sharding_strategy=ShardingStrategy.FULL_SHARD, use_orig_params=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        save(bench, model.state_dict(), whole)


CASES = {
    4: [all_sizes_along_each_dimension, all_placements_of_two_dimensions, fsdp2_over_tensor_parallel,
        fsdp2_with_replicas, fsdp1_sharded_tensors],
}
