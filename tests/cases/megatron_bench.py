"""Folders that Megatron-Core wrote, as torch reads them, and sharded state dicts of ranks at any parallel sizes."""

import hashlib
import io
import json
import pathlib
import pickle

import torch

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
FOLDERS = sorted(path.name for path in FIXTURES.glob("megatron*"))
FLAT = "megatron_old_fully_sharded_model_space"


class _Stub:
    """What a class of megatron-core that wrote a .metadata is to these tests."""

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {})


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return _Stub if module.startswith("megatron") else super().find_class(module, name)


class Truth:
    """A folder: its tensors whole and its objects, read without daemons and without megatron-core."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        with open(folder / ".metadata", "rb") as file:
            metadata = _Reader(file).load()
        self.tensors, self.objects = {}, {}
        for index, place in metadata.storage_data.items():
            with open(folder / place.relative_path, "rb") as file:
                file.seek(place.offset)
                value = torch.load(io.BytesIO(file.read(place.length)), weights_only=False)
            stored = metadata.state_dict_metadata[index.fqn]
            if not hasattr(stored, "size"):
                self.objects[index.fqn] = value[0]
                continue
            whole = self.tensors.setdefault(index.fqn, torch.empty(stored.size, dtype=stored.properties.dtype))
            whole[tuple(slice(at, at + size) for at, size in zip(index.offset, value.shape))] = value
        self.stored = dict(self.tensors)  # as expected.json has them
        for key, facts in getattr(metadata, "mcore_data", {}).items():
            if "nd_reformulated_orig_global_shape" in facts:
                self.tensors[key] = unflattened(self.tensors[key], facts["nd_reformulated_orig_global_shape"])
        if (folder / "common.pt").exists():
            self.common = torch.load(folder / "common.pt", weights_only=False)
        else:
            self.common = self.objects["common_state/shard_0_1"]


def unflattened(stored, shape):
    """A tensor of shards along each axis, flattened, as the tensor of `shape` that they are shards of."""
    whole = torch.empty(shape, dtype=stored.dtype)
    sizes = [size // count for size, count in zip(shape, stored.shape)]
    for place in torch.cartesian_prod(*(torch.arange(count) for count in stored.shape[:-1])).reshape(-1, len(shape)).tolist():
        whole[tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, sizes))] = stored[tuple(place)].view(sizes)
    return whole


def digest(tensor):
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def expected(folder):
    return json.loads((FIXTURES / folder / "expected.json").read_text())["tensors"]


class Sizes:
    """Parallel sizes, and this rank's place: its numbers in each. dp: the rest of the ranks."""

    def __init__(self, rank, world, tp=1, pp=1):
        self.tp, self.pp, self.dp = tp, pp, world // tp // pp
        self.t, self.d, self.p = rank % tp, rank // tp % self.dp, rank // tp // self.dp

    def __str__(self):
        return f"TP{self.tp} PP{self.pp} DP{self.dp}"


def sizes(rank, world):
    """The sizes that are tried."""
    found = [Sizes(rank, world, tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4) if tp * pp <= world and world % (tp * pp) == 0]
    return found


def part(size, count, number):
    """(begin, length) of one of `count` parts."""
    return (size * number // count, size * (number + 1) // count - size * number // count)


def places(key, shape, at):
    """Boxes (prepended axes, offsets, extents) of a tensor that a rank at these sizes has of it, as a GPT model's."""
    lead = 0 if "decoder.layers." not in key else 2 if "experts.experts" in key else 1
    lead = min(lead, len(shape))
    found = [((), ())]
    for axis in range(lead):
        count, number = (at.pp, at.p) if axis == 0 else (at.tp, at.t)
        begin, length = part(shape[axis], count, number) if shape[axis] >= count else (0, shape[axis])
        found = [(offsets + (n,), extents + (1,)) for offsets, extents in found for n in range(begin, begin + length)]
    rows, columns = shape[lead:], "linear_proj.weight" in key or "linear_fc2.weight" in key
    cut = min(1 if columns else 0, len(rows) - 1)
    if "layernorm" in key or "layer_norm" in key or lead == 2 or not rows or rows[cut] % (2 * at.tp):
        return [(lead, offsets + (0,) * len(rows), extents + rows) for offsets, extents in found]
    halves = 2 if "linear_fc1" in key else 1  # two matrices, one below the other
    size = rows[cut] // halves // at.tp
    return [(lead, offsets + (0,) * cut + ((half * at.tp + at.t) * size,) + (0,) * (len(rows) - cut - 1),
             extents + rows[:cut] + (size,) + rows[cut + 1 :])
            for offsets, extents in found for half in range(halves)]


def garbage(shape, dtype):
    return torch.full(shape, 7, dtype=dtype)


def box(whole, offsets, extents):
    return whole[tuple(slice(at, at + size) for at, size in zip(offsets, extents))]


def sharded(kinds, key, whole, place, data=None, **more):
    """The ShardedTensor of a box."""
    lead, offsets, extents = place
    grid = [-(-size // max(1, length)) for size, length in zip(whole.shape, extents)]
    regular = all(at % length == 0 for at, length in zip(offsets, extents) if length)
    facts = {"key": key, "data": data, "dtype": whole.dtype, "local_shape": tuple(extents[lead:]),
             "global_shape": tuple(whole.shape), "global_offset": tuple(offsets), "prepend_axis_num": lead,
             "axis_fragmentations": tuple(grid) if regular else None, **more}
    return kinds.ShardedTensor(**facts)


def model_of(kinds, truth, at, filled):
    """(sharded state dict of this rank, what each entry must become). filled: whether entries hold tensors."""
    state, right = {}, {}
    for number, (key, whole) in enumerate(sorted(truth.tensors.items())):
        for place in places(key, tuple(whole.shape), at):
            lead, offsets, extents = place
            data = garbage(extents[lead:], whole.dtype) if filled else None
            replica = (0, 0, at.d) if extents != tuple(whole.shape) else (0, at.t, at.d)
            state.setdefault(key, []).append(sharded(kinds, key, whole, place, data, replica_id=replica))
            right.setdefault(key, []).append(box(whole, offsets, extents).reshape(extents[lead:]))
    for key, value in truth.objects.items():
        name, _, numbers = key.partition("/shard_")
        offset, shape = (tuple(map(int, text.split("."))) for text in numbers.split("_"))
        state[key] = kinds.ShardedObject(name, None, shape, offset, replica_id=(0, at.t, at.d))
        right[key] = value
    return state, right


def same(a, b):
    """Whether values of objects are equal, tensors and bytes in them included."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and digest(a) == digest(b)
    if isinstance(a, io.BytesIO):
        return isinstance(b, io.BytesIO) and a.getvalue() == b.getvalue()
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if type(a).__module__ == "numpy":
        return type(a) is type(b) and bool((a == b).all())
    return type(a) is type(b) and (a == b or vars(a) == vars(b))


def assert_same(found, right, what):
    assert found.keys() == right.keys(), what
    for key in right:
        assert same(found[key], right[key]), f"{what}: {key}: {found[key]} and not {right[key]}"[:2000]
