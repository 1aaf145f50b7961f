"""fallback="native": the original library reads where the daemons cannot serve. Logged once."""

import logging
import threading
from typing import Optional

from ._errors import Error, InvalidArgument

_log = logging.getLogger("ckptd")
_said = set()
_lock = threading.Lock()


def check(fallback: Optional[str]) -> None:
    if fallback not in (None, "native"):
        raise InvalidArgument(
            f"reading fallback={fallback!r}: there is no such value; use 'native' to let the "
            "original library read the files where the daemons cannot serve them, or leave it out",
            "INVALID_REQUEST",
        )


def say(what: str, error: Error) -> None:
    """Warns that `what` continues without the daemons, once per reason in a process."""
    with _lock:
        if (what, error.reason) in _said:
            return
        _said.add((what, error.reason))
    _log.warning("%s goes on without the daemons, as fallback='native' allows: %s", what, error)
