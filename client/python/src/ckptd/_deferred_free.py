"""The thread of this process that waits for GPUs before it gives memory back.

Memory goes wherever the garbage collector happens to run, in a training thread, too. Its GPU may
be within a collective that ends only when another rank has launched it, and that rank may wait for
this very thread: who drops memory never waits for a GPU beyond a moment.
"""

import atexit
import contextlib
import logging
import os
import queue
import threading
from typing import Callable, Optional

from ._cuda_driver import driver
from ._errors import ResourceExhausted

_LOG = logging.getLogger("ckptd")
# Seconds that who drops memory waits. An idle GPU has let it go by then, so that whoever frees
# memory to get some finds it, and a CUDA graph that is begun next is recorded undisturbed.
_SHORT_WAIT = 0.2
_LONG_WAIT = 2.0  # seconds, where one may wait; at exit the end of the process frees what is left


class _FreeingThread:
    """Runs what it is handed, in order. `hand` may be called in a finalizer: it takes no lock that
    the code it interrupts may hold, and a SimpleQueue's put may interrupt another one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._late = False
        self._ident = 0
        # A daemon: an end of the process waits for no GPU.
        thread = threading.Thread(target=self._run, name="ckptd-give-back", daemon=True)
        thread.start()
        self.run_soon(lambda: None, _LONG_WAIT)  # its own preparations are over

    def run_soon(self, job: Callable[[], None], seconds: float) -> bool:
        """Has `job` run; whether it has within `seconds`."""
        done = threading.Lock()
        done.acquire()
        self._jobs.put((job, done))
        if threading.get_ident() == self._ident:  # a finalizer in the thread itself
            return False
        return done.acquire(timeout=seconds)

    def drop(self, job: Callable[[], None]) -> None:
        """As hand, but once a moment was not enough, nobody waits until all is done."""
        if not self.run_soon(job, 0 if self._late else _SHORT_WAIT):
            self._late = True

    def _run(self) -> None:
        self._ident = threading.get_ident()
        _leave_recordings_alone()
        while True:
            job, done = self._jobs.get()
            try:
                job()
            except Exception:
                _LOG.exception("giving GPU memory back")
            finally:
                self._late = self._late and not self._jobs.empty()
                done.release()
            del job, done


def _leave_recordings_alone() -> None:
    """Unmapping in this thread spoils no CUDA graph that another one records meanwhile."""
    with contextlib.suppress(RuntimeError):  # a driver without that function
        cu = driver()
        cu.cuThreadExchangeStreamCaptureMode(
            cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        )


_starting = threading.Lock()
_thread: Optional[_FreeingThread] = None


def start() -> None:
    """Before memory is mapped: a finalizer may start nothing. Raises ResourceExhausted."""
    global _thread
    with _starting:
        if _thread is not None:
            return
        try:
            _thread = _FreeingThread()
        except RuntimeError as error:
            raise ResourceExhausted(
                f"mapping a shard: {error}, for the thread that gives its memory back; raise "
                "ulimit -u, or the container's limit of processes",
                "NO_MEMORY",
            ) from error
        atexit.register(drain)


def drop(job: Callable[[], None]) -> None:
    """Has `job`, which waits for a GPU, run soon, and in the usual case before this returns."""
    if _thread is not None:
        _thread.drop(job)


def drain(seconds: float = _LONG_WAIT) -> None:
    """Waits until everything that was dropped is given back, up to `seconds`."""
    if _thread is not None:
        _thread.run_soon(lambda: None, seconds)


def _forget() -> None:
    """In a forked child, which has neither the thread nor any of the memory."""
    global _thread, _starting
    _thread, _starting = None, threading.Lock()
    atexit.unregister(drain)


os.register_at_fork(after_in_child=_forget)
