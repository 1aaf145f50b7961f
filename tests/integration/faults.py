"""Parts of the tests of failure: loads that can be held, and what a group may not keep."""

import array
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import struct
import sys
import threading
import time

import ckptd
from group import PATIENCE, SOON, clean_environment, wait_until
from process_state import open_links
from program import Program  # noqa: F401  tests take it from here

MARK = bytes(range(1, 65))
MIB = 1 << 20


def sparse(path, bytes_of_hole=0, small=0):
    """A safetensors file: `small` tensors of 8 bytes, a hole of zeros, and MARK at the end.

    Its stages last: many tensors take time to plan, and a hole to read, but none to write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    sizes = [(f"small.{i}", 8) for i in range(small)]
    for name, size in [*sizes, ("hole", bytes_of_hole), ("mark", len(MARK))]:
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
        file.seek(-len(MARK), os.SEEK_END)
        file.write(MARK)
    return str(path)


class Loading(threading.Thread):
    """One rank's client that loads: `result` is the Checkpoint, or the ckptd.Error it got.

    accepted: whether it waits for a load that the group knows.
    """

    def __init__(self, group, rank, path, layout, timeout=60, together=None, **options):
        """together: a Barrier of clients that ask at the same time. options: further ones of Client.load."""
        super().__init__(daemon=True)
        self.group, self.rank, self.path, self.layout = group, rank, path, layout
        self.options, self.together = {"timeout": timeout, **options}, together
        self.result = self.ended = None
        self.accepted = False
        self.start()

    def run(self):
        def hear(_):
            self.accepted = True

        try:
            with ckptd.connect(self.group.address(self.rank)) as client:
                if self.together:
                    with contextlib.suppress(threading.BrokenBarrierError):  # one has no daemon
                        self.together.wait(SOON)
                self.result = client.load(self.path, layout=self.layout, progress=hear, **self.options)
        except ckptd.Error as error:
            self.result = error
        self.ended = time.monotonic()

    def outcome(self, seconds):
        self.join(seconds)
        assert not self.is_alive(), f"the client of rank {self.rank} still waits after {seconds} s"
        return self.result


def load_everywhere(group, path):
    together = threading.Barrier(group.ranks)
    return [Loading(group, rank, path, f"fsdp:{group.ranks}", together=together) for rank in range(group.ranks)]


def wait_gathered(group, path, loads):
    """Until all of these have stated their tensors, and the load waits for the other ranks alone."""
    others = tuple(sorted(set(range(group.ranks)) - {one.rank for one in loads}))
    with ckptd.connect(group.address(0)) as client:
        wait_until(
            lambda: all(one.accepted for one in loads)
            and [one.progress.waiting_ranks for one in client.list() if one.source == path] == [others],
            "the load to gather",
        )


def statement(rank, ranks):
    """What a trainer states in rank form: all of MARK."""
    layout = ckptd.RankLayout(rank, ranks, shardings=[ckptd.Sharding()])
    layout.add("mark", [len(MARK)], 0)
    return layout


def states(pid):
    """Of the threads of a process, each as a letter: T stands still."""
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_text().rpartition(")")[2].split()[0]


def stand_still(pid):
    """Stops a process; it does nothing any more once this returns."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: set(states(pid)) <= {"T"}, "all of its threads to stand still")


@contextlib.contextmanager
def stopped(pid):
    stand_still(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def stage_of(client, path):
    """The stage in which that daemon's load of `path` is; None before it, its state after it."""
    for checkpoint in client.list():
        if checkpoint.source == path:
            return checkpoint.progress.stage if checkpoint.state == "LOADING" else checkpoint.state
    return None


def unload_everywhere(group):
    for rank in range(group.ranks):
        for checkpoint in group.json("list", rank=rank)["checkpoints"]:
            if checkpoint["state"] in ("STATE_ACTIVE", "STATE_TAKEN"):
                group.unload(checkpoint["name"], rank)


def anonymous_bytes(pid):
    """Resident bytes of a process that are of no file, without stacks of threads.

    How many threads gRPC uses at once, and how deep their stacks get, differs from run to run.
    """
    total, stack, guard_end = 0, False, None
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            key, *values = line.split()
            if "-" in key and len(values) >= 4:  # a mapping begins: addresses, permissions ...
                begin, end = (int(address, 16) for address in key.split("-"))
                stack = begin == guard_end
                guard_end = end if values[0] == "---p" and len(values) == 4 else None
            elif key == "Anonymous:" and not stack:
                total += int(values[0]) << 10
    return total


def resources(pid):
    """Open descriptors, memfds among them, threads and anonymous bytes of a process."""
    links = open_links(pid)
    return {
        "fds": len(links),
        "memfds": sum("memfd:ckptd" in link for link in links),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "anonymous": anonymous_bytes(pid),
    }


SEGMENT = 2 << 20  # what Group asks for
# Threads that gRPC starts when it is busy, and keeps.
SPARE_THREADS = 2


def footprint(info):
    """What a daemon holds that is no memory of its arena: two descriptors a segment."""
    found, memory = resources(info["pid"]), info["memory"]
    segments = int(memory["arena_bytes"]) // SEGMENT if memory["tier"] == "host" else 0
    return {
        "memfds": found["memfds"] - 2 * segments,
        "other descriptors": found["fds"] - found["memfds"],
        "threads": found["threads"],
    }


def footprints(group, path):
    """Those of all ranks of a healthy group that has loaded once, as it has at the end."""
    assert_loads(group, path)
    assert_nothing_is_left(group)
    return [footprint(info) for info in group.wait_ready()]


def assert_no_more_than(before, group, measure=footprint):
    """By measure(info), no daemon holds more than it did `before`, or its predecessor."""

    def more():
        spare = {"threads": SPARE_THREADS}
        return {
            f"{key} of rank {rank}": (was[key], now[key])
            for rank, (was, now) in enumerate(zip(before, map(measure, group.wait_ready())))
            for key in was
            if now[key] > was[key] + spare.get(key, 0)
        }

    # What clients have closed, a daemon notices in a moment.
    try:
        wait_until(lambda: more() == {}, "what was left to go")
    except AssertionError:
        raise AssertionError(f"left, (before, now): {more()}") from None


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def sockets(group):
    """The files of daemons; a launcher's are not among them."""
    return sorted(path.name for path in (group.run_dir / group.job).glob("rank-*"))


def expected_sockets(ranks):
    kinds = ("admin.sock", "admin.sock.lock", "fd.sock", "lock", "mem.sock", "sock", "sock.lock")
    return sorted(f"rank-{rank}.{kind}" for rank in range(ranks) for kind in kinds)


def assert_nothing_is_left(group):
    """No lease, memory, child or file beyond those of a healthy group that holds nothing."""

    def clean():
        infos = group.ready()
        return infos and all(
            int(info["memory"]["used_bytes"]) == 0 and int(info["memory"]["lingering_bytes"]) == 0
            for info in infos
        )

    unload_everywhere(group)
    for rank in range(group.ranks):
        wait_until(lambda: not group.json("leases", rank=rank)["leases"], f"the leases of rank {rank} to end")
    try:
        wait_until(clean, "all memory to be given back")
    except AssertionError as error:
        raise AssertionError(f"{error}: {[info['memory'] for info in group.wait_ready()]}") from None
    assert sockets(group) == expected_sockets(group.ranks)
    if group.process.poll() is None:
        assert sorted(children(group.process.pid)) == sorted(
            group.pid(r) for r in range(group.ranks)
        )


def assert_loads(group, path):
    """Every rank loads `path`, maps it, and finds the right bytes."""
    found = b""
    for loading in load_everywhere(group, path):
        checkpoint = loading.outcome(60)
        assert isinstance(checkpoint, ckptd.Checkpoint), checkpoint
        with ckptd.connect(group.address(loading.rank)) as client:
            with client.acquire(checkpoint) as shard:
                found += content(shard.tensors["mark"])
                hole = content(shard.tensors["hole"], 4096)
                assert hole == bytes(len(hole))
    assert found == MARK


def content(view, count=None):
    """The first bytes of a tensor, by its address: that of a fake GPU is one of this process."""
    return ctypes.string_at(view.pointer, view.nbytes if count is None else min(count, view.nbytes))


def fd_socket_of(reply):
    """Where an AcquireShard reply's token is shown, whatever memory it is for."""
    return getattr(reply, reply.WhichOneof("handle")).fd_socket


def ticket(client, checkpoint, mode="shared", kinds=()):
    """A lease that nobody has fetched yet: the AcquireShard reply with its token."""
    from ckptd import _proto, _rpc, _types

    request = _proto.message("AcquireShardRequest")(
        name=checkpoint.name, mode=_types.MODES[mode], accepted_kinds=kinds
    )
    return client._connection.call("AcquireShard", request, "acquiring", _rpc.Deadline(PATIENCE))


def reply_header(stream):
    """(status, its descriptors, how many are to come) of one message of the fd socket."""
    data, ancillary, *_ = stream.recvmsg(16, socket.CMSG_SPACE(128 * 4))
    fds = array.array("i")
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    magic, status, here, to_come = struct.unpack("<4sIII", data)
    assert magic == b"CKP1" and here == len(fds)
    return status, list(fds), to_come


def client_environment():
    return {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if "client/python" in p),
    }
