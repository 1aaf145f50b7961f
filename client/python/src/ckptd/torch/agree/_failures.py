"""How a failure travels from rank to rank."""

import contextlib
import json
import re
from typing import Tuple

from ... import _errors

# Types that may travel from rank to rank: errors of the original functions, and ours.
_TYPES = {
    t.__name__: t for t in (KeyError, ValueError, TypeError, RuntimeError, OSError, MemoryError)
}
_TYPES.update({t.__name__: t for t in _errors.BY_NUMBER.values()})
# Reasons that a rank may give without proof. The receiving rank supplies the sentence.
_WITHOUT_PROOF = {
    "DAEMON_UNREACHABLE": (
        "Unavailable",
        "it reaches no daemon; start the job's daemons with `ckptd launch --nproc N`",
    ),
    "RANK_LOST": ("Aborted", "its process has ended; start the job again"),
}
_MOST = 1 << 16  # characters of a failure
_NAMES_A_RANK = re.compile(r"rank \d+: ")


class RemoteFailure(Exception):
    """Another rank's failure. `error` is the exception to raise for it."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


def serialise(error: BaseException, rank: int) -> str:
    """A failure as text for other ranks."""
    ours = isinstance(error, _errors.Error)
    kind = next((t.__name__ for t in type(error).__mro__ if t.__name__ in _TYPES), "RuntimeError")
    message = error.message if ours else _message_of(error)
    if type(error).__name__ not in _TYPES and not ours:
        message = f"{type(error).__name__}: {message}"
    reason = error.reason if ours else ""
    return json.dumps([rank, kind, message[: _MOST // 2], reason, error.facts if ours else {}])


def without_proof(text: str) -> str:
    """A serialised failure without proof, reduced to rank and kind; "" if it is no failure.

    Its sentence is dropped, because any program could have written it.
    """
    rank, kind, reason = _kind_of(text)
    if rank < 0:
        return ""
    kind, says = _WITHOUT_PROOF.get(reason, (kind, f"it failed ({kind})"))
    says += "; it has no key of the group to prove more, so see its log"
    return json.dumps([rank, kind, says, reason, {}])


def _kind_of(text: str) -> Tuple[int, str, str]:
    rank, kind, reason = -1, "RuntimeError", ""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text) if len(text) <= 8 * _MOST else None
        if isinstance(found, list) and len(found) == 5:
            rank = found[0] if type(found[0]) is int else rank
            kind = found[1] if isinstance(found[1], str) and found[1] in _TYPES else kind
            reason = found[3] if isinstance(found[3], str) and found[3] in _WITHOUT_PROOF else reason
    return rank, kind, reason


def _message_of(error: BaseException) -> str:
    # The str() of a KeyError is the repr of its message.
    what = error.args[0] if isinstance(error, KeyError) and error.args else error
    try:
        return str(what)
    except Exception:  # raised by its own __str__
        return f"{type(error).__name__}, which cannot say what it is"


def deserialise(text: str) -> Exception:
    """The exception to raise on another rank than the one where it happened."""
    rank, kind, message, reason, facts = json.loads(text)
    if not _NAMES_A_RANK.match(message):  # daemons name the rank themselves
        message = f"rank {rank}: {message}"
    made = _TYPES.get(kind, RuntimeError)
    if issubclass(made, _errors.Error):
        return made(message, reason, {**facts, "rank": str(rank)})
    return made(message)
