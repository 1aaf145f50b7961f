"""LoadStrategy: what dist_checkpointing.load reads by, with the daemons in place of files."""

import contextlib
import functools
import json
import os
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Union

import torch

from .. import _client, _dtypes, _participant
from .._rpc import Deadline
from .._shard import Shard
from .._source import local_path, of_part
from .._types import Source
from ..torch import _daemon
from ..torch.agree import _agreement
from ..torch.load import _file_tensor, _memory
from . import _objects, _values
from ._request import Request
from ._wanted import Stored

_DOING = "loading a Megatron-Core checkpoint"
_BACKENDS = ("torch_dist", "fsdp_dtensor", "torch")  # torch: of common values
_VERSION = 1
_COMMON_FILE, _COMMON_OBJECT = "common.pt", "common_state/shard_0_1"
Folder = Union[str, Path]


class LoadStrategy:
    """Loads distributed checkpoints of Megatron-Core through the daemons.

    strategy = ckptd.megatron.LoadStrategy()
    state = dist_checkpointing.load(sharded_state_dict, folder, sharded_strategy=strategy)

    In place of megatron-core's TorchDistLoadShardedStrategy, with the same result, for folders of the
    backends torch_dist and fsdp_dtensor that megatron-core 0.12 to 0.19 wrote, at any parallel sizes.
    All ranks of the job make the call; their daemons read each needed byte once, and each rank gets
    the boxes of its ShardedTensors. ShardedTensors with a `flattened_range` (megatron-core up to
    0.15) get the rows that their run touches. It serves as the base of
    FullyParallelLoadStrategyWrapper too, and up to 0.18 as `common_strategy`, which then also reads
    the common values of folders that 0.19 wrote.

    address, client: the daemon of this rank, as for ckptd.connect. timeout: seconds for each call,
    including waits for other ranks and for memory in use.
    allow: further classes of which values may be made that are no tensors. unpickle: reads such
    values instead, from a path or a binary file; functools.partial(torch.load, weights_only=False)
    runs whatever the file says, as megatron-core does.
    """

    def __init__(
        self,
        *,
        address: Optional[str] = None,
        client: Optional[_client.Client] = None,
        timeout: float = 600.0,
        allow: Sequence[type] = (),
        unpickle: Optional[_values.Unpickle] = None,
    ) -> None:
        self._own_daemon = _agreement.OwnDaemon(address, client)
        self._timeout, self._read = timeout, _values.reader(allow, unpickle)

    @torch.inference_mode(False)
    def load(
        self, sharded_state_dict: Dict[str, Any], checkpoint_dir: Folder, async_strategy: str = ""
    ) -> Dict[str, Any]:
        """A state dict as `sharded_state_dict`, with what was loaded in place of each entry.

        sharded_state_dict: dicts and lists of ShardedTensors and ShardedObjects. A ShardedTensor's
        `data` is filled in place, cast to its type, and is the result. Without `data` the result is a
        tensor over the daemon's memory, copied when it is written, or on the host if that is a GPU's.
        async_strategy is not used.

        All ranks raise, with the reason of the first rank that failed: CheckpointingException of a
        key that the checkpoint lacks or has in another shape, pickle.UnpicklingError for a value of
        a class that is not allowed, ckptd.Error. Tensors may be filled in part by then.
        """
        with _agreement.collective_call(_DOING, self._own_daemon):
            source, deadline = _all_of(checkpoint_dir), Deadline(self._timeout)
        with _agreement.agree(_DOING, deadline, source, self._own_daemon) as group:
            client = group.client or self._own_daemon.client
            with _daemon.connected(self._own_daemon.address, client, deadline, group.rank) as own:
                said = group.announcement(functools.partial(_announcement, own, source, deadline))
                identity, contents = json.loads(said)
                request = Request(sharded_state_dict, {n: Stored(d, tuple(s), o) for n, (d, s, o) in contents.items()})
                layout = request.layout(*_daemon.rank_and_size())
                of_all = group.vote(1, repr(layout))
                group.forget_announcement()
                options = {"layout": layout, "progress": lambda _: group.check_others(2)}
                with _participation(own, source, deadline, group.size) as participant:
                    options["_participant"] = participant
                    shard = _attach(own, source, request, deadline, identity, of_all, options)
                    with shard or contextlib.nullcontext():
                        made = request.values(shard, self._read)
                group.vote(2)
                return made

    def load_common(self, checkpoint_dir: Folder) -> Any:
        """The values of the checkpoint that are the same on all ranks.

        They are in common.pt, which this rank reads, or within the checkpoint (megatron-core 0.19):
        then all ranks must make the call. Raises as `load`.
        """
        path = os.path.join(checkpoint_dir, _COMMON_FILE)
        if os.path.exists(path):
            with _agreement.local_preparation(_DOING, self._own_daemon):
                return self._read(path)
        entry = _ObjectOf(_COMMON_OBJECT)
        return self.load({"common": entry}, checkpoint_dir)["common"]

    def load_tensors_metadata(self, checkpoint_dir: Folder) -> Dict[str, Any]:
        """Key -> ShardedTensor without data, of each tensor in the checkpoint: its shape and dtype count.

        For one rank alone; needs megatron-core. Raises ckptd.Error.
        """
        from megatron.core.dist_checkpointing.mapping import ShardedTensor

        tensors = {name: one for name, one in self._inspect(checkpoint_dir).items() if not one.is_object}
        return {name: _without_data(ShardedTensor, name, one) for name, one in tensors.items()}

    def load_sharded_metadata(self, checkpoint_dir: Folder) -> Dict[str, Any]:
        """The same, and unique key -> ShardedObject without data."""
        from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor

        return {
            name: ShardedObject.empty_from_unique_key(name)
            if one.is_object
            else _without_data(ShardedTensor, name, one)
            for name, one in self._inspect(checkpoint_dir).items()
        }

    def _inspect(self, folder: Folder) -> Dict[str, Stored]:
        deadline = Deadline(self._timeout)
        rank, _ = _daemon.rank_and_size()
        with _daemon.connected(*self._own_daemon, deadline, rank) as own:
            return _contents_of(own.inspect(_all_of(folder), deadline.for_call()))

    def remove_sharded_tensors(self, checkpoint_dir: Folder, key_prefix: str) -> None:
        """Removes files of the checkpoint, by megatron-core's own function: daemons write nothing."""
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy

        TorchDistLoadShardedStrategy().remove_sharded_tensors(checkpoint_dir, key_prefix)

    @property
    def can_handle_sharded_objects(self) -> bool:
        """Whether `load` takes ShardedObjects: it does."""
        return True

    def check_backend_compatibility(self, loaded_backend: str) -> None:
        """Raises CheckpointingException for a form that the daemons do not read, such as zarr."""
        if loaded_backend not in _BACKENDS:
            raise _unreadable(f"its backend is {loaded_backend!r}, and {', '.join(_BACKENDS)} are read")

    def check_version_compatibility(self, loaded_version: int) -> None:
        """Raises CheckpointingException for a version of the form other than 1."""
        if loaded_version != _VERSION:
            raise _unreadable(f"its backend's version is {loaded_version}, and {_VERSION} is read")


class _ObjectOf:
    """A ShardedObject that is known by its unique key."""

    def __init__(self, unique_key: str) -> None:
        self.key = self.unique_key = unique_key


def _unreadable(why: str) -> Exception:
    kind = _objects.of_megatron("CheckpointingException", _objects.CheckpointingException)
    return kind(f"opening a Megatron-Core checkpoint: {why}; load it by megatron-core and save it again")


def _without_data(kind: Any, name: str, stored: Stored) -> Any:
    dtype = _memory.dtype_of(stored.dtype, name)
    return kind.from_rank_offsets(name, torch.empty(stored.shape, dtype=dtype, device="meta")).without_data()


def _all_of(folder: Folder) -> str:
    """The source that has all parts of a folder by their whole names."""
    return str(of_part(local_path(folder), "all"))


def _contents_of(found: Source) -> Dict[str, Stored]:
    numbers = {name: row.number for name, row in _dtypes.BY_NAME.items()}
    return {
        name: Stored(numbers.get(one.dtype, 0), tuple(one.shape), one.kind == "object")
        for name, one in found.tensors.items()
    }


def _participation(own: _client.Client, source: str, deadline: Deadline, world_size: int) -> Any:
    """A block in which daemons tell the ranks of a rank whose process ends, on other hosts too."""
    if world_size == 1:
        return contextlib.nullcontext(_participant.NoParticipant())
    return _participant.participate(own, source, deadline, barrier=False)


def _announcement(own: _client.Client, source: str, deadline: Deadline) -> str:
    """What rank 0's daemon says of the checkpoint, for all ranks."""
    found = own.inspect(source, deadline.for_call())
    contents = {name: (one.dtype, one.shape, one.is_object) for name, one in _contents_of(found).items()}
    return json.dumps([found.identity, contents])


def _attach(
    own: _client.Client,
    source: str,
    request: Request,
    deadline: Deadline,
    identity: str,
    of_all: str,
    options: Dict[str, Any],
) -> Optional[Shard]:
    """Has the daemons load what all ranks ask for. This rank's shard; None if it asks for nothing.

    of_all: a digest of what all ranks ask for. It makes the load another one for a rank that asks for
    the same as before: its daemon would take the shard that it has, and others would wait for it.
    """
    is_kept = request.keeps_memory and own.device(deadline.for_call()) is None
    mode, left = "private" if is_kept else "shared", deadline.for_call()
    # A pattern that matches no tensor, as no key begins so. It is part of the load's identity.
    options = {**options, "keep_fp32": [f"#{of_all}"], "digest": False}
    loaded = own.load(source, mode=mode, timeout=left, wait_memory=left, **options)
    _file_tensor.check_unchanged(loaded, source, identity)
    return None if request.is_empty else own.acquire(loaded, mode, timeout=deadline.for_call())
