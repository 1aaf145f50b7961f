"""Deferred freeing of GPU memory, by a thread that waits for the GPU.

The garbage collector drops memory in any thread, also in a training thread. The GPU may be in a
collective that ends only when another rank has launched it, and that rank may wait for this very
thread. So a thread that drops memory waits for the GPU only for a moment.
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
# Seconds for which a thread that drops memory waits. An idle GPU has released it by then, so that
# the next allocation finds the memory, and a CUDA graph begun next is recorded undisturbed.
_SHORT_WAIT = 0.2
_LONG_WAIT = 2.0  # seconds where a wait is allowed; at exit the end of the process frees the rest


class _FreeingThread:
    """Runs jobs in order.

    A finalizer may call `run_soon`: it takes no lock that the interrupted code may hold, and a
    SimpleQueue's put may interrupt another one.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._late = False
        self._ident = 0
        # A daemon thread, so that the end of the process waits for no GPU.
        thread = threading.Thread(target=self._run, name="ckptd-give-back", daemon=True)
        thread.start()
        self.run_soon(lambda: None, _LONG_WAIT)  # waits until the thread is ready

    def run_soon(self, job: Callable[[], None], seconds: float) -> bool:
        """Has `job` run. Returns whether it has run within `seconds`."""
        done = threading.Lock()
        done.acquire()
        self._jobs.put((job, done))
        if threading.get_ident() == self._ident:  # a finalizer in the thread itself
            return False
        return done.acquire(timeout=seconds)

    def drop(self, job: Callable[[], None]) -> None:
        """Like run_soon with a short wait. After a wait that was too short, it does not wait until all is done."""
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
    """Keeps unmapping in this thread from invalidating a CUDA graph that another thread records."""
    with contextlib.suppress(RuntimeError):  # a driver without that function
        cu = driver()
        cu.cuThreadExchangeStreamCaptureMode(
            cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        )


_starting = threading.Lock()
_thread: Optional[_FreeingThread] = None


def start() -> None:
    """Starts the thread. Call it before memory is mapped: a finalizer cannot. Raises ResourceExhausted."""
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
    """Has `job`, which waits for a GPU, run soon. Usually it has run when this returns."""
    if _thread is not None:
        _thread.drop(job)


def drain(seconds: float = _LONG_WAIT) -> None:
    """Waits until all dropped memory is freed, up to `seconds`."""
    if _thread is not None:
        _thread.run_soon(lambda: None, seconds)


def _forget() -> None:
    """Resets the state in a forked child, which has neither the thread nor the memory."""
    global _thread, _starting
    _thread, _starting = None, threading.Lock()
    atexit.unregister(drain)


os.register_at_fork(after_in_child=_forget)
