"""A file that nobody can open before a test says so, like one on storage whose server has gone: by fanotify(7)."""

import ctypes
import os
import struct

_CLASS_CONTENT, _CLOEXEC, _MARK_ADD, _OPEN_PERM, _ALLOW = 4, 1, 1, 0x10000, 1
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]


def _checked(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


class HangingFile:
    """While it is entered, every open(2) of `path` waits: for let_go(), or for the end."""

    def __init__(self, path):
        self._path, self._group = os.fsencode(path), -1

    def __enter__(self):
        self._group = _checked(_libc.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY), "fanotify_init")
        try:
            _checked(_libc.fanotify_mark(self._group, _MARK_ADD, _OPEN_PERM, _AT_FDCWD, self._path), "fanotify_mark")
        except OSError:
            self.let_go()
            raise
        return self

    def __exit__(self, *_):
        self.let_go()

    def await_opener(self):
        """The process that waits, once one does; later ones wait as well."""
        event = os.read(self._group, 24)
        *_, fd, pid = struct.unpack("=IBBHQii", event)
        os.close(fd)
        return pid

    def let_go(self):
        """Whoever waits goes on, as if nothing had been."""
        if self._group >= 0:
            os.close(self._group)
            self._group = -1


def why_not(folder):
    """None where files can be made to hang, else the reason in one line."""
    path = os.path.join(folder, "probe")
    open(path, "w").close()
    try:
        with HangingFile(path):
            return None
    except OSError as error:
        return f"files cannot be made to hang here: {error}"
