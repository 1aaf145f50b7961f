"""Who dies, what is kept, and how long it takes: shards and leases outlive daemon, keeper and launch."""

import contextlib
import mmap
import os
import pathlib
import re
import signal
import socket
import time

import ckptd
import pytest
import torch
from faults import children, content
from group import KEPT, SOON, Group, parsed, save, wait_until
from tiers import both

WORDS = torch.arange(1 << 20, dtype=torch.int32)  # 4 MB, half of it for each of two ranks


def keeper_of(group):
    """The process that answers on the keeper's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.connect(str(group.run_dir / group.job / "keeper.sock"))
        return int.from_bytes(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


def gone(pid):
    return not pathlib.Path(f"/proc/{pid}").exists() or "Z" in pathlib.Path(f"/proc/{pid}/stat").read_text()


def kept(group):
    """(checkpoints, leases) that the keeper has of each rank, once it is connected."""
    infos = [group.info(rank) for rank in range(group.ranks)]
    if not all(info and info["keeper"].get("connected") for info in infos):
        return None
    return [(info["keeper"].get("checkpoint_count", 0), info["keeper"].get("lease_count", 0)) for info in infos]


def leases(group):
    return [group.json("leases", rank=rank)["leases"] for rank in range(group.ranks)]


def active(group):
    """The names that are ACTIVE on each rank; nothing while one does not answer."""
    lists = [group.ctl("list", rank=rank) for rank in range(group.ranks)]
    if any(one.returncode for one in lists):
        return None
    found = [parsed(one.stdout).get("checkpoints", []) for one in lists]
    return [[c["name"] for c in one if c["state"].endswith("ACTIVE")] for one in found]


class Held:
    """A checkpoint of two ranks that this process has attached to, and whose file is gone."""

    def __init__(self, group, folder, mode="shared"):
        self.path = save(folder / "m.safetensors", {"w": WORDS})
        self.stack = contextlib.ExitStack()
        self.clients = [self.stack.enter_context(ckptd.connect(group.address(r))) for r in range(group.ranks)]
        self.name = self.clients[0].load(self.path, layout=f"fsdp:{group.ranks}").name
        self.shards = [self.stack.enter_context(client.acquire(self.name, mode=mode)) for client in self.clients]
        self.leases = leases(group)
        assert [len(one) for one in self.leases] == [1] * group.ranks
        os.unlink(self.path)  # whoever reads it from now on fails

    def assert_same(self, group):
        """All is as before: names, states, leases, and bytes for who has them and for who comes now."""
        assert active(group) == [[self.name]] * group.ranks
        assert leases(group) == self.leases
        for rank, shard in enumerate(self.shards):
            expected = WORDS.chunk(group.ranks)[rank].numpy().tobytes()
            assert content(shard.tensors["w"]) == expected
            with ckptd.connect(group.address(rank)) as client, client.acquire(self.name) as again:
                assert content(again.tensors["w"]) == expected

    def close(self):
        self.stack.close()
        self.shards.clear()  # a GPU's memory goes with the last object that knows it


@pytest.fixture
def held(start, tmp_path):
    """(group of two, what is held in it)."""
    group = start(2, environment=KEPT)
    group.known_ends = re.compile(r"signal 9 |exit code 0")
    holds = Held(group, tmp_path)
    yield group, holds
    holds.close()


def kill(group, rank, number=signal.SIGKILL):
    """Kills a rank's daemon; the seconds until another one has its checkpoint ACTIVE."""
    before = group.pid(rank)
    began = time.monotonic()
    os.kill(before, number)
    wait_until(lambda: (group.info(rank) or {"pid": before})["pid"] != before, "another daemon", SOON)
    wait_until(lambda: "ACTIVE" in group.ctl("list", rank=rank).stdout, "its checkpoint", SOON)
    return time.monotonic() - began


@both
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "replaced"])
def test_a_daemon_that_comes_back_has_its_checkpoints_and_leases_without_reading(held, number, record_property):
    group, holds = held
    for rank in range(group.ranks):
        seconds = kill(group, rank, number)
        record_property("fault", ("ACTIVE", f"daemon of rank {rank}", "kept", "checkpoints, leases", seconds))
    group.wait_ready()
    holds.assert_same(group)
    assert group.log().count("took over 1 checkpoints and 1 leases") == group.ranks
    for rank, shard in enumerate(holds.shards):
        shard.close()
        wait_until(lambda: not leases(group)[rank], "the lease to end with its connection", SOON)
    assert kept(group) == [(1, 0)] * group.ranks


def test_a_request_for_what_came_back_finds_it_resident(start, tmp_path):
    group = start(1, environment=KEPT)
    path = save(tmp_path / "m.safetensors", {"w": WORDS})
    with ckptd.connect(group.address(0)) as client:
        name = client.load(path, layout="fsdp:1").name
    kill(group, 0)
    with ckptd.connect(group.address(0)) as client:
        again = client.load(path, layout="fsdp:1")
    assert again.name == name
    assert group.log().count(": active, ") == 1  # it was loaded once


def test_what_was_unloaded_does_not_come_back(start, tmp_path):
    group = start(1, environment=KEPT)
    path = save(tmp_path / "m.safetensors", {"w": WORDS})
    with ckptd.connect(group.address(0)) as client:
        name = client.load(path, layout="fsdp:1").name
    assert kept(group) == [(1, 0)]
    group.json("unload", name)
    assert kept(group) == [(0, 0)]
    group.kill(0)
    assert active(group) == [[]]


def test_another_keeper_is_filled_from_the_daemons(held):
    group, holds = held
    first = keeper_of(group)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: kept(group) == [(1, 1)] * 2 and keeper_of(group) != first, "another keeper", SOON)
    kill(group, 1)
    group.wait_ready()
    holds.assert_same(group)


def test_a_daemon_that_dies_with_its_keeper_begins_empty_and_loads_again(held):
    group, holds = held
    client = holds.clients[1]
    before = content(holds.shards[1].tensors["w"])
    for pid in (keeper_of(group), group.pid(1)):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: group.ready() and active(group) == [[holds.name], []], "an empty daemon", SOON)
    assert leases(group)[1] == []
    assert content(holds.shards[1].tensors["w"]) == before  # what is mapped stays
    save(pathlib.Path(holds.path), {"w": WORDS})
    assert client.load(holds.path, layout="fsdp:2").state == "ACTIVE"


@both
@pytest.mark.parametrize("with_daemon", [False, True], ids=["launch", "launch and a daemon"])
def test_the_next_launch_has_what_a_killed_one_had(memory, tmp_path, tmp_path_factory, with_daemon):
    folder = tmp_path_factory.mktemp("g")
    named = {"environment": {**KEPT, **memory.environment}}
    with Group(folder, 2, *memory.options, **named) as first:
        holds = Held(first, tmp_path)
        keeper, daemons = keeper_of(first), [first.pid(rank) for rank in range(2)]
        for pid in [first.process.pid, *daemons[: int(with_daemon)]]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(map(gone, daemons)), "its daemons to end", SOON)
        first.process.wait(SOON)
    with Group(folder, 2, *memory.options, **named) as second:
        assert keeper_of(second) == keeper
        holds.assert_same(second)
        holds.close()
    wait_until(lambda: gone(keeper), "the keeper to end with a launch that ends well", SOON)


def test_a_keeper_stays_where_launch_was_asked_to_leave_it(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    with Group(folder, 1, "--keep", environment=KEPT) as first:
        path = save(tmp_path / "m.safetensors", {"w": WORDS})
        with ckptd.connect(first.address(0)) as client:
            name = client.load(path, layout="fsdp:1").name
        keeper = keeper_of(first)
    with Group(folder, 1, environment=KEPT) as second:
        assert active(second) == [[name]] and keeper_of(second) == keeper
    wait_until(lambda: gone(keeper), "the keeper to end", SOON)


def take_as(group, rank):
    """The descriptors that the keeper has of a rank whose daemon is gone, by name."""
    owner = f"rank-{rank}".encode()
    hello = b"\x0a" + bytes([len(owner)]) + owner
    found = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.settimeout(SOON)
        stream.connect(str(group.run_dir / group.job / "keeper.sock"))
        stream.send(b"\x08\x01\x12" + bytes([len(hello)]) + hello)
        while True:
            answer, fds, _, _ = socket.recv_fds(stream, 4096, 128)
            if not fds:
                return found
            name = answer[answer.index(b"\x1a") + 2 :][: answer[answer.index(b"\x1a") + 1]].decode()
            found.setdefault(name, []).extend(fds)


def test_changed_bytes_are_dropped_and_named(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    with Group(folder, 1, "--keep", environment=KEPT) as first:
        path = save(tmp_path / "m.safetensors", {"w": WORDS})
        with ckptd.connect(first.address(0)) as client:
            # Memory for EXCLUSIVE is not sealed, so a process of this user can write to it.
            name = client.load(path, layout="fsdp:1", mode="exclusive").name
    record, *segments = take_as(first, 0)[name]
    with mmap.mmap(segments[0], 4096) as page:
        page[17] ^= 1
    for fd in (record, *segments):
        os.close(fd)
    with Group(folder, 1, environment=KEPT) as second:
        assert active(second) == [[]]
        dropped = second.info()["keeper"]["dropped"]
        assert len(dropped) == 1 and name in dropped[0] and "bytes of w" in dropped[0]
        assert "DIGEST_MISMATCH" in second.log() and "the bytes of w" in second.log()
        assert kept(second) == [(0, 0)]


def test_a_launch_without_a_keeper_starts_none(start):
    group = start(1)
    assert children(group.process.pid) == [group.pid(0)]
    assert "keeper" not in group.info()
