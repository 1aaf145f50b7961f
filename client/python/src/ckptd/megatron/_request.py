"""A sharded state dict as one rank's request to its daemon, and its values from the rank's shard."""

import io
from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from .. import _dtypes
from .._layout import RankLayout, Sharding
from .._shard import Shard
from ..torch.load import _memory
from ..transformers._boxes import BoxRequest
from . import _objects, _values, _wanted
from ._wanted import Stored, WantedBox


class Request:
    """What a rank's sharded state dict asks for. Raises CheckpointingException if `contents` do not fit it.

    contents: name -> what the checkpoint has under it. Raises TypeError for an entry that is neither
    a ShardedTensor nor a ShardedObject.
    """

    def __init__(self, sharded_state_dict: Any, contents: Mapping[str, Stored]) -> None:
        self._tree, self._contents = sharded_state_dict, contents
        self._wanted: Dict[int, WantedBox] = {}  # by id of a ShardedTensor
        self._dtypes: Dict[str, set] = {}
        self._objects: Dict[str, int] = {}  # unique key -> how many values were given
        for entry in _objects.leaves(sharded_state_dict):
            self._note(entry)
        boxes = _wanted.by_name(list(self._wanted.values()))
        self._boxes = {name: BoxRequest(of, contents[name].shape) for name, of in sorted(boxes.items())}

    def _note(self, entry: Any) -> None:
        if _objects.is_sharded_tensor(entry):
            self._wanted[id(entry)] = _wanted.box_of(entry, self._contents)
            self._dtypes.setdefault(entry.key, set()).add(entry.dtype)
        elif _objects.is_sharded_object(entry):
            if not self._contents.get(entry.unique_key, _NOTHING).is_object:
                raise _wanted.missing(entry, entry.unique_key, self._contents)
            self._objects[entry.unique_key] = 0
        else:
            raise TypeError(
                f"loading a sharded state dict: it holds a {type(entry).__name__}, which is neither a "
                "ShardedTensor nor a ShardedObject; call dist_checkpointing.load, which takes out all else"
            )

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be loaded."""
        return not self._boxes and not self._objects

    @property
    def keeps_memory(self) -> bool:
        """Whether tensors are to be made over the shard's memory, as there are none to fill."""
        return any(_objects.is_sharded_tensor(e) and e.data is None for e in _objects.leaves(self._tree))

    def layout(self, rank: int, world_size: int) -> RankLayout:
        """The request, for the daemon."""
        made = RankLayout(rank, world_size)
        known: Dict[Sharding, int] = {}
        for name in sorted({*self._boxes, *self._objects}):
            request = self._boxes.get(name)
            whole = request is None or request.is_whole
            sharding = Sharding() if whole else Sharding(boxes=tuple(request.boxes))
            stored = self._contents[name]
            made.add(name, stored.shape, known.setdefault(sharding, len(known)), self._dtype(name, stored))
        made.shardings.extend(known)
        return made

    def _dtype(self, name: str, stored: Stored) -> int:
        """The stored type, or the one that the daemon casts to."""
        wanted = [_memory.number_of(dtype) for dtype in self._dtypes.get(name, ())]
        casts = len(wanted) == 1 and {stored.dtype, *wanted} <= set(_dtypes.CASTABLE)
        return wanted[0] if casts else stored.dtype

    def values(self, shard: Optional[Shard], read: _values.Unpickle) -> Any:
        """The state dict with a value in place of each entry. Fills tensors that entries hold."""
        rows = _Rows(shard, self._boxes)
        loaded: Dict[str, Any] = {}

        def value(entry: Any) -> Any:
            if _objects.is_sharded_tensor(entry):
                return _tensor(entry, self._wanted[id(entry)], rows)
            name = entry.unique_key
            if name not in loaded:
                loaded[name] = read(io.BytesIO(rows.bytes_of(name)))
            # megatron-core stores a list of what its ranks had under the key, which is one value.
            place, self._objects[name] = self._objects[name], self._objects[name] + 1
            return loaded[name][min(place, len(loaded[name]) - 1)]

        return _objects.mapped(self._tree, value)


_NOTHING = Stored(0, ())


class _Rows:
    """Tensors over a shard's memory, by name."""

    def __init__(self, shard: Optional[Shard], boxes: Mapping[str, BoxRequest]) -> None:
        self._shard, self._boxes = shard, boxes
        self._made: Dict[str, torch.Tensor] = {}

    def _whole(self, name: str) -> torch.Tensor:
        if name not in self._made:
            assert self._shard is not None
            self._made[name] = _memory.whole(self._shard, self._shard.table.index[name])
        return self._made[name]

    def box(self, name: str, box: Tuple[Tuple[int, ...], Tuple[int, ...]]) -> torch.Tensor:
        """The part of a tensor that is in `box`."""
        return self._whole(name)[self._boxes[name].index_of(box)]

    def bytes_of(self, name: str) -> bytes:
        return self._whole(name).cpu().numpy().tobytes()


def _tensor(entry: Any, wanted: WantedBox, rows: _Rows) -> torch.Tensor:
    """An entry's value: its own tensor, filled, or one over the shard's memory."""
    value = None if wanted.held is None else rows.box(wanted.name, wanted.held)
    if wanted.held != wanted.box:
        value = _padded(value, wanted, entry)
    value = value.reshape(entry.local_shape) if wanted.run is None else value.reshape(-1)[wanted.run]
    if entry.data is None:
        return value.to("cpu", entry.dtype).contiguous()
    target = entry.data.detach()
    return target.copy_(value)


def _padded(held: Optional[torch.Tensor], wanted: WantedBox, entry: Any) -> torch.Tensor:
    """The box of a tensor that is smaller in the checkpoint, with zeros behind what is there."""
    like: Dict[str, Any] = {"dtype": entry.dtype} if held is None else {"dtype": held.dtype, "device": held.device}
    made = torch.zeros(wanted.box[1], **like)
    if held is not None:
        made[tuple(slice(0, size) for size in held.shape)] = held
    return made
