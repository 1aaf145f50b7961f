"""State that the ranks of a process group share in its store, besides their rounds."""

import contextlib
import json
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..._errors import Unimplemented
from ._failures import without_proof
from ._local_liveness import LocalProcesses, host_key
from ._message_auth import MessageAuth

_MOST = 100_000  # entries of a list
_PIECE = 4 << 20  # bytes of a long value
_MOST_PIECES = 64


class SharedList:
    """A list in the store to which all ranks add. Its entries are JSON.

    No rank depends on a single entry, so entries that the group's key does not prove are skipped.
    """

    def __init__(self, store, auth: MessageAuth, name: str):
        self._store, self._auth, self._name, self._read = store, auth, name, 0

    def add(self, line: Any) -> None:
        name = f"{self._name}/{self._store.add(f'{self._name}/count', 1)}"
        self._store.set(name, self._auth.sign(name, json.dumps(line)).encode())

    def read(self) -> Iterator[Any]:
        """Entries that were not read before."""
        for name, value in self.values():
            text = self._auth.read_if_proven(name, value)
            if text is not None:
                yield json.loads(text)

    def values(self) -> Iterator[Tuple[str, bytes]]:
        """(name, stored value) of entries that were not read before, proven or not."""
        while self._read < _MOST and self._store.check([f"{self._name}/{self._read + 1}"]):
            self._read += 1
            name = f"{self._name}/{self._read}"
            yield name, self._store.get(name)


class Failure(NamedTuple):
    """A rank's failure outside of a round. lost: its process has ended and will come to no round."""

    text: str  # see _failures.serialise
    lost: bool


class FailureBoard:
    """The last failure of each rank outside of rounds, for the ranks that wait for it."""

    def __init__(self, store, auth: MessageAuth):
        self._lines, self._auth = SharedList(store, auth, "failures"), auth
        self._last: Dict[int, Failure] = {}
        self._told = False

    def tell(self, rank: int, failure: Failure) -> None:
        self._lines.add([rank, failure])
        self._told = True

    def clear(self, rank: int) -> None:
        """Takes back this rank's failure: it has come to a round."""
        if self._told:
            self._lines.add([rank, None])
            self._told = False

    def read(self) -> Dict[int, Failure]:
        """rank -> its failure."""
        for name, value in self._lines.values():
            text = self._auth.read_if_proven(name, value)
            rank, failure = json.loads(text) if text is not None else _without_proof(value)
            self._last.pop(rank, None)
            if failure is not None:
                self._last[rank] = Failure(*failure)
        return self._last


def _without_proof(value: bytes) -> Tuple[int, Optional[Failure]]:
    """(rank, failure) of an unproven entry. The failure is reduced to its kind."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        rank, (text, lost) = json.loads(MessageAuth.unsigned_text(value))
        left = without_proof(text) if isinstance(text, str) else ""
        if type(rank) is int and left:
            return rank, Failure(left, lost is True)
    return -1, None


class StoreState:
    """One rank's view of one store.

    calls_made: function -> how often this rank has called it. The counts are kept in the store:
    with a new store the ranks start at zero, and a process that replaces a rank continues them.
    """

    def __init__(self, store, rank: int):
        self.store, self.rank, self.auth = store, rank, MessageAuth()
        self.board, self._calls = FailureBoard(store, self.auth), SharedList(store, self.auth, "calls")
        self._calls_seen: List[Tuple[str, int]] = []  # calls of any rank since the last round that ended well
        self.local_processes: Optional[LocalProcesses] = None  # None as long as there is no key
        self._key = f"made/{rank}"
        self.calls_made: Dict[str, int] = {}
        if store.check([self._key]):
            self.calls_made = _counts(store.get(self._key))

    def use_key(self, key: bytes) -> None:
        """Signs and verifies by `key` from now on."""
        changed, self.auth.key = key != self.auth.key, key
        if changed:
            self.local_processes = LocalProcesses(SharedList(self.store, self.auth, host_key()), self.rank)

    def open(self, function: str, times: int) -> None:
        """Notes a call. The first rank that comes to it does so."""
        self._calls.add([function, times])

    def calls_ahead(self) -> List[Tuple[str, int]]:
        """Calls that other ranks have come to and this rank has not."""
        self._calls_seen += [(function, times) for function, times in self._calls.read()]
        return [call for call in self._calls_seen if self.calls_made.get(call[0], 0) < call[1]]

    def ended_well(self, function: str, times: int) -> None:
        """All ranks were in that call, so calls before it are over for all of them.

        They count as made here as well. Otherwise the counts of the ranks would differ for good.
        """
        self.calls_ahead()
        if (function, times) not in self._calls_seen:  # the ranks had no key
            return
        end = self._calls_seen.index((function, times))
        for other, number in self._calls_seen[:end]:
            if self.calls_made.get(other, 0) < number:
                self.count(other, number)
        del self._calls_seen[: end + 1]

    def count(self, function: str, times: int) -> None:
        self.calls_made[function] = times
        self.store.set(self._key, json.dumps(self.calls_made).encode())


def _counts(value: bytes) -> Dict[str, int]:
    """Counts as stored. A forged number only leads to a call that no other rank makes."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(value) if len(value) <= 1 << 20 else None
        if isinstance(found, dict):
            return {name: number for name, number in found.items() if type(number) is int}
    return {}


def get_values(store, keys: List[str]) -> List[bytes]:
    """Values of existing keys, by one request where the store supports that."""
    if keys and store.has_extended_api():
        return store.multi_get(keys)
    return [store.get(key) for key in keys]


def set_values(store, values: Dict[str, str]) -> None:
    if values and store.has_extended_api():
        store.multi_set(list(values), [value.encode() for value in values.values()])
        return
    for key, value in values.items():
        store.set(key, value.encode())


def check_long_value(value: bytes) -> None:
    """Raises Unimplemented (VALUE_UNSUPPORTED) where get_long would read less than `value`."""
    most = _PIECE * _MOST_PIECES
    if len(value) > most:
        raise Unimplemented(
            f"announcing rank 0's state dict to the other ranks: its names and values that are no tensors take "
            f"{len(value)} bytes together, and {most} can be sent; return less from get_extra_state",
            "VALUE_UNSUPPORTED",
        )


def set_long_value(store, key: str, value: bytes) -> None:
    """Stores a value of any length in pieces: torch's TCPStore ends the connection at 8 MiB."""
    pieces = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}/{number}", piece)
    store.set(key, str(len(pieces)).encode())


def get_long_value(store, key: str) -> bytes:
    """The pieces that exist. The caller verifies the whole."""
    return b"".join(store.get(name) for name in _pieces(store, key))


def delete_long_value(store, key: str) -> None:
    for name in _pieces(store, key):
        store.delete_key(name)
    store.delete_key(key)


def _pieces(store, key: str) -> List[str]:
    text = store.get(key)
    count = int(text) if len(text) < 9 and text.isdigit() else 0
    names = (f"{key}/{number}" for number in range(min(count, _MOST_PIECES)))
    return [name for name in names if store.check([name])]
