"""Plans compared with what torch itself puts on each rank: distribute_tensor and
fully_shard on a fake process group, one rank after the other in one process,
and fully_shard with tensor parallelism on real gloo processes."""

import math
import os

import numpy as np
import pytest
from plan_tool import Source, plan_ranks

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402


def as_rank(rank, world, body):
    """Runs `body` as if this process were that rank; no communication happens."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        return body()
    finally:
        dist.destroy_process_group()


def text_of(placement):
    if isinstance(placement, _StridedShard):
        return f"strided_shard({placement.dim},{placement.split_factor})"
    return f"shard({placement.dim})" if isinstance(placement, Shard) else "replicate"


def rank_form(mesh, sharding):
    return {
        "world_size": math.prod(mesh),
        "meshes": [{"shape": list(mesh), "ranks": list(range(math.prod(mesh)))}],
        "shardings": [sharding],
        "targets": [{"name": "x", "sharding": 0}],
    }


def planned(mesh, placements, shape, padded_dim=None):
    source = Source()
    source.add("x", shape, np.float32)
    sharding = {"mesh": 0, "placements": [text_of(p) for p in placements]}
    if padded_dim is not None:
        sharding["padded_dim"] = padded_dim
    results, _ = plan_ranks(source, range(math.prod(mesh)), layout=rank_form(mesh, sharding))
    return source.tensors["x"], [result["x"] for result in results]


S, R = Shard, Replicate()
DISTRIBUTED = [
    (mesh, placements, shape)
    for mesh, placements, shapes in [
        ((1,), [S(0)], [(5, 3), (0, 2)]),
        ((4,), [S(0)], [(n, 2) for n in range(11)]),
        ((8,), [S(0)], [(9,), (17, 3), (3,)]),
        ((4,), [S(1)], [(5, 3), (2, 5), (3, 8), (4, 0)]),
        ((3,), [S(-1)], [(2, 3, 7), (5,)]),
        ((2, 2), [R, S(0)], [(5, 2), (1, 1)]),
        ((2, 4), [R, S(0)], [(13, 2)]),
        ((2, 2), [S(0), S(0)], [(5,), (3,), (4, 2), (1,)]),
        ((2, 3), [S(0), S(1)], [(5, 7), (3, 2), (1, 1)]),
        ((2, 2), [S(1), S(0)], [(3, 3), (5, 4)]),
        ((2, 2, 2), [S(0), S(1), S(0)], [(9, 5), (8, 2)]),
        ((2, 2), [_StridedShard(0, split_factor=2), S(0)], [(8, 3), (16,)]),
        ((4, 2), [_StridedShard(0, split_factor=2), S(0)], [(16, 2)]),
        ((2, 2), [_StridedShard(0, split_factor=2), R], [(8,), (9, 2), (3,), (1,)]),
        ((4,), [_StridedShard(0, split_factor=2)], [(9,), (5, 2), (2,)]),
        ((4,), [_StridedShard(1, split_factor=3)], [(2, 11), (3, 4)]),
        ((2, 2), [S(0), _StridedShard(0, split_factor=2)], [(8,), (9, 2), (7,)]),
        ((2, 2, 2), [_StridedShard(0, split_factor=4), S(0), S(0)], [(16, 2)]),
    ]
    for shape in shapes
]


@pytest.mark.parametrize(("mesh", "placements", "shape"), DISTRIBUTED)
def test_distribute_tensor_puts_the_same_bytes_on_every_rank(mesh, placements, shape):
    whole, results = planned(mesh, placements, shape)
    for rank, (local, _) in enumerate(results):

        def distribute():
            device_mesh = init_device_mesh("cpu", mesh)
            tensor = torch.from_numpy(whole.copy())
            return distribute_tensor(tensor, device_mesh, placements, src_data_rank=None).to_local()

        expected = as_rank(rank, math.prod(mesh), distribute)
        assert tuple(local.shape) == tuple(expected.shape)
        assert local.tobytes() == expected.contiguous().numpy().tobytes()


class OneParameter(nn.Module):
    def __init__(self, tensor):
        super().__init__()
        self.x = nn.Parameter(tensor)


def flat_storage(parameter):
    """All bytes of FSDP2's buffer, padding included."""
    local = parameter._local_tensor
    count = local.untyped_storage().nbytes() // local.element_size()
    return torch.as_strided(local, (count,), (1,), 0).numpy().copy()


def check_padded(results, rank, parameter):
    local, padding = results[rank]
    expected = parameter.to_local().detach()
    assert tuple(local.shape) == tuple(expected.shape)
    storage = flat_storage(parameter.data)
    ours = np.concatenate([local.reshape(-1), np.zeros(padding // 4, np.float32)])
    assert ours.tobytes() == storage.tobytes()


@pytest.mark.parametrize(
    ("mesh", "shape", "dim"),
    [((w,), (n, 3), 0) for w in (1, 2, 3, 4, 8) for n in (0, 1, 4, 5, 9)]
    + [((2, 2), (5, 2), 0), ((2, 4), (9,), 0), ((4,), (3, 8), 1), ((2, 2), (3, 4), 1)],
)
def test_fully_shard_has_the_same_padded_memory(mesh, shape, dim):
    placements = [S(dim)] if len(mesh) == 1 else [R, S(dim)]
    whole, results = planned(mesh, placements, shape, padded_dim=dim)
    for rank in range(math.prod(mesh)):

        def shard():
            names = ("replicate", "shard")[-len(mesh) :]
            device_mesh = init_device_mesh("cpu", mesh, mesh_dim_names=names)
            module = OneParameter(torch.from_numpy(whole.copy()))
            fully_shard(module, mesh=device_mesh, shard_placement_fn=lambda _: Shard(dim))
            return module.x

        check_padded(results, rank, as_rank(rank, math.prod(mesh), shard))


TENSOR_PARALLEL = [
    ((2, 2), 0, [(8, 3), (9, 2), (5, 1), (3,), (1,), (0, 2)]),
    ((4, 2), 0, [(9, 2), (16,), (3, 1), (7, 2)]),
    ((2, 4), 0, [(9, 2), (13,), (8, 2)]),
    ((2, 2), 1, [(4, 6), (5, 5), (1, 3)]),
]


@pytest.mark.parametrize(
    ("mesh", "tp_dim", "shape"),
    [(mesh, tp_dim, shape) for mesh, tp_dim, shapes in TENSOR_PARALLEL for shape in shapes],
)
def test_fully_shard_over_tensor_parallelism_has_the_same_memory(mesh, tp_dim, shape):
    factor = mesh[1]
    first = _StridedShard(0, split_factor=factor) if tp_dim == 0 else S(0)
    whole, results = planned(mesh, [first, S(tp_dim)], shape, padded_dim=0)
    for rank in range(math.prod(mesh)):

        def shard():
            device_mesh = init_device_mesh("cpu", mesh, mesh_dim_names=("dp", "tp"))
            tensor = torch.from_numpy(whole.copy())
            module = OneParameter(
                distribute_tensor(tensor, device_mesh["tp"], [Shard(tp_dim)], src_data_rank=None)
            )
            fully_shard(module, mesh=device_mesh["dp"])
            assert [text_of(p) for p in module.x.placements] == [text_of(first), text_of(S(tp_dim))]
            return module.x

        check_padded(results, rank, as_rank(rank, math.prod(mesh), shard))


def test_fully_shard_replicated_over_tensor_parallelism_has_the_same_memory():
    whole, results = planned((2, 2, 2), [R, _StridedShard(0, split_factor=2), S(0)], (7, 2), 0)
    for rank in range(8):

        def shard():
            device_mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("rep", "dp", "tp"))
            tensor = torch.from_numpy(whole.copy())
            module = OneParameter(
                distribute_tensor(tensor, device_mesh["tp"], [Shard(0)], src_data_rank=None)
            )
            fully_shard(module, mesh=device_mesh["rep", "dp"])
            return module.x

        check_padded(results, rank, as_rank(rank, 8, shard))


def gloo_rank(rank, path, mesh, shapes):
    world = math.prod(mesh)
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=world)
    device_mesh = init_device_mesh("cpu", mesh, mesh_dim_names=("dp", "tp"))
    for number, shape in enumerate(shapes):
        whole = torch.arange(1, 1 + math.prod(shape), dtype=torch.float32).reshape(shape)
        module = OneParameter(distribute_tensor(whole, device_mesh["tp"], [Shard(0)]))
        fully_shard(module, mesh=device_mesh["dp"])
        assert torch.equal(module.x.full_tensor().detach(), whole)
        np.save(f"{path}/{number}.{rank}.npy", module.x.to_local().detach().numpy())
    dist.barrier()
    dist.destroy_process_group()


def test_real_processes_agree_on_uneven_fsdp_over_tensor_parallelism(tmp_path):
    mesh, shapes = (2, 2), [(8, 3), (9, 2), (5, 1), (3,)]
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(gloo_rank, (str(tmp_path), mesh, shapes), nprocs=4)
    for number, shape in enumerate(shapes):
        _, results = planned(mesh, [_StridedShard(0, split_factor=2), S(0)], shape, padded_dim=0)
        for rank, (local, _) in enumerate(results):
            expected = np.load(tmp_path / f"{number}.{rank}.npy")
            assert local.shape == expected.shape
            assert local.tobytes() == expected.tobytes()
