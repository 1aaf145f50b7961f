"""Shows a lease's token on the daemon's fd socket and receives the descriptors.

The connection is the lease: the daemon keeps the shard for this client as long as the
connection is open. It closes by itself when the process ends, however it ends.

Wire: the token's ASCII bytes out; then messages of a 16-byte little-endian
header {"CKP1", status, descriptors in this message, descriptors still to come},
each carrying its descriptors. Status 0 is fine; otherwise a u32 length and a
sentence follow.
"""

import array
import os
import socket
import struct
import weakref
from typing import Callable

from ._errors import DataLoss, Error, ResourceExhausted, make
from ._rpc import GONE_SECONDS, Deadline

_HEADER = struct.Struct("<4sIII")
_MAX_PER_MESSAGE = 128
_MAX_SENTENCE = 1 << 16

_open_leases = weakref.WeakSet()


def _drop_inherited() -> None:
    for lease in list(_open_leases):
        lease.close()


# A forked child must not hold its parent's lease. Closing the copy in the child leaves the
# parent's connection open.
os.register_at_fork(after_in_child=_drop_inherited)


class Lease:
    """Owns the connection that holds a shard. A second close() does nothing."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        _open_leases.add(self)

    def close(self) -> None:
        self._connection.close()

    @property
    def open(self) -> bool:
        return self._connection.fileno() >= 0


def _malformed(path: str, what: str) -> DataLoss:
    return DataLoss(
        f"receiving memory from the daemon's fd socket {path}: {what}; the daemon and this client "
        "do not fit together, update both",
        "INVALID_REPLY",
        {"socket": path},
    )


def _no_answer(path: str) -> Exception:
    return make(
        14,
        f"receiving memory from the daemon's fd socket {path}: it has not answered for "
        f"{GONE_SECONDS:g} s; see whether the daemon is stopped or overloaded, and its log",
        "DAEMON_UNREACHABLE",
        {"socket": path},
    )


def _read_exactly(connection: socket.socket, count: int, path: str) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise _malformed(path, f"it closed the connection after {len(data)} of {count} bytes")
        data += part
    return data


def _receive_message(connection: socket.socket, path: str):
    """One header and its descriptors, which the caller then owns."""
    fds = array.array("i")
    data, ancillary, flags, _ = connection.recvmsg(
        _HEADER.size, socket.CMSG_SPACE(_MAX_PER_MESSAGE * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    try:
        if flags & socket.MSG_CTRUNC and len(fds) >= _MAX_PER_MESSAGE:
            raise _malformed(path, f"more than {_MAX_PER_MESSAGE} descriptors came in one message")
        if flags & socket.MSG_CTRUNC:
            raise ResourceExhausted(
                f"fetching a shard's memory at {path}: this process has no room for the "
                "descriptors that came; raise ulimit -n",
                "NO_MEMORY",
            )
        if not data:
            raise _malformed(path, "it closed the connection without an answer")
        data += _read_exactly(connection, _HEADER.size - len(data), path)
        magic, status, count, remaining = _HEADER.unpack(data)
        if magic != b"CKP1":
            raise _malformed(path, f"its answer starts with {magic!r}")
        if status:
            (length,) = struct.unpack("<I", _read_exactly(connection, 4, path))
            sentence = _read_exactly(connection, min(length, _MAX_SENTENCE), path)
            raise make(
                status, sentence.decode("utf-8", "replace"), "TOKEN_INVALID" if status == 16 else ""
            )
        if count != len(fds):
            raise _malformed(path, f"it announced {count} descriptors and sent {len(fds)}")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return list(fds), remaining


def receive_all(
    connection: socket.socket, path: str, count: int, deadline: Deadline, use: Callable[[int], None]
) -> None:
    """Reads the daemon's answer on a connection, as `receive` does."""
    received, remaining = 0, count
    while True:
        connection.settimeout(max(min(deadline.left(), GONE_SECONDS), 1e-3))
        fds, announced = _receive_message(connection, path)
        remaining -= len(fds)
        try:
            if announced != remaining:
                raise _malformed(
                    path,
                    f"{received + len(fds) + announced} descriptors are announced "
                    f"for {count} segments",
                )
            for fd in fds:
                use(fd)
        finally:
            for fd in fds:
                os.close(fd)
        received += len(fds)
        if remaining == 0:
            return
        if not fds:
            raise _malformed(path, "a message carried no descriptors while some are still due")


def here(fd_socket: str, workload_socket: str) -> str:
    """The daemon's fd socket as this process sees it: beside the one that it calls.

    Containers may have the sockets' folder under different paths.
    """
    beside = os.path.join(os.path.dirname(workload_socket), os.path.basename(fd_socket))
    return beside if os.path.exists(beside) else fd_socket


def receive(
    path: str, token: str, count: int, deadline: Deadline, use: Callable[[int], None]
) -> Lease:
    """Fetches `count` descriptors, calling use(fd) for each in order, then closing it.

    Only descriptors of one message are open at a time. A daemon sends each message at once, so
    after GONE_SECONDS of silence it counts as stopped. Raises ckptd.Error, and passes on errors of
    `use`. In both cases nothing stays open.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(min(deadline.left(), GONE_SECONDS), 1e-3))
        connection.connect(path)
        connection.sendall(token.encode("ascii"))
        receive_all(connection, path, count, deadline, use)
        connection.settimeout(None)
        return Lease(connection)
    except Error:  # before TimeoutError, because some are one
        connection.close()
        raise
    except socket.timeout:
        connection.close()
        if not deadline.passed():
            raise _no_answer(path) from None
        raise deadline.exceeded(
            "receiving a shard's memory", f"the daemon's fd socket {path}"
        ) from None
    except OSError as error:
        connection.close()
        raise make(
            14,
            f"receiving memory from the daemon's fd socket {path}: "
            f"{error.strerror or error}; is the daemon still running?",
            "DAEMON_UNREACHABLE",
            {"socket": path},
        ) from None
    except BaseException:
        connection.close()
        raise
