"""Pauses the garbage collector while code iterates over many tensors."""

import contextlib
import gc
import os
import threading
from typing import Iterator

_lock = threading.Lock()
_depth = 0  # open blocks of all threads
_was_on = False


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Inside the block the garbage collector does not walk a large model again and again.

    Only for computations: waits and the caller's code belong outside, because the collector
    serves all threads of the process.
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
            # Before the count changes: a child forked just now by another thread enables it itself.
            if _depth == 1 and _was_on:
                gc.enable()
            _depth = max(0, _depth - 1)


def _after_fork() -> None:
    """Enables the collector in a child, where the threads that would do so do not exist."""
    global _lock, _depth
    _lock = threading.Lock()
    if _depth and _was_on:
        gc.enable()
    _depth = 0


os.register_at_fork(after_in_child=_after_fork)
