"""Budgets, limits of the system, and whose bytes a client can see: refusals come early and change nothing."""

import contextlib
import json
import mmap
import os
import pathlib
import resource
import subprocess
import time

import ckptd
import pytest
from faults import (MARK, Program, assert_nothing_is_left, client_environment, reply_header, resources, sparse, ticket)
from group import Daemon, wait_until
from noise import callers, doors, knock

MIB = 1 << 20


def load(client, path, **options):
    return client.load(path, layout="replicate:1", **options)


def refused(client, path):
    with pytest.raises(ckptd.Error) as caught:
        load(client, path)
    assert (caught.value.code, caught.value.reason) == ("RESOURCE_EXHAUSTED", "NO_MEMORY"), caught.value
    return caught.value


def attaches(client, checkpoint):
    with client.acquire(checkpoint) as shard:
        return bytes(shard.tensors["mark"].buffer) == MARK


@pytest.mark.parametrize("mebibytes", [14, 40], ids=["what the leased one leaves", "the whole budget"])
def test_a_load_that_cannot_fit_is_refused_before_anything_is_evicted(start, tmp_path, mebibytes):
    group = start(1, "--memory-budget", "24MiB")
    with ckptd.connect(group.address(0)) as client:
        leased = load(client, sparse(tmp_path / "leased.safetensors", 11 * MIB))
        idle = load(client, sparse(tmp_path / "idle.safetensors", 3 * MIB))
        with client.acquire(leased):
            error = refused(client, sparse(tmp_path / "large.safetensors", mebibytes * MIB))
            assert str(24 * MIB) in error.message
            names = {c["name"] for c in group.json("list")["checkpoints"] if c["state"] == "ACTIVE"}
            assert names == {leased.name, idle.name}
            assert attaches(client, idle)


def test_an_exhausted_arena_refuses_until_something_is_let_go(start, tmp_path):
    group = start(1, "--memory-budget", "8MiB", "--arena", "100%")
    with ckptd.connect(group.address(0)) as client:
        first = load(client, sparse(tmp_path / "a.safetensors", 5 * MIB))
        second = sparse(tmp_path / "b.safetensors", 5 * MIB)
        shard = client.acquire(first)
        refused(client, second)
        shard.close()
        wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end", 5)
        assert attaches(client, load(client, second))


@contextlib.contextmanager
def memory_group(limit):
    """A control group of that many bytes, or a skip where this machine does not let us make one."""
    lines = dict(line.split(":", 2)[1:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())
    if "memory" in lines:
        parent, name = pathlib.Path("/sys/fs/cgroup/memory" + lines["memory"]), "memory.limit_in_bytes"
    else:
        parent, name = pathlib.Path("/sys/fs/cgroup" + lines.get("", "/")), "memory.max"
    own = parent / f"ckptd-test-{os.getpid()}"
    try:
        own.mkdir()
        (own / name).write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            own.rmdir()
        pytest.skip(f"no control group of our own here: {error}")
    try:
        yield own
    finally:
        wait_until(lambda: not (own / "cgroup.procs").read_text(), "the control group to be empty", 20)
        own.rmdir()


def test_a_control_groups_limit_refuses_a_load_and_kills_nobody(tmp_path):
    join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    with memory_group(160 * MIB) as own:
        with Daemon(tmp_path, "--memory-budget", "1GiB", wrapper=("sh", "-c", join, own)) as daemon:
            pid = daemon.pid(0)
            with ckptd.connect(daemon.address(0)) as client:
                error = refused(client, sparse(tmp_path / "large.safetensors", 300 * MIB))
                assert "container" in error.message
                assert attaches(client, load(client, sparse(tmp_path / "small.safetensors", 20 * MIB)))
            assert daemon.pid(0) == pid


# Its own mount namespace, with the /dev/shm that the test wants.
SHM = {"absent": "umount -l /dev/shm 2>/dev/null; mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && "
                 "mknod -m 666 /dev/urandom c 1 9",
       "full": "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"}


@pytest.mark.parametrize("state", SHM)
def test_dev_shm_is_not_needed(tmp_path, state):
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    wrapper = [*unshare, "sh", "-c", f"({SHM[state]}) && exec \"$0\" \"$@\""]
    if subprocess.run([*wrapper, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace of our own here")
    with Daemon(tmp_path, wrapper=wrapper) as daemon:
        with ckptd.connect(daemon.address(0)) as client:
            assert attaches(client, load(client, sparse(tmp_path / "s.safetensors", 5 * MIB)))


FEW = ("prlimit", "--nofile=96:96")


def test_a_small_limit_of_descriptors_refuses_a_load_that_needs_more(tmp_path):
    with Daemon(tmp_path, wrapper=FEW) as daemon:
        pid = daemon.pid(0)
        with ckptd.connect(daemon.address(0)) as client:
            before = resources(pid)
            error = refused(client, sparse(tmp_path / "large.safetensors", 150 * MIB))
            assert "ulimit -n" in error.message
            wait_until(lambda: resources(pid)["memfds"] == before["memfds"], "its memfds to be closed", 5)
            assert attaches(client, load(client, sparse(tmp_path / "small.safetensors", 5 * MIB)))
        assert daemon.pid(0) == pid


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("door, count", [("fd", 150), ("memory", 40)])
def test_mute_callers_do_not_use_up_a_small_limit_of_descriptors(tmp_path, door, count):
    with Daemon(tmp_path, wrapper=FEW) as daemon:
        pid, where = daemon.pid(0), doors(daemon)
        with ckptd.connect(daemon.address(0)) as client:
            checkpoint = load(client, sparse(tmp_path / "s.safetensors", MIB))
            before, cpu, began = resources(pid)["fds"], cpu_seconds(pid), time.monotonic()
            with callers(where[door], count):
                assert attaches(client, checkpoint)
                load(client, sparse(tmp_path / "t.safetensors", 5 * MIB))
                wait_until(lambda: resources(pid)["fds"] <= before + 8, "the mute ones to be sent away", 20)
            # It waited for them without spinning.
            assert cpu_seconds(pid) - cpu < 0.3 * (time.monotonic() - began) + 0.2
        assert daemon.pid(0) == pid


def whole_segments(client, checkpoint):
    """All bytes of all memory that the daemon hands out for that shard, also those past its end."""
    reply = ticket(client, checkpoint)
    with knock(reply.memfd.fd_socket) as stream:
        stream.sendall(reply.token.encode())
        status, fds, to_come = reply_header(stream)
        assert status == 0 and to_come == 0
        contents = []
        for fd in fds:
            with mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ) as segment:
                contents.append(segment[:])
            os.close(fd)
        return b"".join(contents)


def filled(path, byte, size):
    """A safetensors file of one tensor "w" of `size` equal bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([byte]) * size)
    return str(path)


def test_no_byte_of_one_checkpoint_shows_past_the_end_of_the_next(start, tmp_path):
    group = start(1, "--memory-budget", "8MiB")
    with ckptd.connect(group.address(0)) as client:
        first = load(client, filled(tmp_path / "a.safetensors", 0xAA, 3 * MIB))
        assert whole_segments(client, first).count(0xAA) == 3 * MIB
        wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end", 5)
        group.json("unload", first.name)
        second = load(client, filled(tmp_path / "b.safetensors", 0xBB, MIB + 7))
        seen = whole_segments(client, second)
        assert set(seen) == {0, 0xBB} and seen.count(0xBB) == MIB + 7


# Keeps its mapping, without a lease, and tells what it sees each time it is asked.
KEEPER = """
import sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    shard = client.acquire(client.load(sys.argv[2], layout="replicate:1"))
view = memoryview(shard.tensors["w"].buffer).cast("B")
shard.close()
print("kept", flush=True)
for line in sys.stdin:
    print(sorted(set(bytes(view))), flush=True)
"""


def test_a_client_that_dropped_its_lease_but_keeps_its_mapping_never_sees_other_bytes(start, tmp_path):
    group = start(1, "--memory-budget", "16MiB")
    path = filled(tmp_path / "kept.safetensors", 0xAA, 3 * MIB)
    with ckptd.connect(group.address(0)) as client:
        with Program(KEEPER, group.address(0), path, environment=client_environment()) as keeper:
            assert keeper.hear() == "kept"
            wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end", 5)
            for i in range(6):
                # More than the budget in all: what can be used again is.
                load(client, filled(tmp_path / f"{i}.safetensors", i + 1, 5 * MIB))
                assert keeper.ask("look") == str([0xAA])
                assert group.ctl("get", client.list()[0].name).returncode == 0
        assert attaches_filled(client, load(client, filled(tmp_path / "last.safetensors", 9, 5 * MIB)), 9)
    assert_nothing_is_left(group)


def attaches_filled(client, checkpoint, byte):
    with client.acquire(checkpoint) as shard:
        return set(bytes(shard.tensors["w"].buffer)) == {byte}


# Takes the memory itself, writes to it, says so, and waits for its end.
TAKER = """
import sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    shard = client.acquire(client.load(sys.argv[2], layout="replicate:1", mode="exclusive"), "exclusive")
view = memoryview(shard.tensors["w"].buffer).cast("B")
view[:] = bytes([0xEE]) * len(view)
print("dirty", flush=True)
sys.stdin.read()
"""


def test_memory_that_a_killed_exclusive_client_wrote_to_is_never_served_again(start, tmp_path):
    group = start(1, "--memory-budget", "16MiB")
    path = filled(tmp_path / "w.safetensors", 0xAA, 3 * MIB)
    with ckptd.connect(group.address(0)) as client:
        for _ in range(4):
            with Program(TAKER, group.address(0), path, environment=client_environment()) as taker:
                assert taker.hear() == "dirty"
                taken = client.list()[0]
                assert taken.state == "TAKEN"
            wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end", 5)
            with pytest.raises(ckptd.Error) as caught:
                client.acquire(taken)
            assert caught.value.reason == "TAKEN"
            again = load(client, path)
            assert again.name != taken.name and attaches_filled(client, again, 0xAA)
            assert set(whole_segments(client, again)) == {0, 0xAA}
            wait_until(lambda: group.ctl("unload", again.name).returncode == 0, "the unload", 5)
    assert_nothing_is_left(group)


def test_memory_whose_exclusive_handover_broke_is_not_served_again(start, tmp_path):
    """The client died with the descriptors on their way: it may have had them."""
    group = start(1)
    path = filled(tmp_path / "w.safetensors", 0xAA, 3 * MIB)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = load(client, path, mode="exclusive")
        reply = ticket(client, checkpoint, "exclusive")
        with knock(reply.memfd.fd_socket) as stream:
            stream.sendall(reply.token.encode())
        wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end", 5)
        assert client.get(checkpoint).state == "TAKEN"
        assert attaches_filled(client, load(client, path), 0xAA)
    assert_nothing_is_left(group)


def test_an_exclusive_lease_that_was_never_fetched_leaves_the_memory_to_others(start, tmp_path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = load(client, filled(tmp_path / "w.safetensors", 0xAA, 3 * MIB), mode="exclusive")
        reply = ticket(client, checkpoint, "exclusive")
        with pytest.raises(ckptd.Error) as caught:
            client.acquire(checkpoint)
        assert caught.value.reason == "LEASED"
        group.json("leases")
        from ckptd import _proto, _rpc
        client._connection.call("ReleaseShard", _proto.message("ReleaseShardRequest")(lease=reply.lease),
                                "releasing", _rpc.Deadline(5))
        assert attaches_filled(client, checkpoint, 0xAA)
