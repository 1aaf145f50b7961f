"""How a failure travels from rank to rank."""

import json
import re

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
    message = error.message if ours else _words(error)
    if type(error).__name__ not in _TYPES and not ours:
        message = f"{type(error).__name__}: {message}"
    reason = error.reason if ours else ""
    return json.dumps([rank, kind, message, reason, error.facts if ours else {}])


def _words(error: BaseException) -> str:
    # Of a KeyError str() is the repr of what it says.
    what = error.args[0] if isinstance(error, KeyError) and error.args else error
    try:
        return str(what)
    except Exception:  # its own
        return f"{type(error).__name__}, which cannot say what it is"


def from_text(text: str) -> Exception:
    """The exception to raise on another rank than the one where it happened."""
    rank, kind, message, reason, facts = json.loads(text)
    if not _NAMES_A_RANK.match(message):  # which the daemon does of another one's failure
        message = f"rank {rank}: {message}"
    made = _TYPES.get(kind, RuntimeError)
    if issubclass(made, _errors.Error):
        return made(message, reason, {**facts, "rank": str(rank)})
    return made(message)
