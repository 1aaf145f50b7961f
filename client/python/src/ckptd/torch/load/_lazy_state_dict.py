"""State dicts whose values stay in the checkpoint until they are looked up."""

import collections
import collections.abc
import copy
import hashlib
import types
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import torch

from ... import _client
from ..._rpc import Deadline
from .. import _daemon
from ..compat import _torch_internals
from . import _devices, _file_tensor, _memory, _rename
from ._file_tensor import FileTensor

# Bytes of values that walk() loads at once. A larger tensor is a group of its own. The caller holds
# the last value, and with it its whole group, while the next group is loaded.
_CHUNK = 24 << 20
_MOST = 1 << 30  # bytes read ahead at once, for which one lease is taken
# Small tensors are loaded together, because each load takes at least 2 MiB of the daemon's memory.
# For larger ones a load of their own is cheaper than copies, if look-ups jump about in the file.
_SMALL = 64 << 10  # bytes of a tensor that is loaded with its neighbours
_NEAR = 2 << 20  # bytes loaded together
_LEAST = 4 << 10  # bytes that a tensor counts at least, for its object and its name in the request


class LazyStateDict(dict):
    """name -> tensor of a checkpoint: a dict whose values are read when they are looked up.

    The functions of this package spread it without reading its values into this process. Other
    code sees an ordinary dict of the whole checkpoint. A value that was looked up stays, changes
    in place included, here and in copies. A pickle has all values.

    A look-up has this rank's daemon load the whole tensor into its memory, and gives a
    torch.Tensor over it that may be written (copy on write). A tensor of up to 64 KiB is loaded
    with its small neighbours, up to 2 MiB together, as copies. Look-ups in the order of the file
    are read ahead. walk() goes through all values and keeps none. Names can be removed, renamed
    or replaced by tensors. update() takes names over from another LazyStateDict and reads nothing.

    Not thread-safe. Raises ckptd.Error where the daemon does, KeyError for a name that is not
    there, and Aborted SOURCE_CHANGED if the files have changed since their names were read:
    values of before and after are never mixed.
    """

    def __init__(
        self,
        entries: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]] = (),
        *,
        address: Optional[str] = None,
        client: Optional[_client.Client] = None,
        timeout: float = 600.0,
        devices: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """entries: FileTensor, or a value. devices: name -> device of its value, else the daemon's."""
        super().__init__(_raw_entries(entries))
        self._address, self._client, self._timeout = address, client, timeout
        self._order: List[str] = []
        self._place: Dict[str, int] = {}
        self._next, self._ahead = 0, 0  # where look-ups in order would go on, bytes read so far
        for name, device in (devices or {}).items():
            entry = super().__getitem__(name)
            if isinstance(entry, FileTensor):
                where = entry.source, entry.name, entry.dtype, entry.shape, entry.nbytes
                device = _devices.device_of(device)
                super().__setitem__(name, FileTensor(*where, entry.identity, device))

    @property
    def entries(self) -> Mapping[str, Any]:
        """name -> its value, or a FileTensor if it was not looked up yet. A read-only view of now."""
        entries = {name: _file_tensor.current_value(entry) for name, entry in super().items()}
        return types.MappingProxyType(entries)

    def __repr__(self) -> str:
        left = [e for e in self.entries.values() if isinstance(e, FileTensor)]
        sources = sorted({e.source for e in left})
        return f"<ckptd.torch.LazyStateDict of {len(self)} names, {len(left)} in {sources}>"

    def __iter__(self) -> Iterator[str]:
        # Without an __iter__ of its own, Python would copy the dict past its methods.
        return super().__iter__()

    def __getitem__(self, name: str) -> Any:
        entry = super().__getitem__(name)
        if not isinstance(entry, FileTensor):
            return entry
        owner = entry.owner
        if owner.value is None:
            if _is_small(owner):
                self._read_values(self._small_neighbours(owner), copies=True)
            else:
                self._read_values(self._read_ahead(name, owner))
        return owner.value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def pop(self, name: str, *default: Any) -> Any:
        """Like dict.pop. The value is read, and the name is removed."""
        if default and name not in self:
            return dict.pop(self, name, *default)
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> Tuple[str, Any]:
        name = next(reversed(self), None)
        return dict.popitem(self) if name is None else (name, self.pop(name))

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def values(self) -> "_Values":
        """Values of all names, each read when the iteration comes to it."""
        return _Values(self)

    def items(self) -> "_Items":
        """(name, value) of all, each read when the iteration comes to it."""
        return _Items(self)

    def update(
        self, other: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]] = (), /, **more: Any
    ) -> None:
        """Like dict.update. From another LazyStateDict nothing is read."""
        super().update(_raw_entries(other), **more)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        return self.with_entries({**_raw_entries(self), **_raw_entries(other)})

    def __ror__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        return self.with_entries({**_raw_entries(other), **_raw_entries(self)})

    def __ior__(self, other: Any) -> "LazyStateDict":
        self.update(other)
        return self

    def __eq__(self, other: object) -> Any:
        """Like dicts. Tensors that were not looked up are equal if they are the same bytes of a file."""
        if not isinstance(other, dict):
            return NotImplemented
        if self.keys() != other.keys():
            return False
        mine, theirs = _raw_entries(self), _raw_entries(other)
        return all(_same(mine[n], theirs[n]) or _equal(self[n], other[n]) for n in mine)

    def __ne__(self, other: object) -> Any:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> "LazyStateDict":
        """Returns another dict with the same values. Nothing is read."""
        return self.with_entries(_raw_entries(self))

    __copy__ = copy

    def __deepcopy__(self, memo: Dict[int, Any]) -> "LazyStateDict":
        """Returns another dict with values of its own. Nothing is read."""
        made = memo[id(self)] = self.with_entries({})
        made.update((name, copy.deepcopy(entry, memo)) for name, entry in super().items())
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as an OrderedDict of all values, as state_dict() gives: a reader may have no daemon."""
        return collections.OrderedDict, (), None, None, iter(self.items())

    def rename(self, rename: _rename.Rename) -> "LazyStateDict":
        """Returns another dict with the same values under other names. Nothing is read.

        rename: a dict of old names to new ones, a function of a name, or (pattern, replacement)
        pairs for re.sub, applied in turn. Raises InvalidArgument if two names become one.
        """
        names = _rename.renamed(self, rename)
        return self.with_entries({names[name]: entry for name, entry in super().items()})

    def identity(self) -> str:
        """A text for people and comparisons: its sources, and a digest of names and values.

        A tensor of a file counts as the file's, looked up or not, as long as torch saw no change.
        """
        digest, sources = hashlib.blake2b(digest_size=8), set()
        for name, entry in sorted(_raw_entries(self).items()):
            what = value = _file_tensor.current_value(entry)
            if isinstance(entry, FileTensor):
                sources.add(entry.source)
            if isinstance(entry, FileTensor) and entry.untouched:
                what = entry.source, entry.name
            elif isinstance(value, torch.Tensor):
                value = _torch_internals.local_of(value).detach().cpu().contiguous()
                digest.update(value.reshape(-1).view(torch.uint8).numpy())
                what = str(value.dtype), tuple(value.shape)
            digest.update(repr((name, what)).encode())
        return f"a LazyStateDict of {', '.join(sorted(sources)) or 'no file'} ({digest.hexdigest()})"

    def with_entries(self, entries: Mapping[str, Any]) -> "LazyStateDict":
        """Returns a dict of other entries, for the same daemon. Nothing is read."""
        own_daemon: Dict[str, Any] = {"address": self._address, "client": self._client}
        return LazyStateDict(entries, timeout=self._timeout, **own_daemon)

    def walk(self) -> Iterator[Tuple[str, Any]]:
        """Yields (name, value) of all, read in groups of up to 24 MiB and not kept.

        Changes in a value are lost with it, unless it had been looked up before.
        """
        group: List[Tuple[str, Any]] = []
        size = 0
        for name, entry in list(super().items()):
            waits = isinstance(entry, FileTensor) and entry.owner.value is None
            nbytes = entry.nbytes if waits else 0
            if group and size + nbytes > _CHUNK:
                yield from self._values_of(group)
                group, size = [], 0
            group.append((name, entry))
            size += nbytes
        yield from self._values_of(group)

    def _values_of(self, group: List[Tuple[str, Any]]) -> List[Tuple[str, Any]]:
        left = [e for _, e in group if isinstance(e, FileTensor) and e.owner.value is None]
        read = {id(e): value.to(e.device or value.device) for e, value in zip(left, self._read(left))}
        return [(name, read.get(id(entry), _file_tensor.current_value(entry))) for name, entry in group]

    @torch.inference_mode(False)  # tensors of inference mode have no version counter and cannot be trained
    def _read_values(self, entries: List[FileTensor], copies: bool = False) -> None:
        """Reads values of `entries`. copies: a view of one would keep the memory of all."""
        for entry, value in zip(entries, self._read(entries)):
            entry.set_value(value.clone() if copies else value)

    def _small_neighbours(self, wanted: FileTensor) -> List[FileTensor]:
        """The small tensor `wanted` and small ones around it in its source, up to _NEAR bytes.

        The groups do not depend on `wanted`, so look-ups in any order find most values there.
        """
        group: List[FileTensor] = []
        size, found = 0, False
        seen = set()
        for entry in (e.owner for e in super().values() if isinstance(e, FileTensor)):
            other = (entry.source, entry.identity) != (wanted.source, wanted.identity)
            if other or entry in seen or not _is_small(entry):
                continue
            seen.add(entry)
            cost = max(entry.nbytes, _LEAST)
            if size + cost > _NEAR:
                if found:
                    break
                group, size = [], 0
            group.append(entry)
            size += cost
            found = found or entry is wanted
        return [entry for entry in group if entry.value is None]

    def _read_ahead(self, name: str, wanted: FileTensor) -> List[FileTensor]:
        """`wanted` and, if look-ups were in order so far, the tensors behind it: twice as much each time."""
        if len(self._order) != len(self) or self._order[self._place.get(name, 0)] != name:
            self._order = list(self)
            self._place = {each: i for i, each in enumerate(self._order)}
            self._next = self._ahead = 0
        at = self._place[name]
        large = (self._order[i] for i in range(self._next, at))
        in_order = self._ahead and self._next <= at and not any(map(self._unread_large, large))
        group, size = [wanted], wanted.nbytes
        room = min(max(2 * self._ahead, _CHUNK), _MOST) if in_order else 0
        while at + 1 < len(self._order) and size <= room:
            at += 1
            entry = self._unread_large(self._order[at])
            if entry is None or entry.source != wanted.source:
                continue
            size += entry.nbytes
            if size <= room:
                group.append(entry)
        self._next, self._ahead = at, sum(entry.nbytes for entry in group)
        return group

    def _unread_large(self, name: str) -> Optional[FileTensor]:
        """The large tensor under `name` if it has not been read, else None."""
        entry = dict.get(self, name)
        owner = entry.owner if isinstance(entry, FileTensor) else None
        return owner if owner and owner.value is None and not _is_small(owner) else None

    @torch.inference_mode(False)
    def _read(self, entries: List[FileTensor]) -> List[torch.Tensor]:
        """Values of `entries`, in that order. Each source is asked once."""
        wanted: Dict[str, List[FileTensor]] = {}
        for entry in entries:
            wanted.setdefault(entry.source, []).append(entry)
        shards = {source: self._shard(source, of) for source, of in wanted.items()}
        with _torch_internals.low_overhead_dispatch():
            found = []
            for entry in entries:
                shard = shards[entry.source]
                if entry.name not in shard.table.index:
                    raise _file_tensor.changed(entry.source)
                found.append(_memory.whole(shard, shard.table.index[entry.name]))
        return found

    def _shard(self, source: str, entries: List[FileTensor]):
        rank, size = _daemon.rank_and_size()
        layout = {
            "world_size": size,
            "rules": [{"match": [entry.name for entry in entries], "only_ranks": [rank]}],
            "default": {"drop": True},
        }
        deadline = Deadline(self._timeout)
        with _daemon.connected(self._address, self._client, deadline, rank) as own:
            options = {"layout": layout, "mode": "private", "digest": False}
            checkpoint = own.load(source, timeout=deadline.for_call(), **options)
            for entry in entries:
                _file_tensor.check_unchanged(checkpoint, source, entry.identity)
            return own.acquire(checkpoint, "private", timeout=deadline.for_call())


def _raw_entries(given: Any) -> Any:
    """Entries of a LazyStateDict, read or not. Other values are returned as they are."""
    return dict(dict.items(given)) if isinstance(given, LazyStateDict) else given


def _is_small(entry: FileTensor) -> bool:
    # A dtype unknown to this PyTorch is loaded alone, so that its error affects no others.
    return entry.nbytes <= _SMALL and _memory.has_type(entry.dtype)


def _same(one: Any, other: Any) -> bool:
    """Whether both are the same object, or would be in an ordinary dict."""
    one, other = _file_tensor.current_value(one), _file_tensor.current_value(other)
    if isinstance(one, FileTensor) and isinstance(other, FileTensor):
        return one.location == other.location
    return one is other


def _equal(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)  # as dicts compare values


class _Items(collections.abc.ItemsView):
    """Items that can also be iterated from the end, like a dict's."""

    def __init__(self, owner: LazyStateDict) -> None:
        super().__init__(owner)
        self._owner = owner

    def __reversed__(self) -> Iterator[Tuple[str, Any]]:
        return ((name, self._owner[name]) for name in reversed(self._owner))


class _Values(collections.abc.ValuesView):
    """Values that can also be iterated from the end, like a dict's."""

    def __init__(self, owner: LazyStateDict) -> None:
        super().__init__(owner)
        self._owner = owner

    def __reversed__(self) -> Iterator[Any]:
        return (self._owner[name] for name in reversed(self._owner))
