"""Callers that mean no good, for every door of a daemon."""

import contextlib
import os
import socket
import statistics
import threading
import time
import urllib.parse

import ckptd
from faults import MARK, content, reply_header
from group import PATIENCE, SOON

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def _literal(name, value):
    """A header as HPACK writes it without compressing: RFC 7541, section 6.2.2."""
    return b"\x00" + b"".join(bytes([len(text)]) + text for text in (name, value))


def _frame(kind, flags, payload):
    """Of stream 1: RFC 9113, section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 1]) + payload


def half_a_call(method, announced=200 << 20, sent=10_000):
    """A gRPC call whose message is announced as long and ends early."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": f"/ckptd.v1.{method}".encode(),
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    head = _frame(1, 4, b"".join(_literal(name, value) for name, value in headers.items()))
    return PREFACE + SETTINGS + head + _frame(0, 0, b"\0" + announced.to_bytes(4, "big") + bytes(sent))


# What each of them sends before it falls silent.
SPEECHES = {
    "nothing": b"",
    "one byte": b"\x00",
    "random bytes": bytes((i * 197 + 31) % 256 for i in range(4096)),
    "half a preface": PREFACE[:11],
    "a preface and no more": PREFACE,
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(506),
    "a frame of 16 MiB": PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "frames of no kind": PREFACE + SETTINGS + b"\x00\x00\x08\xee\xff\xff\xff\xff\xffgarbage!" * 50,
    "headers that never end": PREFACE
    + SETTINGS
    + b"\x00\x10\x00\x01\x00\x00\x00\x00\x01"
    + b"\x82" * 4096,
    "half a call": half_a_call("CheckpointService/LoadCheckpoint"),
    "half a token": b"0123456789abcdef",
    "a peer's request with an absurd count": b"CKPM\xff\xff\xff\xff" + b"0" * 32,
    "half a peer's request": b"CKPM\x01\x00",
}


def doors(group, rank=0):
    """Every address at which a daemon listens: name -> path or (host, port)."""
    stem = group.run_dir / group.job / f"rank-{rank}"
    peer = urllib.parse.urlsplit("//" + group.info(rank)["peer_address"])
    return {
        "workload": f"{stem}.sock",
        "admin": f"{stem}.admin.sock",
        "fd": f"{stem}.fd.sock",
        "memory": f"{stem}.mem.sock",
        "peer": (peer.hostname, peer.port),
    }


def peer_address(group, rank=0):
    return "{}:{}".format(*doors(group, rank)["peer"])


def knock(door):
    stream = socket.socket(socket.AF_UNIX if isinstance(door, str) else socket.AF_INET)
    stream.settimeout(PATIENCE)
    stream.connect(door)
    return stream


@contextlib.contextmanager
def callers(door, count, speech=b""):
    """`count` connections that say `speech` and then stay, silent, until the block ends."""
    with contextlib.ExitStack() as open_ones:
        for _ in range(count):
            stream = open_ones.enter_context(knock(door))
            # A door may have been shut on it already.
            with contextlib.suppress(OSError):
                stream.sendall(speech)
        yield


def seconds_until_closed(door, speech, period, patience):
    """How long the daemon listens to somebody who sends a byte of `speech` per period."""
    began, said = time.monotonic(), 0
    with knock(door) as stream:
        stream.settimeout(period)
        while time.monotonic() - began < patience:
            try:
                stream.sendall(speech[said : said + 1])
                said += 1
                if stream.recv(1) == b"":
                    break
            except socket.timeout:
                continue
            except OSError:
                break
        return time.monotonic() - began


@contextlib.contextmanager
def dripping(door, speech, period=0.2):
    """A connection that sends one byte of `speech` per period, until the block ends."""
    ended = threading.Event()

    def drip():
        with knock(door) as stream, contextlib.suppress(OSError):
            for byte in speech:
                stream.sendall(bytes([byte]))
                if ended.wait(period):
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def show(token, path):
    """The status that the fd socket answers with; its descriptors are closed."""
    with knock(path) as stream:
        stream.sendall(token.encode())
        status, fds, _ = reply_header(stream)
        for fd in fds:
            os.close(fd)
        return status, len(fds)


class Scene:
    """A group of two, one checkpoint in it, and a well-behaved client of rank 0.

    beside: a group of one, whose daemon no test has called.
    """

    def __init__(self, group, client, path, beside):
        self.group, self.client, self.path, self.beside = group, client, path, beside
        self.checkpoint = client.load(path, layout="replicate:2")
        self.pids = [group.pid(rank) for rank in range(2)]
        self.usual = statistics.median(self.attach() for _ in range(20))

    def attach(self, group=None):
        """Seconds that a new client needs to connect, find its checkpoint, and map it."""
        group, began = group or self.group, time.monotonic()
        with ckptd.connect(group.address(0)) as client:
            found = client.load(self.path, layout=f"replicate:{group.ranks}")
            with client.acquire(found) as shard:
                assert content(shard.tensors["mark"]) == MARK
        return time.monotonic() - began

    def assert_usual(self):
        """Attaching takes its usual time, or as long as it does now beside a daemon that nobody calls, and both
        daemons live on. A machine is busy for a while; what callers do to a daemon lasts as long as they are there."""

        def typical(group):
            return statistics.median(self.attach(group) for _ in range(5))

        usual, deadline = self.usual, time.monotonic() + SOON
        while (now := typical(self.group)) > 4 * usual + 0.05:
            usual = max(self.usual, typical(self.beside))
            assert time.monotonic() < deadline, (now, usual, self.usual)
        assert [self.group.pid(rank) for rank in range(2)] == self.pids
