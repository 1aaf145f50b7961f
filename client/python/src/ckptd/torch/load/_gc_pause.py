"""The garbage collector, off while tensors are gone through."""

import contextlib
import gc
import os
import threading
from typing import Iterator

_lock = threading.Lock()
_depth = 0  # blocks that are open, of all threads
_was_on = False


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Keeps the garbage collector from walking a large model again and again meanwhile.

    For what computes: whatever waits, or is the caller's, runs outside, as the collector is
    that of all threads of the process.
    """
    global _depth, _was_on
    with _lock:
        if _depth == 0:
            _was_on = gc.isenabled()
        _depth += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            # Before it is counted: a child that another thread forks just now sees to it itself.
            if _depth == 1 and _was_on:
                gc.enable()
            _depth = max(0, _depth - 1)


def _after_fork() -> None:
    """In a child only the thread that forked goes on: no other one would turn it on again."""
    global _lock, _depth
    _lock = threading.Lock()
    if _depth and _was_on:
        gc.enable()
    _depth = 0


os.register_at_fork(after_in_child=_after_fork)
