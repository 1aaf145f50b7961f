"""Calls to one daemon: channel, deadlines, errors. gRPC is imported on first use.

gRPC does not survive a fork: its threads are gone in the child, and a lock that one of
them held stays locked. A call there could hang in spite of its deadline, so children of
processes that have called are refused.
"""

import contextlib
import os
import threading
import time
from typing import Callable, ContextManager, Optional

from . import _proto
from ._address import Address, lost
from ._errors import (
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Unavailable,
    Unimplemented,
    from_details,
    make,
)

_OPTIONS = (
    # One connection per channel, so that closing the channel closes it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This is the time limit of an attempt; a daemon on a busy machine needs more than 100 ms.
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A stopped daemon keeps its connection open. So during calls it is pinged, and without an
    # answer the connection is closed.
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # for newer versions of gRPC
    ("grpc.http2.max_pings_without_data", 0),
)
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
# Seconds for which a daemon may be gone, such as during a restart, before a call gives up
# ahead of its deadline. They count from the daemon's last sign of life, but at least
# LAST_SECONDS remain for a new daemon to answer.
GONE_SECONDS = 8.0
LAST_SECONDS = 2.0
_NO_THREAD = "Server Threadpool Exhausted"  # gRPC's own answer, which no code of the daemon sees
_ADMIN_SOCKET = ".admin.sock"


_LONGEST = 1e8  # seconds; gRPC cannot count much further
_RAISE = "raise timeout=, or see `ckptctl list` and the daemon's log"


class Deadline:
    """A point in time that all steps of one operation share.

    advice: for the sentence of its error.
    """

    def __init__(self, timeout: float, advice: str = _RAISE):
        self.timeout, self._advice = min(float(timeout), _LONGEST), advice
        self._end = time.monotonic() + self.timeout

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def for_call(self) -> float:
        """Remaining seconds for a call, never 0: the call itself reports that time is up."""
        return max(self.left(), 1e-3)

    def passed(self) -> bool:
        return self.left() <= 0

    def exceeded(self, doing: str, waits_for: str) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{doing}: not done after {in_seconds(self.timeout)}, still waiting for {waits_for}; "
            + self._advice,
            "DEADLINE",
            {"waits_for": waits_for, "timeout": f"{self.timeout:g}"},
        )


def in_seconds(count: float) -> str:
    """Seconds for sentences, rounded: 7.98 is "8 s"."""
    return f"{count:.1f}".removesuffix(".0") + " s" if count >= 0.1 else f"{count:.1g} s"


def _not_served(address: Address, doing: str, details: str) -> Unimplemented:
    """The error for a server without this call of CheckpointService."""
    advice = "see `ckptd --version` and update the daemon, or name another socket with address="
    if address.path.endswith(_ADMIN_SOCKET):
        workload = address.path[: -len(_ADMIN_SOCKET)] + ".sock"
        advice = f"use the workload socket {workload}"
    return Unimplemented(
        f"{doing} at {address}: this socket serves another service, or its daemon is an older one"
        f"{f' ({details})' if details else ''}; {advice}",
        facts={"address": address.path, "chosen_by": address.chosen_by},
    )


_calling_pid: Optional[int] = None  # process in which gRPC was first used here


def warm_up() -> None:
    """Imports all of gRPC ahead of the first call. No thread of it runs yet."""
    import grpc  # noqa: F401

    with contextlib.suppress(ImportError):
        import grpc._channel  # noqa: F401  else imported with the first channel


class Connection:
    """Calls methods of CheckpointService at `address`. Thread-safe."""

    def __init__(self, address: Address):
        self.address = address
        self._lock = threading.Lock()
        self._channel = None
        self._pid: Optional[int] = None
        self._closed = False

    def close(self) -> None:
        """Closes the channel; a later call opens it again."""
        with self._lock:
            channel, self._channel = self._channel, None
            # A channel inherited by fork is not closed: its threads are gone.
            if channel is not None and self._pid == os.getpid():
                channel.close()

    def _open(self):
        global _calling_pid
        if _calling_pid not in (None, os.getpid()):
            raise FailedPrecondition(
                f"calling the ckptd daemon at {self.address}: this process was forked from one that "
                "has called it, and gRPC does not survive a fork; attach before the fork (the child "
                "may read that memory), or start the child by spawn",
                "FORKED",
            )
        import grpc

        with self._lock:
            _calling_pid = os.getpid()
            if self._channel is None:
                self._channel = grpc.insecure_channel(self.address.target, options=_OPTIONS)
                self._pid = os.getpid()
            return self._channel

    def _callable(self, method: str):
        path, request, response, streams = _proto.METHODS[f"CheckpointService.{method}"]
        kind = "unary_stream" if streams else "unary_unary"
        return getattr(self._open(), kind)(
            path,
            request_serializer=_proto.message(request).SerializeToString,
            response_deserializer=_proto.message(response).FromString,
        )

    def translate(self, error, doing: str, deadline: Deadline) -> Error:
        """The ckptd.Error of a grpc.RpcError."""
        import grpc

        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                ours = from_details(value)
                if ours is not None:
                    return ours
        code = error.code()
        if code == grpc.StatusCode.UNAVAILABLE:
            return lost(self.address, error.details() or "connection lost")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return deadline.exceeded(doing, f"the daemon at {self.address}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return _not_served(self.address, doing, error.details())
        if error.details() == _NO_THREAD:
            return make(
                8,
                f"{doing}: the daemon at {self.address} has as many calls as it serves at once; ask again later",
                "TOO_MANY_WAITING",
                {"address": self.address.path, "chosen_by": self.address.chosen_by},
            )
        number = code.value[0] if isinstance(code.value, tuple) else code.value
        return make(number, f"{doing}: {error.details()}")

    def call(self, method: str, request, doing: str, deadline: Deadline, retry: bool = True):
        """One unary call. With `retry`, a lost connection is tried again for a while.

        Only for methods that may safely run twice.
        """
        import grpc

        pause, gone = _FIRST_PAUSE, Deadline(min(GONE_SECONDS, deadline.left()))
        while True:
            try:
                return self._callable(method)(request, timeout=deadline.for_call())
            except grpc.RpcError as raw:
                error = self.translate(raw, doing, deadline)
            if not (retry and is_transient(error)) or gone.left() <= pause:
                raise error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def future(self, method: str, request):
        """A unary call in the background, without a deadline: gRPC's future."""
        return self._callable(method).future(request)

    def stream(
        self,
        method: str,
        request,
        doing: str,
        deadline: Deadline,
        ending: Callable[[Callable[[], object]], ContextManager] = lambda _: contextlib.nullcontext(),
    ):
        """Yields the messages of a server stream; cancels it when abandoned.

        ending: function of the stream's cancel(), giving the context in which it is read.
        """
        import grpc

        replies = self._callable(method)(request, timeout=deadline.for_call())
        try:
            with ending(replies.cancel):
                for reply in replies:
                    yield reply
        except grpc.RpcError as raw:
            raise self.translate(raw, doing, deadline) from None
        finally:
            replies.cancel()


def is_transient(error: Error) -> bool:
    """Whether a retry may succeed: the connection failed, not the request."""
    return isinstance(error, Unavailable) and error.reason == "DAEMON_UNREACHABLE"
