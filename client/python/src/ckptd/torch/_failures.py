"""How a failure travels from rank to rank, and those that happened in no round of the ranks."""

import json
import re
from dataclasses import dataclass
from typing import Dict, Tuple

from .. import _errors

# What may cross from rank to rank: types that the functions stood in for raise, and ours.
_TYPES = {
    t.__name__: t for t in (KeyError, ValueError, TypeError, RuntimeError, OSError, MemoryError)
}
_TYPES.update({t.__name__: t for t in _errors.BY_NUMBER.values()})
_NAMES_A_RANK = re.compile(r"rank \d+: ")


class Heard(Exception):
    """Another rank's failure; `error` is what to raise for it."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


def as_text(error: BaseException, rank: int) -> str:
    """A failure as it travels."""
    ours = isinstance(error, _errors.Error)
    kind = next((t.__name__ for t in type(error).__mro__ if t.__name__ in _TYPES), "RuntimeError")
    plain = error.args[0] if isinstance(error, KeyError) and error.args else error  # not its repr
    message = error.message if ours else str(plain)
    if type(error).__name__ not in _TYPES and not ours:
        message = f"{type(error).__name__}: {message}"
    reason = error.reason if ours else ""
    return json.dumps([rank, kind, message, reason, error.facts if ours else {}])


def from_text(text: str) -> Exception:
    """The exception to raise on another rank than the one where it happened."""
    rank, kind, message, reason, facts = json.loads(text)
    if not _NAMES_A_RANK.match(message):  # which the daemon does of another one's failure
        message = f"rank {rank}: {message}"
    made = _TYPES.get(kind, RuntimeError)
    if issubclass(made, _errors.Error):
        return made(message, reason, {**facts, "rank": str(rank)})
    return made(message)


def told_by(text: str) -> int:
    """The rank where it happened."""
    return json.loads(text)[0]


@dataclass(frozen=True)
class Failure:
    """A call that failed on one rank while it was in no round.

    text: as_text. ends: the function whose round ends with it, unless the rank comes after all; ""
    for none.
    """

    text: str
    ends: str


class Board:
    """What the ranks told of failures outside of rounds. In the store, in the order of telling."""

    def __init__(self, store):
        self._store = store
        self._read = 0
        self._last: Dict[int, Tuple[int, Failure]] = {}

    def tell(self, rank: int, number: int, failure: Failure) -> None:
        """number: the round that this rank comes to next."""
        line = json.dumps([rank, number, failure.text, failure.ends])
        self._store.set(f"outside/{self._store.add('outside', 1)}", line.encode())

    def of(self, number: int) -> Dict[int, Failure]:
        """rank -> its last failure, of ranks that come to round `number` next if to any."""
        while self._store.check([f"outside/{self._read + 1}"]):
            self._read += 1
            rank, then, text, ends = json.loads(self._store.get(f"outside/{self._read}"))
            self._last[rank] = then, Failure(text, ends)
        return {rank: failure for rank, (then, failure) in self._last.items() if then == number}
