"""Objects with the attributes of megatron-core's, for tests where it is not installed.

megatron-core is not among what deploy/setup installs: tests/python/megatron_core.sh runs the same tests with it.
"""

import dataclasses
import types
import typing


@dataclasses.dataclass
class ShardedTensor:
    key: str
    data: typing.Any = dataclasses.field(repr=False)
    dtype: typing.Any
    local_shape: tuple
    global_shape: tuple
    global_offset: tuple
    axis_fragmentations: typing.Any
    replica_id: typing.Any = 0
    prepend_axis_num: int = 0
    allow_shape_mismatch: bool = False
    flattened_range: typing.Any = None

    def __post_init__(self):
        self.validate_metadata_integrity()

    def validate_metadata_integrity(self):
        if self.data is not None and self.flattened_range is None:
            assert tuple(self.data.shape) == tuple(self.local_shape) and self.data.dtype == self.dtype
        assert len(self.local_shape) + self.prepend_axis_num == len(self.global_shape) == len(self.global_offset)

    def without_data(self):
        return dataclasses.replace(self, data=None)

    @classmethod
    def from_rank_offsets(cls, key, data, *offsets, replica_id=0, prepend_axis_num=0, **more):
        """offsets: (axis, number of this part, number of parts)."""
        shape = [1] * prepend_axis_num + list(data.shape)
        whole, begin, parts = list(shape), [0] * len(shape), [1] * len(shape)
        for axis, number, count in offsets:
            whole[axis], begin[axis], parts[axis] = shape[axis] * count, shape[axis] * number, count
        return cls(key, data, data.dtype, tuple(data.shape), tuple(whole), tuple(begin), tuple(parts), replica_id,
                   prepend_axis_num, **more)


@dataclasses.dataclass
class ShardedTensorFactory:
    key: str
    data: typing.Any
    build_fn: typing.Callable
    merge_fn: typing.Callable
    replica_id: typing.Any = 0
    flattened_range: typing.Any = None


@dataclasses.dataclass
class ShardedObject:
    key: str
    data: typing.Any
    global_shape: tuple
    global_offset: tuple
    replica_id: typing.Any = 0

    @property
    def unique_key(self):
        place = "_".join(".".join(map(str, numbers)) for numbers in (self.global_offset, self.global_shape))
        return f"{self.key}/shard_{place}"


class LocalNonpersistentObject:
    def __init__(self, obj):
        self.obj = obj

    def unwrap(self):
        return self.obj


CLASSES = (ShardedTensor, ShardedTensorFactory, ShardedObject, LocalNonpersistentObject)
PLAIN = types.SimpleNamespace(**{kind.__name__: kind for kind in CLASSES})
