"""A member that lies, or falls silent, fails the load by its name and hurts nobody."""

import array
import contextlib
import dataclasses
import fcntl
import os
import socket
import threading
import time

import ckptd
import pytest
from faults import MARK, sparse
from group import PATIENCE, SOON, Daemon, wait_until
from holds import HEARTBEATS
from noise import doors, peer_address
from peer import FakeMember, join_request, message

FAR = 2**63


@contextlib.contextmanager
def memory_door(path, fds):
    """A member's memory socket that hands out `fds` whatever it is asked for."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                stream, _ = listener.accept()
                with stream:
                    count = int.from_bytes(stream.recv(40, socket.MSG_WAITALL)[4:8], "little")
                    stream.recv(8 * count, socket.MSG_WAITALL)
                    header = b"CKPM" + b"".join(n.to_bytes(4, "little") for n in (0, len(fds), 0))
                    stream.sendmsg(
                        [header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    )

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def memfd(size, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
    fd = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def on_disk(folder):
    path = folder / "disk"
    path.write_bytes(bytes(SEGMENT))
    return os.open(path, os.O_RDWR)


def refuse(_):
    raise RuntimeError("I would rather not")


SEGMENT = 2 << 20
HOLE = SEGMENT - 512  # a shard with it and MARK takes a segment


@dataclasses.dataclass
class Lie:
    """What a member answers to Prepare, and what its memory socket hands out."""

    sizes: tuple = (SEGMENT,)  # as announced
    digest: object = None  # of its plan; the leader's
    endpoint: object = None  # a door of the leader, a path, or its own socket
    memory: object = lambda folder: memfd(SEGMENT)
    device: object = None  # the GPU that it names; the leader's, if that has one
    act: object = None

    def answer(self, endpoint, device=""):
        def act(request):
            segments = [
                message("SlabSegment", id=i + 1, bytes=size) for i, size in enumerate(self.sizes)
            ]
            digest = request.rank_digest if self.digest is None else self.digest
            return message(
                "PrepareResponse",
                rank_digest=digest,
                segments=segments,
                memory_endpoint=endpoint,
                device_uuid=device if self.device is None else self.device,
                owned_segments=range(1, len(segments) + 1),
            )

        return self.act or act


LIES = {
    "refuses to prepare": Lie(act=refuse),
    "computes another plan": Lie(digest=1),
    "has no memory": Lie(sizes=()),
    "has too little memory": Lie(sizes=(4096,)),
    "announces more memory than there is": Lie(sizes=(FAR,)),
    "announces more memory than its shard takes": Lie(
        sizes=(2 * SEGMENT,), memory=lambda folder: memfd(2 * SEGMENT)
    ),
    "has its memory at no address": Lie(endpoint="/nonexistent.sock"),
    "has its memory at the address of something else": Lie(endpoint="workload"),
    "hands out a pipe": Lie(memory=lambda folder: os.pipe()[1]),
    "hands out memory that it could cut": Lie(memory=lambda folder: memfd(SEGMENT, 0)),
    "hands out a file on disk": Lie(memory=on_disk),
    "hands out memory that is sealed": Lie(
        memory=lambda folder: memfd(SEGMENT, fcntl.F_SEAL_SHRINK | 0x10)
    ),
}


# What a driver would import are descriptors that it has made itself.
GPU_LIES = {
    **{kind: lie for kind, lie in LIES.items() if "cut" not in kind and "sealed" not in kind},
    "hands out memory of the host": Lie(),
    "says that it is on a GPU that nobody has": Lie(device="GPU-00000000-0000-0000-0000-0000000000ff"),
}


@pytest.mark.parametrize(
    "memory, kind",
    [*(("host", kind) for kind in LIES), *(("cuda", kind) for kind in GPU_LIES)],
    indirect=["memory"],
)
def test_a_member_that_lies_fails_the_load_by_name_and_hurts_nobody(tmp_path, memory, kind):
    lie = (GPU_LIES if memory.fake else LIES)[kind]
    path = sparse(tmp_path / "s.safetensors", HOLE)
    with Daemon(
        tmp_path, *memory.options, ranks=2, environment=memory.environment
    ) as leader, memory_door(tmp_path / "liar.sock", [lie.memory(tmp_path)]) as door:
        endpoint = doors(leader).get(lie.endpoint, lie.endpoint or door)
        identity = join_request(leader, host=leader.info()["members"][0]["host"])
        pid = leader.pid(0)
        device = leader.info()["memory"].get("device_uuid", "")
        assert bool(device) == bool(memory.fake)
        with FakeMember(
            peer_address(leader), identity, {"Prepare": lie.answer(endpoint, device)}
        ) as member:
            with ckptd.connect(leader.address(0)) as client:
                began = time.monotonic()
                with pytest.raises(ckptd.Error) as caught:
                    client.load(path, layout="replicate:2", timeout=PATIENCE)
                assert time.monotonic() - began < SOON
            assert (
                "rank 1" in caught.value.message or caught.value.facts.get("rank") == "1"
            ), caught.value
            wait_until(lambda: "Abort" in member.calls, "the member to be told")
        assert leader.pid(0) == pid
        wait_until(lambda: int(leader.info()["memory"]["used_bytes"]) == 0, "the memory to be given back")


def test_a_member_that_keeps_to_the_rules_is_served(tmp_path):
    """The lies above are what fails, not the stranger."""
    path = sparse(tmp_path / "s.safetensors", HOLE)
    fd = memfd(SEGMENT)
    with Daemon(tmp_path, ranks=2) as leader, memory_door(tmp_path / "own.sock", [fd]) as door:
        identity = join_request(leader, host=leader.info()["members"][0]["host"])
        with FakeMember(peer_address(leader), identity, {"Prepare": Lie().answer(door)}):
            with ckptd.connect(leader.address(0)) as client:
                client.load(path, layout="replicate:2")
        assert MARK in os.pread(fd, SEGMENT, 0)


def test_a_member_that_joins_and_falls_silent_is_named(tmp_path):
    path = sparse(tmp_path / "s.safetensors", 1 << 20)
    with Daemon(tmp_path, *HEARTBEATS, ranks=2) as leader:
        silent, released = threading.Event(), threading.Event()

        def hang(_):
            silent.set()
            released.wait(PATIENCE)
            return message("PrepareResponse")

        def beat(member):
            while not silent.wait(0.1):
                member.beat()

        with FakeMember(peer_address(leader), join_request(leader), {"Prepare": hang}) as member:
            threading.Thread(target=beat, args=(member,), daemon=True).start()
            with ckptd.connect(leader.address(0)) as client:
                began = time.monotonic()
                with pytest.raises(ckptd.Error) as caught:
                    client.load(path, layout="replicate:2")
                assert time.monotonic() - began < SOON
            released.set()
        assert caught.value.reason == "RANK_LOST" and "rank 1" in caught.value.message
