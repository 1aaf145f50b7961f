"""Megatron-Core's objects in sharded state dicts, known by their attributes.

So objects of any megatron-core serve, and others of the same attributes where it is not installed.
Nothing here imports megatron-core.
"""

import copy
import dataclasses
import sys
from typing import Any, Callable, Dict, Iterator

_MAPPING = "megatron.core.dist_checkpointing.mapping"

StateDict = Dict[Any, Any]


def is_sharded_tensor(value: Any) -> bool:
    """Whether `value` is a ShardedTensor: a tensor's box in a global tensor."""
    return all(hasattr(value, name) for name in ("key", "local_shape", "global_shape", "global_offset"))


def is_factory(value: Any) -> bool:
    """Whether `value` is a ShardedTensorFactory: it makes ShardedTensors of one tensor."""
    return all(hasattr(value, name) for name in ("key", "build_fn", "merge_fn"))


def is_sharded_object(value: Any) -> bool:
    """Whether `value` is a ShardedObject: a whole value that is no tensor, of one place in a grid."""
    return hasattr(value, "unique_key") and not is_sharded_tensor(value)


def leaves(tree: Any) -> Iterator[Any]:
    """What is in dicts and lists, and in dicts and lists of those, in their order."""
    if isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(value)
    else:
        yield tree


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """New dicts and lists as in `tree`, with `change` of what is in them."""
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [mapped(value, change) for value in tree]
    return change(tree)


def replaced(entry: Any, **fields: Any) -> Any:
    """A copy of `entry` with other values in `fields`."""
    if dataclasses.is_dataclass(entry):
        return dataclasses.replace(entry, **fields)
    made = copy.copy(entry)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def of_megatron(name: str, otherwise: Any) -> Any:
    """megatron-core's own class `name`; `otherwise` if this process has not imported megatron-core."""
    return getattr(sys.modules.get(_MAPPING), name, otherwise)


class CheckpointingException(Exception):
    """Stands for megatron-core's class of this name: a checkpoint and what is asked of it do not fit."""


class LocalNonpersistentObject:
    """Stands for megatron-core's class of this name: a value that is never saved.

    A load puts the local value back.
    """

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def unwrap(self) -> Any:
        """The value itself."""
        return self.obj
