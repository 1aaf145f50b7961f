"""Peers of another job, version or plan, strangers on the peer port, and a member that lies."""

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
from faults import MARK, assert_loads, sparse
from group import Daemon, Group, wait_until
from noise import callers, doors, show
from peer import FakeMember, call, join_request, message


def peer_address(group, rank=0):
    return "{}:{}".format(*doors(group, rank)["peer"])


@pytest.mark.parametrize("fields, says", [
    ({"version": "9.9"}, "it runs ckptd 9.9"),
    ({"job": "another"}, 'its job is "another"'),
    ({"world_size": 5}, "a world size of 5"),
    ({"rank": 7}, "members have ranks 1 to 1"),
    ({"rank": -1}, "members have ranks 1 to 1"),
    ({"rank": 0}, "members have ranks 1 to 1"),
    ({}, "holds that rank and is alive"),
], ids=["version", "job", "world size", "rank past the group", "rank below 0", "the leader's rank", "a held rank"])
def test_a_daemon_that_does_not_belong_to_the_group_is_refused_and_told_why(scene, fields, says):
    epoch = scene.group.info()["epoch"]
    code, sentence = call(peer_address(scene.group), "Join", join_request(scene.group, **fields))
    assert code == "FAILED_PRECONDITION" and says in sentence, sentence
    assert scene.group.info()["epoch"] == epoch
    scene.assert_usual()


def test_a_daemon_of_another_job_that_finds_our_leader_says_so(scene, tmp_path):
    with Daemon(tmp_path, rank=1, ranks=2, rendezvous=peer_address(scene.group), job="another") as lost:
        wait_until(lambda: 'its job is "another"' in lost.info(1)["detail"], "the refusal to show", 10)
    scene.assert_usual()


FAR = 2**63


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("method, request_of", [
    ("Heartbeat", lambda: message("HeartbeatRequest", rank=2**31 - 1, incarnation="who")),
    ("Propose", lambda: message("ProposeRequest", rank=-1, source="/x")),
    ("Prepare", lambda: message("PrepareRequest", epoch=FAR, name="checkpoints/x", names=["w"], dtypes=[99])),
    ("Commit", lambda: message("CommitRequest", epoch=FAR, name="checkpoints/x", tensor_bytes=FAR)),
    ("Abort", lambda: message("AbortRequest", name="checkpoints/x")),
    ("PutValue", lambda: message("PutValueRequest", key="k" * 100_000, value=b"v")),
    ("GetValue", lambda: message("GetValueRequest", key="not there")),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_stranger_on_the_peer_port_changes_nothing(scene, tmp_path, rank, method, request_of):
    call(peer_address(scene.group, rank), method, request_of())
    assert_loads_once(scene, tmp_path)


def assert_loads_once(scene, tmp_path):
    """A load that both ranks take part in, and that is gone afterwards."""
    path = sparse(tmp_path / "next.safetensors", 1 << 20)
    assert_loads(scene.group, path)
    for rank in range(2):
        with ckptd.connect(scene.group.address(rank)) as client:
            name = next(c.name for c in client.list() if c.source == path)
        wait_until(lambda: scene.group.ctl("unload", name, rank=rank).returncode == 0, "the unload", 5)


def test_many_mute_callers_at_a_members_memory_do_not_keep_the_leader_out(scene, tmp_path):
    with callers(doors(scene.group, 1)["memory"], 200):
        began = time.monotonic()
        assert_loads(scene.group, sparse(tmp_path / "f.safetensors", 40 << 20))
        assert time.monotonic() - began < 5


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
                    stream.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
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


@dataclasses.dataclass
class Lie:
    """What a member answers to Prepare, and what its memory socket hands out."""
    sizes: tuple = (SEGMENT,)  # as announced
    digest: object = None  # of its plan; the leader's
    endpoint: object = None  # a door of the leader, a path, or its own socket
    memory: object = lambda folder: memfd(SEGMENT)
    act: object = None

    def answer(self, endpoint):
        def act(request):
            segments = [message("SlabSegment", id=i + 1, bytes=size) for i, size in enumerate(self.sizes)]
            digest = request.rank_digest if self.digest is None else self.digest
            return message("PrepareResponse", rank_digest=digest, segments=segments, memory_endpoint=endpoint,
                           owned_segments=range(1, len(segments) + 1))
        return self.act or act


LIES = {
    "refuses to prepare": Lie(act=refuse),
    "computes another plan": Lie(digest=1),
    "has no memory": Lie(sizes=()),
    "has too little memory": Lie(sizes=(4096,)),
    "announces more memory than there is": Lie(sizes=(FAR,)),
    "has its memory at no address": Lie(endpoint="/nonexistent.sock"),
    "has its memory at the address of something else": Lie(endpoint="workload"),
    "hands out a pipe": Lie(memory=lambda folder: os.pipe()[1]),
    "hands out memory that it could cut": Lie(memory=lambda folder: memfd(SEGMENT, 0)),
    "hands out a file on disk": Lie(memory=on_disk),
    "hands out memory that is sealed": Lie(memory=lambda folder: memfd(SEGMENT, fcntl.F_SEAL_SHRINK | 0x10)),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_member_that_lies_fails_the_load_by_name_and_hurts_nobody(tmp_path, kind):
    lie = LIES[kind]
    path = sparse(tmp_path / "s.safetensors", 1 << 20)
    with Daemon(tmp_path, ranks=2) as leader, memory_door(tmp_path / "liar.sock", [lie.memory(tmp_path)]) as door:
        endpoint = doors(leader).get(lie.endpoint, lie.endpoint or door)
        identity = join_request(leader, host=leader.info()["members"][0]["host"])
        pid = leader.pid(0)
        with FakeMember(peer_address(leader), identity, {"Prepare": lie.answer(endpoint)}) as member:
            with ckptd.connect(leader.address(0)) as client:
                began = time.monotonic()
                with pytest.raises(ckptd.Error) as caught:
                    client.load(path, layout="replicate:2", timeout=20)
                assert time.monotonic() - began < 10
            assert "rank 1" in caught.value.message or caught.value.facts.get("rank") == "1", caught.value
            wait_until(lambda: "Abort" in member.calls, "the member to be told", 10)
        assert leader.pid(0) == pid
        assert int(leader.info()["memory"]["used_bytes"]) == 0


def test_a_member_that_keeps_to_the_rules_is_served(tmp_path):
    """The lies above are what fails, not the stranger."""
    path = sparse(tmp_path / "s.safetensors", 1 << 20)
    fd = memfd(SEGMENT)
    with Daemon(tmp_path, ranks=2) as leader, memory_door(tmp_path / "own.sock", [fd]) as door:
        identity = join_request(leader, host=leader.info()["members"][0]["host"])
        with FakeMember(peer_address(leader), identity, {"Prepare": Lie().answer(door)}):
            with ckptd.connect(leader.address(0)) as client:
                client.load(path, layout="replicate:2")
        assert MARK in os.pread(fd, SEGMENT, 0)


def test_a_member_that_joins_and_falls_silent_is_named(tmp_path):
    path = sparse(tmp_path / "s.safetensors", 1 << 20)
    with Daemon(tmp_path, "--heartbeat-interval", "0.25", "--heartbeat-timeout", "1", ranks=2) as leader:
        released = threading.Event()

        def hang(_):
            released.wait(30)
            return message("PrepareResponse")
        with FakeMember(peer_address(leader), join_request(leader), {"Prepare": hang}):
            with ckptd.connect(leader.address(0)) as client:
                began = time.monotonic()
                with pytest.raises(ckptd.Error) as caught:
                    client.load(path, layout="replicate:2")
                assert time.monotonic() - began < 10
            released.set()
        assert caught.value.reason == "RANK_LOST" and "rank 1" in caught.value.message


def test_a_daemon_on_a_live_port_is_refused_and_its_owner_goes_on(scene, tmp_path):
    with contextlib.closing(Daemon(tmp_path, rendezvous=peer_address(scene.group), job="another")) as second:
        assert second.process.wait(20) == 2
        assert "another daemon has it" in second.log() and peer_address(scene.group) in second.log()
    assert not any((tmp_path / "another").glob("*.sock"))
    scene.assert_usual()


def test_what_a_killed_daemon_left_behind_does_not_keep_the_next_one_out(tmp_path):
    path = sparse(tmp_path / "s.safetensors", 1 << 20)
    with Daemon(tmp_path) as first:
        port = peer_address(first)
        first.process.kill()
        first.process.wait()
        assert len(list((tmp_path / "job").iterdir())) == 6
        with Daemon(tmp_path, rendezvous=port) as second:
            assert_loads(second, path)
    assert list((tmp_path / "job").iterdir()) == []


def test_two_jobs_on_one_host_do_not_see_each_other(start, tmp_path):
    with Group(tmp_path, 2, job="a") as a, Group(tmp_path, 2, job="b") as b:
        paths = {group.job: sparse(tmp_path / f"{group.job}.safetensors", 1 << 20) for group in (a, b)}
        for group in (a, b):
            assert_loads(group, paths[group.job])
        for group in (a, b):
            assert [c["source"] for c in group.json("list")["checkpoints"]] == [paths[group.job]]
        a.kill(1)
        assert b.json("list", rank=1)["checkpoints"][0]["state"] == "ACTIVE"


def test_a_token_that_was_not_shown_in_time_is_worthless_and_its_lease_ends(scene, unshown):
    reply, since = unshown
    wait_until(lambda: scene.group.json("leases")["leases"] == [], "the lease to end", 40)
    assert 25 < time.monotonic() - since
    assert show(reply.token, reply.memfd.fd_socket) == (16, 0)
