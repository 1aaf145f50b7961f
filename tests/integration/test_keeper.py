"""Who dies, what is kept, and how long it takes: shards and leases outlive daemon, keeper and launch."""

import contextlib
import mmap
import os
import pathlib
import re
import signal
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import ckptd
import pytest
import torch
import warm
from faults import children, content, stand_still
from group import BINARIES, KEPT, PATIENCE, SOON, Group, clean_environment, key_for, parsed, save, wait_until
from process_state import runs
from tiers import both
from users import MODULES, run_as

WORDS = torch.arange(1 << 20, dtype=torch.int32)  # 4 MB, half of it for each of two ranks


def keeper_of(group):
    """The process that answers on the keeper's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.connect(str(group.run_dir / group.job / "keeper.sock"))
        return int.from_bytes(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


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
        wait_until(lambda: leases(group) == self.leases, "the same leases", SOON)
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


def attaches(group, rank, name):
    with contextlib.suppress(ckptd.Error), ckptd.connect(group.address(rank)) as client:
        client.acquire(name).close()
        return True
    return False


def kill(group, rank, number=signal.SIGKILL, name=None):
    """Kills a rank's daemon; the seconds until another one lends its checkpoint."""
    before = group.pid(rank)
    began = time.monotonic()
    os.kill(before, number)
    wait_until(lambda: not runs(before), "the daemon to end", SOON)
    name = name or [checkpoint["name"] for checkpoint in group.json("list", rank=(rank + 1) % group.ranks)["checkpoints"]][0]
    wait_until(lambda: attaches(group, rank, name), "its checkpoint", SOON)
    seconds = time.monotonic() - began
    wait_until(lambda: (group.info(rank) or {"pid": before})["pid"] != before, "another daemon", SOON)
    return seconds


def kill_at_once(*pids):
    """None of them does anything about the end of another."""
    for pid in pids:
        stand_still(pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def died(record_property):
    """died(who, what, seconds) adds a row to the table of who dies, what is kept, and how long re-attaching takes."""
    return lambda who, what, seconds: record_property("kept", (who, what, seconds))


@both
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "replaced"])
def test_a_daemon_that_comes_back_has_its_checkpoints_and_leases_without_reading(held, number, died, memory):
    group, holds = held
    for rank in range(group.ranks):
        how = "killed" if number == signal.SIGKILL else "replaced"
        died(f"daemon {rank}, {how} ({memory.name})", "checkpoints, leases", kill(group, rank, number, holds.name))
    group.wait_ready()
    holds.assert_same(group)
    assert group.log().count("took over 1 checkpoints and 1 leases") == group.ranks
    for rank, shard in enumerate(holds.shards):
        shard.close()
        wait_until(lambda: not leases(group)[rank], "the lease to end with its connection", SOON)
    wait_until(lambda: kept(group) == [(1, 0)] * group.ranks, "the keeper to hear of it", SOON)


def test_a_request_for_what_came_back_finds_it_resident(start, tmp_path):
    group = start(1, environment=KEPT)
    path = save(tmp_path / "m.safetensors", {"w": WORDS})
    with ckptd.connect(group.address(0)) as client:
        name = client.load(path, layout="fsdp:1").name
    kill(group, 0, name=name)
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


def test_another_keeper_is_filled_from_the_daemons(held, died):
    group, holds = held
    first = keeper_of(group)
    os.kill(first, signal.SIGKILL)
    began = time.monotonic()
    assert attaches(group, 0, holds.name)
    died("keeper", "checkpoints, leases", time.monotonic() - began)
    wait_until(lambda: kept(group) == [(1, 1)] * 2 and keeper_of(group) != first, "another keeper", SOON)
    kill(group, 1, name=holds.name)
    group.wait_ready()
    holds.assert_same(group)


def test_a_daemon_that_dies_with_its_keeper_begins_empty_and_loads_again(held, died):
    group, holds = held
    client = holds.clients[1]
    before = content(holds.shards[1].tensors["w"])
    began = time.monotonic()
    kill_at_once(group.pid(1), keeper_of(group))
    wait_until(lambda: group.ready() and active(group) == [[holds.name], []], "an empty daemon", SOON)
    assert leases(group)[1] == []
    assert content(holds.shards[1].tensors["w"]) == before  # what is mapped stays
    save(pathlib.Path(holds.path), {"w": WORDS})
    assert client.load(holds.path, layout="fsdp:2").state == "ACTIVE"
    died("daemon and keeper", "what trainers have mapped; the rank loads again", time.monotonic() - began)


@both
@pytest.mark.parametrize("with_daemon", [False, True], ids=["launch", "launch and a daemon"])
def test_the_next_launch_has_what_a_killed_one_had(memory, tmp_path, tmp_path_factory, with_daemon, died):
    folder = tmp_path_factory.mktemp("g")
    named = {"environment": {**KEPT, **memory.environment}}
    with Group(folder, 2, *memory.options, **named) as first:
        holds = Held(first, tmp_path)
        keeper, daemons = keeper_of(first), [first.pid(rank) for rank in range(2)]
        for pid in [first.process.pid, *daemons[: int(with_daemon)]]:
            os.kill(pid, signal.SIGKILL)
        first.process.wait(SOON)  # its daemons may still be ending
    began = time.monotonic()
    with Group(folder, 2, *memory.options, **named) as second:
        assert attaches(second, 0, holds.name)
        died(f"launch{' and a daemon' if with_daemon else ''} ({memory.name})", "checkpoints, leases",
             time.monotonic() - began)
        assert keeper_of(second) == keeper
        holds.assert_same(second)
        holds.close()
    wait_until(lambda: not runs(keeper), "the keeper to end with a launch that ends well", SOON)


def test_a_keeper_stays_where_launch_was_asked_to_leave_it(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    with Group(folder, 1, "--keep", environment=KEPT) as first:
        path = save(tmp_path / "m.safetensors", {"w": WORDS})
        with ckptd.connect(first.address(0)) as client:
            name = client.load(path, layout="fsdp:1").name
        keeper = keeper_of(first)
    with Group(folder, 1, environment=KEPT) as second:
        assert active(second) == [[name]] and keeper_of(second) == keeper
    wait_until(lambda: not runs(keeper), "the keeper to end", SOON)


def test_stop_ends_the_keeper_too_also_one_that_was_left(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    with Group(folder, 1, "--keep", environment=KEPT) as first:
        keeper = keeper_of(first)
    stop = [BINARIES / "ckptd", "stop"]
    subprocess.run(stop, env=first.environment, check=True, timeout=SOON)
    wait_until(lambda: not runs(keeper), "the keeper to end", SOON)
    with Group(folder, 1, environment=KEPT) as second:
        keeper = keeper_of(second)
        subprocess.run(stop, env=second.environment, check=True, timeout=SOON)
        assert second.process.wait(SOON) == 0
    wait_until(lambda: not runs(keeper), "the keeper to end", SOON)


def test_daemons_that_nobody_uses_end_with_their_keeper(tmp_path_factory):
    group = Group(tmp_path_factory.mktemp("g"), 1, "--linger", "2s", environment=KEPT)

    def keeper_so_far():
        with contextlib.suppress(OSError):
            return keeper_of(group)

    try:
        keeper = wait_until(keeper_so_far, "the keeper", SOON)  # it is there before the daemons, which may end at once
        assert group.process.wait(PATIENCE) == 0
    finally:
        group.end()
    wait_until(lambda: not runs(keeper), "the keeper to end", SOON)


def test_jobs_that_share_a_keeper_get_their_own_back(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    keeper = subprocess.Popen([BINARIES / "ckptd", "keep", "--socket", folder / "k.sock"], stdin=subprocess.DEVNULL)
    try:
        wait_until((folder / "k.sock").exists, "the keeper", SOON)
        with contextlib.ExitStack() as stack:
            names = {}
            for job in ("one", "two"):
                group = stack.enter_context(Group(folder, 1, "--keeper", folder / "k.sock", job=job))
                path = save(tmp_path / f"{job}.safetensors", {"w": WORDS + len(names)})
                with ckptd.connect(group.address(0)) as client:
                    names[group] = client.load(path, layout="fsdp:1").name
            for group, name in names.items():
                group.known_ends = re.compile(r"signal 9 ")
                kill(group, 0, name=name)
                assert [active(each) for each in names] == [[[one]] for one in names.values()]
    finally:
        keeper.terminate()
        keeper.wait(SOON)


HOLD = """
import sys, ckptd
with ckptd.connect(sys.argv[1]) as client, client.acquire(sys.argv[2]):
    print("holds", flush=True)
    sys.stdin.read()
"""


def test_a_trainer_that_dies_leaves_the_checkpoint_and_ends_its_lease(held, died):
    group, holds = held
    trainer = warm.spawn(["-c", "import sys; sys.path[:0] = %r\n%s" % (sys.path, HOLD), group.address(0), holds.name],
                         dict(os.environ), MODULES, stdin=warm.PIPE, stdout=warm.PIPE)
    try:
        assert trainer.stdout.readline() == "holds\n" and len(leases(group)[0]) == 2
    finally:
        trainer.kill()
        trainer.wait(SOON)
    began = time.monotonic()
    assert attaches(group, 0, holds.name)
    died("trainer", "checkpoints, the others' leases", time.monotonic() - began)
    wait_until(lambda: leases(group) == holds.leases, "its lease to end", SOON)
    holds.assert_same(group)


ALICE, BOB, GUESTS = 61001, 61002, 62000
LOAD = """
def run(address, path):
    with ckptd.connect(address) as client:
        return client.load(path, layout="replicate:1", timeout=60).name
"""
NAMES = """
def run(address):
    with ckptd.connect(address) as client:
        return [checkpoint.name for checkpoint in client.list()]
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")
def test_what_was_loaded_for_a_guest_comes_back_for_that_guest_alone():
    with tempfile.TemporaryDirectory(prefix="ckptd-") as place, \
            Group(place, 1, "--allow-gid", GUESTS, environment=KEPT) as group:
        os.chmod(place, 0o755)
        path = save(pathlib.Path(place) / "m.safetensors", {"w": WORDS})
        os.chmod(path, 0o644)
        name = run_as(ALICE, [GUESTS], LOAD, group.address(0), path)["value"]
        assert oct((group.run_dir / group.job / "keeper.sock").stat().st_mode)[-3:] == "600"
        kill(group, 0, name=name)
        group.wait_ready()
        assert run_as(ALICE, [GUESTS], NAMES, group.address(0))["value"] == [name]
        assert run_as(BOB, [GUESTS], NAMES, group.address(0))["value"] == []
        assert run_as(ALICE, [GUESTS], LOAD, group.address(0), path)["value"] == name
        assert group.log().count(": active, ") == 1  # it was loaded once


@pytest.fixture
def memory_folder():
    """A folder in memory, as an emptyDir of a pod is."""
    folder = tempfile.mkdtemp(prefix="ckptd-", dir="/dev/shm")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("trainers", [False, True], ids=["the daemons' container", "all containers"])
def test_files_of_a_slab_folder_survive_all_processes(tmp_path, tmp_path_factory, memory_folder, trainers, died):
    folder = tmp_path_factory.mktemp("g")
    options = ("--slab-dir", memory_folder)
    with Group(folder, 2, *options, environment=KEPT) as first:
        holds = Held(first, tmp_path)
        keeper, daemons = keeper_of(first), [first.pid(rank) for rank in range(2)]
        kill_at_once(first.process.pid, keeper, *daemons)
        wait_until(lambda: not any(map(runs, [keeper, *daemons])), "its processes to end", SOON)
        first.process.wait(SOON)
    if trainers:
        holds.close()
    began = time.monotonic()
    with Group(folder, 2, *options, environment=KEPT) as second:
        assert attaches(second, 0, holds.name)
        who = "all containers" if trainers else "the daemons' container"
        died(f"{who}, --slab-dir", "checkpoints", time.monotonic() - began)
        assert active(second) == [[holds.name]] * 2 and leases(second) == [[], []]
        if not trainers:
            holds.leases = leases(second)
            holds.assert_same(second)
            holds.close()
        for rank in range(2):
            second.unload(holds.name, rank)
    assert [list(one.iterdir()) for one in pathlib.Path(memory_folder).iterdir()] == [[], []]


def test_a_daemon_that_is_killed_has_its_leases_again_beside_a_slab_folder(start, tmp_path, memory_folder):
    group = start(2, "--slab-dir", memory_folder, environment=KEPT)
    holds = Held(group, tmp_path)
    kill(group, 1, name=holds.name)
    group.wait_ready()
    holds.assert_same(group)
    holds.close()


@pytest.mark.parametrize("place, budget, why", [("/proc", "80%", "is no folder in memory"), ("", "8000TB", "make it larger")],
                         ids=["on a disk", "too small"])
def test_a_slab_folder_that_cannot_serve_is_an_error_with_the_next_step(tmp_path, memory_folder, place, budget, why):
    environment = {**clean_environment(), **key_for(()), "CKPTD_RUN_DIR": str(tmp_path)}
    done = subprocess.run([BINARIES / "ckptd", "launch", "--slab-dir", place or memory_folder, "--memory-budget", budget],
                          env=environment, text=True, capture_output=True, timeout=SOON)
    # RestartPreventExitStatus= of deploy/systemd: it would end the same way again.
    assert done.returncode == 2 and why in done.stderr and "--slab-dir" in done.stderr, done.stderr


def take_as(group, rank):
    """The descriptors that the keeper has of a rank whose daemon is gone, by name."""
    owner = f"{group.job}/rank-{rank}".encode()
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
