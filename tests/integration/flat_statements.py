"""A rank's statement of flat parameters without torch, and what numpy says it must receive."""

import numpy as np
from ckptd._layout import SHARD, FlatParameter, Mesh, RankLayout, Sharding

# One flat parameter with padding between its members, before them and behind; one without.
FLATS = {"padded": {"b": 3, "a": 300_010}, "dense": {"c": 0}}
SHAPES = {"a": (777,), "b": (1000, 300), "c": (64, 129, 5)}
ELEMENTS = {"padded": 300_800, "dense": 64 * 129 * 5}


def tensors():
    generator = np.random.default_rng(3)
    return {name: generator.random(shape, np.float32) for name, shape in SHAPES.items()}


def statement(rank, world):
    layout = RankLayout(rank, world)
    layout.meshes.append(Mesh((world,), tuple(range(world))))
    layout.shardings += [Sharding(), Sharding(0, ((SHARD, 0, 1),), 0)]
    for name, shape in SHAPES.items():
        layout.add(name, shape, 0)
    for name, members in FLATS.items():
        places = tuple((layout.names.index(member), begin) for member, begin in members.items())
        layout.flats.append(FlatParameter(name, 1, ELEMENTS[name], places))
    return layout


def expected(name, values, rank, world):
    """The rank's ceil chunk of the flat tensor, padded to the first one's length."""
    size = -(-ELEMENTS[name] // world)
    flat = np.zeros(size * world, np.float32)
    for member, begin in FLATS[name].items():
        flat[begin : begin + values[member].size] = values[member].reshape(-1)
    return flat[rank * size : (rank + 1) * size]


def received(shard, name):
    row, offset, elements = shard.table.flats[name]
    assert row.name == "F32"
    return np.frombuffer(shard.array, np.float32, elements, offset)
