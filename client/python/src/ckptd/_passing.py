"""Passes open files to a daemon that runs as another user, or in another container.

Such a daemon reads nothing for this process that it cannot be sure this process could read itself.
A file that this process has opened proves it, whatever decides on the storage, and is read
from the descriptor: it may be private, and lie where the daemon has no such mount.

Wire, on the daemon's fd socket: a header {"CKPTDFDS", files, bytes of the job's key, bytes of that
and all paths, 12 zero bytes}, then that text, a NUL behind each path, with the descriptors. The
daemon answers as it does to a token. The files count until the connection closes.
"""

import array
import contextlib
import functools
import json
import logging
import os
import socket
import stat
import struct
from typing import Callable, Dict, Iterator, List, Optional

from . import _fds, _proto
from ._errors import Error
from ._participant import job_key
from ._rpc import GONE_SECONDS, Connection, Deadline
from ._source import path_of, split_part

_HEADER = struct.Struct("<8sIII12x")
_AT_ONCE = 64  # descriptors in a message, all open at a time
_MOST_FILES = 4096
_LEVELS = 3  # of folders in a folder
_MOST_INDEX_BYTES = 100_000_000
_LOG = logging.getLogger("ckptd")


def files_of(source: str) -> List[str]:
    """The files of `source` that this process may read: it, or all in the folder, and what indices name.

    Those of folders in it as well, where trainers keep parts of a checkpoint, if they are not too many.
    """
    source, _ = split_part(source)
    # All of them: which ones count is the daemon's to decide.
    found = _in_folder(source) if os.path.isdir(source) else [source]
    for index in [path for path in found if path.endswith(".index.json")]:
        found += _named_by(index)
    files, below = [path for path in dict.fromkeys(found) if _is_readable(path)], found
    for _ in range(_LEVELS):
        below = [path for folder in below if _is_folder(folder) for path in _in_folder(folder)]
        known = set(files)
        deeper = [path for path in below if path not in known and _is_readable(path)]
        if len(files) + len(deeper) > _MOST_FILES:
            break
        files += deeper
    return files


def _in_folder(folder: str) -> List[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.basename(path).startswith(".")


def _named_by(index: str) -> List[str]:
    try:
        with open(index, "rb") as file:
            names = set(json.loads(file.read(_MOST_INDEX_BYTES))["weight_map"].values())
        return sorted(os.path.join(os.path.dirname(index), name) for name in names)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # the daemon says what is wrong with it


def _is_readable(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.R_OK, effective_ids=True)
    except OSError:
        return False


class Passing:
    """Passes files to one daemon. foreign: whether that has another user, or is in another container."""

    def __init__(self, connection: Connection, foreign: bool) -> None:
        self._connection, self.foreign = connection, foreign
        self._fd_socket: Optional[str] = None  # once it was asked for
        self.rank = 0  # of the daemon, once something was passed

    @contextlib.contextmanager
    def files(self, source: str, deadline: Deadline) -> Iterator[bool]:
        """A block in which a foreign daemon has the files of `source`. Gives whether it took them.

        Without them it judges by itself, so this is no error.
        """
        paths = files_of(path_of(source)) if self.foreign else []
        with contextlib.ExitStack() as stack:
            yield bool(paths) and self._try(stack, paths, deadline)

    def _try(self, stack: contextlib.ExitStack, paths: List[str], deadline: Deadline) -> bool:
        if len(paths) > _MOST_FILES:
            _LOG.warning("%d files are too many to be passed to the daemon", len(paths))
            return False
        try:
            openers = {path: functools.partial(_open, path) for path in paths}
            stack.enter_context(_send_all(self._socket(deadline), openers, deadline))
            return True
        except (OSError, Error) as error:
            _LOG.warning("the daemon did not take the files of %s: %s", paths[0], error)
            return False

    def descriptor(self, path: str, fd: int, deadline: Deadline) -> socket.socket:
        """A connection for as long as which the daemon reads `fd` where `path` is asked for.

        Raises OSError and ckptd.Error.
        """
        return _send_all(self._socket(deadline), {path: functools.partial(os.dup, fd)}, deadline)

    def _socket(self, deadline: Deadline) -> str:
        if self._fd_socket is None:
            request = _proto.message("ListCheckpointsRequest")(page_size=1)
            reply = self._connection.call("ListCheckpoints", request, "asking for its fd socket", deadline)
            self._fd_socket, self.rank = reply.fd_socket, reply.rank
        return _fds.here(self._fd_socket, self._connection.address.path)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _send_all(
    fd_socket: str, files: Dict[str, Callable[[], int]], deadline: Deadline
) -> socket.socket:
    """The connection over which they were passed. files: path -> function that opens it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(min(deadline.left(), GONE_SECONDS), 1e-3))
        connection.connect(fd_socket)
        key = job_key().encode()
        text = [os.fsencode(path) + b"\0" for path in files]
        connection.sendall(
            _HEADER.pack(b"CKPTDFDS", len(files), len(key), len(key) + sum(map(len, text))) + key
        )
        openers = list(files.values())
        for begin in range(0, len(text), _AT_ONCE):
            _send(connection, b"".join(text[begin : begin + _AT_ONCE]), openers[begin : begin + _AT_ONCE])
        _fds.receive_all(connection, fd_socket, 0, deadline, os.close)
        connection.settimeout(None)
        return connection
    except BaseException:
        connection.close()
        raise


def _send(connection: socket.socket, text: bytes, openers: List[Callable[[], int]]) -> None:
    """The text, and with its first byte the descriptors that the openers give."""
    fds = array.array("i")
    try:
        for opener in openers:
            fds.append(opener())
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        sent = connection.sendmsg([text], rights)
        connection.sendall(text[sent:])
    finally:
        for fd in fds:
            os.close(fd)
