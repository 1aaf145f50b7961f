"""What the ranks of a process group share in its store besides their rounds."""

import json
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from ._neighbours import Neighbours

class Lines:
    """A list that all ranks add to, in the store. Lines are JSON."""

    def __init__(self, store, name: str):
        self._store, self._name, self._read = store, name, 0

    def add(self, line: Any) -> None:
        number = self._store.add(f"{self._name}/count", 1)
        self._store.set(f"{self._name}/{number}", json.dumps(line).encode())

    def read(self) -> Iterator[Any]:
        """Those that were not read before."""
        while self._store.check([f"{self._name}/{self._read + 1}"]):
            self._read += 1
            yield json.loads(self._store.get(f"{self._name}/{self._read}"))


class Failure(NamedTuple):
    """What a rank says of itself while it is in no round. lost: and that it will come to none."""

    text: str  # as_text
    lost: bool


class Board:
    """The last failure of each rank outside of rounds, for those that wait for it."""

    def __init__(self, store):
        self._lines = Lines(store, "failures")
        self._last: Dict[int, Failure] = {}
        self._told = False

    def tell(self, rank: int, failure: Failure) -> None:
        self._lines.add([rank, failure])
        self._told = True

    def clear(self, rank: int) -> None:
        """It has come to a round."""
        if self._told:
            self._lines.add([rank, None])
            self._told = False

    def read(self) -> Dict[int, Failure]:
        """rank -> its failure."""
        for rank, failure in self._lines.read():
            self._last.pop(rank, None)
            if failure is not None:
                self._last[rank] = Failure(*failure)
        return self._last


class Shared:
    """Of one store, as one rank has it.

    made: how often this rank has made the call of each function. It is the store's: in a new
    one the ranks begin anew, and a process that takes a rank's place goes on as that.
    """

    def __init__(self, store, rank: int):
        self.store, self.rank = store, rank
        self.board, self._calls = Board(store), Lines(store, "calls")
        self._opened: List[Tuple[str, int]] = []  # since the last round that ended well
        self.neighbours = Neighbours(store, rank)
        self._key = f"made/{rank}"
        self.made: Dict[str, int] = {}
        if store.check([self._key]):
            self.made = json.loads(store.get(self._key))

    def open(self, function: str, times: int) -> None:
        """Of the first rank that comes to a call."""
        self._calls.add([function, times])

    def ahead(self) -> List[Tuple[str, int]]:
        """Calls that others have come to and this rank has not."""
        self._opened += [(function, times) for function, times in self._calls.read()]
        return [call for call in self._opened if self.made.get(call[0], 0) < call[1]]

    def ended_well(self, function: str, times: int) -> None:
        """All ranks were in that call: what any of them came to before it is over for all.

        Those calls count as made here as well, or the next ones would never be the same.
        """
        self.ahead()
        end = self._opened.index((function, times))
        for other, number in self._opened[:end]:
            if self.made.get(other, 0) < number:
                self.count(other, number)
        del self._opened[: end + 1]

    def count(self, function: str, times: int) -> None:
        self.made[function] = times
        self.store.set(self._key, json.dumps(self.made).encode())
