"""Budgets and limits of the system: refusals come early, and change nothing."""

import contextlib
import os
import pathlib
import subprocess
import time

import ckptd
import pytest
from faults import (
    MARK,
    content,
    resources,
    sparse,
)
from group import Daemon, wait_until
from noise import callers, doors
from tiers import both

MIB = 1 << 20


def load(client, path, **options):
    return client.load(path, layout="replicate:1", **options)


def refused(client, path):
    with pytest.raises(ckptd.Error) as caught:
        load(client, path)
    assert (caught.value.code, caught.value.reason) == (
        "RESOURCE_EXHAUSTED",
        "NO_MEMORY",
    ), caught.value
    return caught.value


def attaches(client, checkpoint):
    with client.acquire(checkpoint) as shard:
        return content(shard.tensors["mark"]) == MARK


@both
@pytest.mark.parametrize(
    "mebibytes", [14, 40], ids=["what the leased one leaves", "the whole budget"]
)
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
    lines = dict(
        line.split(":", 2)[1:]
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    )
    if "memory" in lines:
        parent, name = (
            pathlib.Path("/sys/fs/cgroup/memory" + lines["memory"]),
            "memory.limit_in_bytes",
        )
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
        wait_until(
            lambda: not (own / "cgroup.procs").read_text(), "the control group to be empty", 20
        )
        own.rmdir()


def test_a_control_groups_limit_refuses_a_load_and_kills_nobody(tmp_path):
    join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    with memory_group(160 * MIB) as own:
        with Daemon(tmp_path, "--memory-budget", "1GiB", wrapper=("sh", "-c", join, own)) as daemon:
            pid = daemon.pid(0)
            with ckptd.connect(daemon.address(0)) as client:
                error = refused(client, sparse(tmp_path / "large.safetensors", 300 * MIB))
                assert "container" in error.message
                assert attaches(
                    client, load(client, sparse(tmp_path / "small.safetensors", 20 * MIB))
                )
            assert daemon.pid(0) == pid


# Its own mount namespace, with the /dev/shm that the test wants.
SHM = {
    "absent": "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && "
    "mknod -m 666 /dev/urandom c 1 9",
    "full": "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full",
}


@pytest.mark.parametrize("state", SHM)
def test_dev_shm_is_not_needed(tmp_path, state):
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    wrapper = [*unshare, "sh", "-c", f'({SHM[state]}) && exec "$0" "$@"']
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
            wait_until(
                lambda: resources(pid)["memfds"] == before["memfds"], "its memfds to be closed", 5
            )
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
                wait_until(
                    lambda: resources(pid)["fds"] <= before + 8, "the mute ones to be sent away", 20
                )
            # It waited for them without spinning.
            assert cpu_seconds(pid) - cpu < 0.3 * (time.monotonic() - began) + 0.2
        assert daemon.pid(0) == pid
