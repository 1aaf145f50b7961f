"""A mount whose files stop answering when a test says so, as those of a server that has gone: FUSE, spoken by itself.

Reads of the chosen bytes wait in the kernel until let_go(), or for the end of the mount; nobody can interrupt them.
"""

import ctypes
import errno
import os
import stat
import struct
import subprocess
import threading

_libc = ctypes.CDLL(None, use_errno=True)
_IN = struct.Struct("<IIQQIIII")  # length, operation, unique, node, uid, gid, pid, padding
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 27, 28, 29, 36, 42
_ROOT, _FILE, _DIRECT_IO = 1, 2, 1
_DETACH = 2


class FuseFile:
    """One file, `data.safetensors` with the bytes of `path`, in a mount at `folder`. In it no read is ever cached."""

    def __init__(self, folder, path):
        self.folder, self.path = os.fspath(folder), os.path.join(folder, "data.safetensors")
        with open(path, "rb") as file:
            self._data = file.read()
        self._hang_from, self._held = None, []
        self._lock = threading.Condition()

    def __enter__(self):
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"test", os.fsencode(self.folder), b"fuse", 6, options.encode()) != 0:
            error = ctypes.get_errno()
            os.close(self._device)
            raise OSError(error, f"mounting FUSE: {os.strerror(error)}")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.let_go()
        _libc.umount2(os.fsencode(self.folder), _DETACH)
        self._thread.join(5)
        os.close(self._device)

    def hang(self, offset=0):
        """From now on reads of bytes from `offset` on wait."""
        with self._lock:
            self._hang_from = offset

    def await_reader(self, timeout):
        with self._lock:
            assert self._lock.wait_for(lambda: self._held, timeout), "nobody reads"

    def let_go(self):
        """Whoever waits goes on, as if nothing had been."""
        with self._lock:
            self._hang_from = None
            held, self._held = self._held, []
        for request in held:
            self._read(*request)

    def _serve(self):
        while True:
            try:
                message = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # unmounted
            _, operation, unique, node, *_ = _IN.unpack_from(message)
            self._answer(operation, unique, node, message[_IN.size:])

    def _answer(self, operation, unique, node, body):
        if operation in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        if operation == _INIT:
            self._reply(unique, struct.pack("<IIIIHHIIHH32x", 7, 31, 1 << 20, 0, 12, 10, 1 << 16, 1, 0, 0))
        elif operation == _LOOKUP and body.rstrip(b"\0") == b"data.safetensors":
            self._reply(unique, struct.pack("<QQQQII", _FILE, 1, 0, 0, 0, 0) + self._attributes(_FILE))
        elif operation == _GETATTR:
            self._reply(unique, struct.pack("<QII", 0, 0, 0) + self._attributes(node))
        elif operation in (_OPEN, _OPENDIR):
            self._reply(unique, struct.pack("<QII", 1, _DIRECT_IO if operation == _OPEN else 0, 0))
        elif operation == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            with self._lock:
                if self._hang_from is not None and offset + size > self._hang_from:
                    self._held.append((unique, offset, size))
                    self._lock.notify_all()
                    return
            self._read(unique, offset, size)
        elif operation in (_READDIR, _RELEASE, _RELEASEDIR, _FLUSH):
            self._reply(unique, b"")
        else:
            self._reply(unique, b"", -errno.ENOSYS)

    def _read(self, unique, offset, size):
        self._reply(unique, self._data[offset:offset + size])

    def _attributes(self, node):
        folder = node == _ROOT
        mode = stat.S_IFDIR | 0o755 if folder else stat.S_IFREG | 0o644
        size = 0 if folder else len(self._data)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, (size + 511) // 512, 10**9, 10**9, 10**9, 0, 0, 0, mode,
                           1, 0, 0, 0, 4096, 0)

    def _reply(self, unique, body, error=0):
        try:
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:
            pass  # the mount has gone


def why_not(folder):
    """None where such files can be had, else the reason in one line."""
    path = os.path.join(folder, "probe")
    with open(path, "wb") as file:
        file.write(b"probe")
    mount = os.path.join(folder, "mount")
    os.mkdir(mount)
    try:
        with FuseFile(mount, path) as file:
            served = subprocess.run(["cat", file.path], capture_output=True, timeout=20, check=False).stdout
            return None if served == b"probe" else "FUSE serves other bytes"
    except OSError as error:
        return f"no file system can be mounted here: {error}"
