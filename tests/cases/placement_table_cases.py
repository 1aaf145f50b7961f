"""Tables of shapes, meshes and placements: each cell is filled by us, and by torch's own sharding of values.

A case is one table; it names every cell that differs. One model has all shapes that torch
itself takes in a cell, so that a cell is one load.
"""

import contextlib
import functools
import itertools

import ckptd.torch
import torch
import torch.distributed as dist
from fsdp_bench import on_meta
from spread_bench import BROADCAST, assert_equal
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# (columns, rows) of Linear layers: even, odd, fewer than ranks, one.
SIZES = [(5, 3), (4, 1), (1, 4), (1, 1), (2, 6)]
PLANS = {
    "none": lambda: None,
    "columns": ColwiseParallel,
    "rows": RowwiseParallel,
    "rows of whole inputs": lambda: RowwiseParallel(input_layouts=Replicate()),
}
MESHES = {
    2: {
        ("dp",): [(2,)],
        ("rep", "dp"): [(2, 1), (1, 2)],
        ("dp", "tp"): [(2, 1), (1, 2)],
        ("rep", "dp", "tp"): [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
        ("tp",): [(2,)],
    },
    4: {
        ("rep", "dp"): [(4, 1), (1, 4)],
        ("dp", "tp"): [(2, 2), (4, 1), (1, 4)],
        ("rep", "dp", "tp"): [(2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 4, 1)],
    },
}


@functools.lru_cache(None)
def mesh_of(shape, names):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def name_of(size):
    return "{}x{}".format(*size)


class Layers(nn.Module):
    """A Linear of each size; names are the sizes."""

    def __init__(self, sizes):
        super().__init__()
        for size in sizes:
            self.add_module(name_of(size), nn.Linear(*size))


def values_of(model):
    generator = torch.Generator().manual_seed(11)
    return {name: torch.randn(t.shape, generator=generator) for name, t in model.state_dict().items()}


def wrap(layer, mesh, plan, dim):
    """Tensor parallelism, then FSDP2, over those dimensions that the mesh has."""
    names = mesh.mesh_dim_names
    if "tp" in names and PLANS[plan]() is not None:
        parallelize_module(layer, mesh["tp"], PLANS[plan]())
    data = tuple(name for name in ("rep", "dp") if name in names)
    if data:
        place = (lambda param: Shard(dim if param.dim() > 1 else 0)) if dim else None
        fully_shard(layer, mesh=mesh[data] if len(data) > 1 else mesh["dp"], shard_placement_fn=place)


def taken_by_torch(mesh, plan, dim):
    """Sizes that torch itself shards so, on every rank."""
    taken = []
    for size in SIZES:
        with contextlib.suppress(NotImplementedError, RuntimeError, AssertionError, ValueError):
            wrap(on_meta(lambda: nn.Linear(*size)), mesh, plan, dim)
            taken.append(size)
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, taken)
    return [size for size in SIZES if all(size in each for each in everywhere)]


def trained(model):
    """After a step of each layer."""
    for layer in model.children():
        layer(torch.ones(3, layer.in_features)).square().sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.01).step()
    return model


def cells(world, dims):
    for names, shapes in MESHES[world].items():
        for shape, plan, dim in itertools.product(shapes, PLANS, dims):
            if ("tp" in names or plan == "none") and (dim == 0 or "dp" in names):
                yield shape, names, plan, dim


def by_load_into(bench, model, path):
    bench.load(model, path, init_buffers=None)


def by_set_model_state_dict(bench, model, path):
    ckptd.torch.set_model_state_dict(model, path, options=BROADCAST, address=bench.address)


def check_cell(bench, cell, values, path, fill, real):
    shape, names, plan, dim = cell
    mesh = mesh_of(shape, names)
    sizes = taken_by_torch(mesh, plan, dim)

    def sharded(model):
        for layer in model.children():
            wrap(layer, mesh, plan, dim)
        return model

    theirs = Layers(sizes)
    theirs.load_state_dict({name: values[name] for name in theirs.state_dict()})
    sharded(theirs)
    mine = sharded(Layers(sizes) if real else on_meta(lambda: Layers(sizes)))
    fill(bench, mine, path(sizes))
    assert_equal(mine, theirs, "after the load")
    for ours, torchs in zip(mine.parameters(), theirs.parameters()):
        assert not ours.is_meta and ours.requires_grad == torchs.requires_grad
    if plan == "none":  # tensor parallelism itself wants even sizes
        assert_equal(trained(mine), trained(theirs), "after a step")
    return len(sizes)


@contextlib.contextmanager
def cell_of(failures, cell):
    try:
        yield
    except Exception as error:
        failures.append(f"{cell}: {type(error).__name__}: {error}")


def table(bench, fill, real, dims):
    values, saved, failures, filled = values_of(Layers(SIZES)), {}, [], 0

    def path(sizes):
        if tuple(sizes) not in saved:
            names = Layers(sizes).state_dict()
            saved[tuple(sizes)] = bench.save({name: values[name] for name in names})
        return saved[tuple(sizes)]

    for cell in cells(bench.world, dims):
        with cell_of(failures, cell):
            filled += check_cell(bench, cell, values, path, fill, real)
    assert not failures, f"{len(failures)} cells:\n" + "\n".join(failures)
    assert filled >= 40, filled


def load_into_fills_every_mesh_as_torch_shards_it(bench):
    table(bench, by_load_into, real=False, dims=(0, 1))


def load_into_fills_a_real_model_on_every_mesh(bench):
    table(bench, by_load_into, real=True, dims=(0,))


def set_model_state_dict_fills_every_mesh_as_torch_shards_it(bench):
    table(bench, by_set_model_state_dict, real=False, dims=(0,))


class Placed(nn.Module):
    """Parameters and buffers laid over a mesh by hand."""

    def __init__(self, tensors, mesh, placements, as_buffer):
        super().__init__()
        for name, tensor in tensors.items():
            placed = distribute_tensor(tensor, mesh, placements)
            if as_buffer:
                self.register_buffer(name, placed)
            else:
                self.register_parameter(name, nn.Parameter(placed))


def placements_by_hand_are_distribute_tensor_s(bench):
    """Tensors without elements among them; any placement in each dimension of the mesh."""
    shapes = [(4, 3), (5, 2), (1, 4), (0, 4), (3, 0), (2, 1, 3), (7, 1)]
    generator = torch.Generator().manual_seed(5)
    tensors = {"x".join(map(str, shape)): torch.randn(shape, generator=generator) for shape in shapes}
    path, failures = bench.save(tensors), []
    meshes = {2: [(2,), (2, 1), (1, 2)], 4: [(2, 2)]}[bench.world]
    for shape in meshes:
        mesh = init_device_mesh("cpu", shape)
        for placements in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=len(shape)):
            for as_buffer in (False, True):
                with cell_of(failures, (shape, placements, as_buffer)):
                    theirs = Placed(tensors, mesh, placements, as_buffer)
                    empty = {name: torch.empty_like(t, device="meta") for name, t in tensors.items()}
                    mine = Placed(empty, mesh, placements, as_buffer)
                    bench.load(mine, path, init_buffers=None)
                    assert_equal(mine, theirs, "after the load")
    assert not failures, f"{len(failures)} cells:\n" + "\n".join(failures)


EVERY = [
    load_into_fills_every_mesh_as_torch_shards_it,
    load_into_fills_a_real_model_on_every_mesh,
    set_model_state_dict_fills_every_mesh_as_torch_shards_it,
    placements_by_hand_are_distribute_tensor_s,
]
CASES = {2: EVERY, 4: [EVERY[0], EVERY[3]]}
