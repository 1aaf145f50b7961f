"""A cable in user space whose packets arrive late, for kernels that cannot delay them (no sch_netem)."""

import collections
import fcntl
import os
import select
import struct
import threading
import time

TUNSETIFF = 0x400454CA
TAP, NO_HEADER = 0x0002, 0x1000
FRAME = 65536
BATCH = 64  # frames taken from one end before the other has its turn


def tap(name):
    """A network interface whose frames are read and written here; it ends with the descriptor."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | NO_HEADER))
    except OSError:
        os.close(fd)
        raise
    return fd


class Relay:
    """Passes frames between two interfaces, each `seconds` after it came, in order.

    Like a cable it drops what finds no room. OSError where interfaces cannot be made."""

    def __init__(self, names, seconds):
        self.seconds, self.ends, self.late = seconds, [], collections.deque()
        self.end_reader, self.end_writer = os.pipe()
        try:
            self.ends += [tap(name) for name in names]
        except OSError:
            self._close()
            raise
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        os.write(self.end_writer, b".")
        self.thread.join()
        self._close()

    def _close(self):
        for fd in (*self.ends, self.end_reader, self.end_writer):
            os.close(fd)

    def _run(self):
        while True:
            wait = max(0.0, self.late[0][0] - time.monotonic()) if self.late else None
            ready, _, _ = select.select([*self.ends, self.end_reader], [], [], wait)
            if self.end_reader in ready:
                return
            for fd in ready:
                self._take(fd, self.ends[fd == self.ends[0]])
            while self.late and self.late[0][0] <= time.monotonic():
                _, to, frame = self.late.popleft()
                self._pass(to, frame)

    def _take(self, fd, to):
        for _ in range(BATCH):
            try:
                frame = os.read(fd, FRAME)
            except OSError:  # none is left, or its interface is down
                return
            self.late.append((time.monotonic() + self.seconds, to, frame))

    @staticmethod
    def _pass(to, frame):
        try:
            os.write(to, frame)
        except OSError:
            pass
