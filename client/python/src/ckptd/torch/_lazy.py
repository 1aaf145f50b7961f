"""State dicts whose values stay in the checkpoint until somebody asks for them."""

import collections.abc
import hashlib
import json
import logging
import os
import pickle
from dataclasses import dataclass
from typing import (
    Any,
    Dict,
    ItemsView,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
    Union,
    ValuesView,
)

import torch

from .. import _client
from .._errors import Error, NotFound, source_changed
from .._types import Source
from . import _agree, _load, _memory, _native, _native_files, _private
from ._targets import SLOTS

_LOG = logging.getLogger("ckptd")
# Bytes of values asked for at once while all are walked through. A larger tensor is a group of its
# own. Whoever walks holds the last value, and with it its group, while the next one comes.
_CHUNK = 24 << 20
# Of one look-up: a load takes 2 MiB of the daemon's memory at least. Larger tensors cost more to
# copy than a load of their own does, where look-ups jump about in the file.
_SMALL = 64 << 10  # bytes of a tensor that brings others along
_NEAR = 2 << 20  # bytes that are brought, and kept here until the next ones come
_LEAST = 4 << 10  # bytes that a tensor counts as: it is an object, and a name in a request


@dataclass(frozen=True, **SLOTS)
class InFile:
    """A tensor of a checkpoint: where it is, and what it is."""

    source: str
    name: str
    dtype: int  # ckptd.v1.Dtype
    shape: Tuple[int, ...]
    nbytes: int


def entries_of(
    client: _client.Client, source: Union[str, os.PathLike], deadline: _load.Deadline
) -> Dict[str, InFile]:
    """What `source` holds, by name, further names of tied tensors included; in file order."""
    return _entries(client.inspect(source, timeout=deadline.for_call()))


def _entries(found) -> Dict[str, InFile]:
    from .._dtypes import BY_NAME

    entries = {}
    for name, tensor in found.tensors.items():
        row = BY_NAME.get(tensor.dtype)
        number = row.number if row else 0
        entries[name] = InFile(found.source, name, number, tensor.shape, tensor.nbytes)
    for alias, name in found.aliases.items():
        held = entries[name]
        entries[alias] = InFile(held.source, alias, held.dtype, held.shape, held.nbytes)
    return entries


class LazyStateDict(collections.abc.MutableMapping):
    """name -> tensor of a checkpoint. A state dict for the functions of this package,
    which spread it without its values ever coming here, and a mapping for others.

    Looking a value up has this rank's daemon load that tensor, whole, into its memory,
    and gives a torch.Tensor over it that may be written (copy on write): its memory goes
    with it. One of up to 64 KiB comes with its small neighbours, up to 2 MiB together, and is
    a copy; the last 2 MiB of these are kept here, as they were read, for look-ups to come.
    values() and items() load some megabytes at a time, and keep nothing. Names can be
    removed, replaced by tensors, and taken over from another one by update(), which reads
    nothing. Not thread-safe. Raises ckptd.Error where the daemon does and where a tensor is
    in its file no more, KeyError for a name that is not there.
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        *,
        address: Optional[str] = None,
        client: Optional[_client.Client] = None,
        timeout: float = 600.0,
        devices: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """entries: InFile, or a value. devices: where values go, the host if not named."""
        self.entries: Dict[str, Any] = dict(entries)
        self._address, self._client, self._timeout = address, client, timeout
        self._devices = dict(devices or {})
        self._near: Dict[InFile, Any] = {}

    def __repr__(self) -> str:
        left = [e for e in self.entries.values() if isinstance(e, InFile)]
        sources = sorted({e.source for e in left})
        return f"<ckptd.torch.LazyStateDict of {len(self)} names, {len(left)} in {sources}>"

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __getitem__(self, name: str) -> Any:
        entry = self.entries[name]
        if not isinstance(entry, InFile):
            return entry
        if not _is_small(entry):
            return self._read([name])[name]
        near = self._near
        if entry not in near:
            near = self._near = {}  # before the next ones: never both
            near = self._near = self._bring(entry.source, self._neighbours_of(name))
        if entry not in near:
            raise _gone(entry)
        value = near[entry]
        return value.to(self._devices.get(name, value.device), copy=True)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_near": {}}

    def __setitem__(self, name: str, value: Any) -> None:
        self.entries[name] = value

    def __delitem__(self, name: str) -> None:
        del self.entries[name]

    def values(self) -> ValuesView[Any]:
        """Of all names; loaded some megabytes at a time while one goes through them."""
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        """(name, value) of all; loaded as by values()."""
        return _Items(self)

    def update(
        self, other: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]] = (), /, **more: Any
    ) -> None:
        """As dict.update; from another LazyStateDict nothing is read."""
        if isinstance(other, LazyStateDict):
            other = other.entries
        self.entries.update(other, **more)

    def identity(self) -> str:
        """For people and comparisons: its sources, and a digest of all names and own values."""
        digest, sources = hashlib.blake2b(digest_size=8), set()
        for name, entry in sorted(self.entries.items()):
            what = entry
            if isinstance(entry, InFile):
                sources.add(entry.source)
                what = entry.source, entry.name
            elif isinstance(entry, torch.Tensor):
                entry = _private.local_of(entry).detach().cpu().contiguous()
                digest.update(entry.reshape(-1).view(torch.uint8).numpy())
                what = str(entry.dtype), tuple(entry.shape)
            digest.update(pickle.dumps((name, what)))
        return f"a LazyStateDict of {', '.join(sorted(sources)) or 'no file'} ({digest.hexdigest()})"

    def copy(self) -> "LazyStateDict":
        """Another one of the same names; nothing is read."""
        return self.with_entries(self.entries)

    def with_entries(self, entries: Mapping[str, Any]) -> "LazyStateDict":
        """Others, of the same daemon; nothing is read."""
        near: Dict[str, Any] = {"address": self._address, "client": self._client}
        return LazyStateDict(entries, devices=self._devices, timeout=self._timeout, **near)

    def walk(self) -> Iterator[Tuple[str, Any]]:
        """(name, value) of all, loaded in groups of up to _CHUNK bytes."""
        group: List[str] = []
        size = 0
        for name, entry in list(self.entries.items()):
            nbytes = entry.nbytes if isinstance(entry, InFile) else 0
            if group and size + nbytes > _CHUNK:
                yield from self._read(group).items()
                group, size = [], 0
            group.append(name)
            size += nbytes
        yield from self._read(group).items()

    def _bring(self, source: str, entries: List[InFile]) -> Dict[InFile, Any]:
        """Copies of those that `source` still has: views would keep all of them in the daemon's memory."""
        shard = self._shard(source, [entry.name for entry in entries])
        with _private.quick_dispatch():
            held = [(entry, shard.table.index.get(entry.name)) for entry in entries]
            return {e: _memory.whole(shard, i).clone() for e, i in held if i is not None}

    def _neighbours_of(self, name: str) -> List[InFile]:
        """The small tensor `name` and those of its source around it, up to _NEAR bytes.

        Which are together does not depend on which is asked for: any order finds most of them there.
        """
        source, found = self.entries[name].source, False
        group: List[InFile] = []
        size = 0
        for other, entry in self.entries.items():
            if not isinstance(entry, InFile) or entry.source != source or not _is_small(entry):
                continue
            cost = max(entry.nbytes, _LEAST)
            if size + cost > _NEAR:
                if found:
                    break
                group, size = [], 0
            group.append(entry)
            size += cost
            found = found or other == name
        return group

    def _read(self, names: List[str]) -> Dict[str, Any]:
        """Values of `names`, in that order; each source is asked once."""
        wanted: Dict[str, List[str]] = {}
        for name in names:
            entry = self.entries[name]
            if isinstance(entry, InFile):
                wanted.setdefault(entry.source, []).append(entry.name)
        shards = {source: self._shard(source, of) for source, of in wanted.items()}
        found = {}
        with _private.quick_dispatch():
            for name in names:
                entry = self.entries[name]
                if isinstance(entry, InFile):
                    shard = shards[entry.source]
                    if entry.name not in shard.table.index:
                        raise _gone(entry)
                    entry = _memory.whole(shard, shard.table.index[entry.name])
                    if name in self._devices:
                        entry = entry.to(self._devices[name])
                found[name] = entry
        return found

    def _shard(self, source: str, names: List[str]):
        rank, size = _load.rank_and_size()
        layout = {
            "world_size": size,
            "rules": [{"match": names, "only_ranks": [rank]}],
            "default": {"drop": True},
        }
        deadline = _load.Deadline(self._timeout)
        with _load.connected(self._address, self._client, deadline, rank) as own:
            options = {"layout": json.dumps(layout), "mode": "private", "digest": False}
            checkpoint = own.load(source, timeout=deadline.for_call(), **options)
            return own.acquire(checkpoint, "private", timeout=deadline.for_call())


def _gone(entry: InFile) -> Error:
    return source_changed(
        entry.source, f"since its names were read, and it has no {entry.name} now", "read its names again"
    )


def _is_small(entry: InFile) -> bool:
    # One that no tensor can be made of here comes alone, with its error.
    return entry.nbytes <= _SMALL and _memory.has_type(entry.dtype)


class _Values(collections.abc.ValuesView):
    def __init__(self, owner: LazyStateDict) -> None:
        super().__init__(owner)
        self._owner = owner

    def __iter__(self):
        return (value for _, value in self._owner.walk())


class _Items(collections.abc.ItemsView):
    def __init__(self, owner: LazyStateDict) -> None:
        super().__init__(owner)
        self._owner = owner

    def __iter__(self):
        return self._owner.walk()


def load_state_dict(
    checkpoint_file: Union[str, os.PathLike],
    device_map: Optional[Dict[str, Union[int, str, torch.device]]] = None,
    *,
    every_rank: bool = False,
    timeout: float = 600.0,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> Union[LazyStateDict, Dict[str, Any]]:
    """accelerate's function of this name, for a job whose rank 0 alone reads.

    On rank 0 (of the process group, or of the launcher's environment) a LazyStateDict of
    a safetensors file, of its index or of a folder; `{}` on other ranks unless every_rank.
    device_map: module name -> device of the values, as accelerate applies it: one device
    is that of all, names under none of several go to the host. Other files than
    safetensors are torch.load's, on the host, as there. fallback="native" has accelerate
    read where no daemon can be reached.

    Raises what accelerate does: FileNotFoundError, OSError for a file whose metadata says
    no format, ValueError for another format than PyTorch's; else ckptd.Error.
    """
    path = os.fspath(checkpoint_file)
    rank, _ = _load.rank_and_size()
    if rank != 0 and not every_rank:
        return {}
    known = path.endswith((".safetensors", ".safetensors.index.json")) or os.path.isdir(path)
    with _agree.preparing(f"load_state_dict of {path}"):
        if not known:
            return torch.load(path, map_location=torch.device("cpu"), weights_only=True)
        return _native.stand_in(
            "load_state_dict",
            lambda: _open(path, device_map, rank, timeout, address, client),
            lambda: _native_files.read(path, lambda file: _accelerates(file, device_map)),
            fallback,
        )


def _accelerates(path: str, device_map) -> Dict[str, Any]:
    """accelerate's, which knows files but neither indices nor folders."""
    return _native.original("accelerate.utils.modeling", "load_state_dict")(path, device_map)


def _open(path, device_map, rank: int, timeout: float, address, client) -> LazyStateDict:
    deadline = _load.Deadline(timeout)
    with _load.connected(address, client, deadline, rank) as own:
        found = inspect(own, path, deadline)
    entries = _entries(found)
    devices = _devices(entries, device_map) if device_map else None
    return LazyStateDict(entries, address=address, client=client, timeout=timeout, devices=devices)


def inspect(own: _client.Client, path: str, deadline: _load.Deadline) -> Source:
    """What `path` holds. Raises as accelerate does for files that it refuses."""
    try:
        found = own.inspect(path, timeout=deadline.for_call())
    except NotFound as error:
        if error.reason != "SOURCE_NOT_FOUND":
            raise
        raise FileNotFoundError(error.message) from error
    _check_format(path, found.metadata)
    return found


def _check_format(path: str, metadata: Mapping[str, str]) -> None:
    if not metadata:
        _LOG.warning("%s has no metadata; its tensors are taken for PyTorch's", path)
        return
    kind = metadata.get("format")
    if kind not in ("pt", "tf", "flax"):
        raise OSError(
            f"reading {path}: its metadata names no valid format ({kind!r}); save it with "
            "save_pretrained, or with metadata={'format': 'pt'}"
        )
    if kind != "pt":
        raise ValueError(f"reading {path}: it was saved for {kind}; convert it to the 'pt' format")


def _devices(names, device_map: Mapping[str, Any]) -> Dict[str, Any]:
    """name -> device; the rule is accelerate's, of its load_state_dict."""
    values = list(device_map.values())
    if len(set(values)) == 1:
        return dict.fromkeys(names, values[0])
    found = dict.fromkeys(names, "cpu")
    for module, device in device_map.items():
        if device != "disk":
            found.update((n, device) for n in names if n == module or n.startswith(module + "."))
    return found
