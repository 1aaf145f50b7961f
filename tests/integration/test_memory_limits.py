"""Budgets and limits of the system: refusals come early, and change nothing."""

import contextlib
import json
import os
import pathlib
import subprocess
import threading
import time

import ckptd
import pytest
from faults import (
    MARK,
    Loading,
    Program,
    client_environment,
    content,
    resources,
    sparse,
    unload_everywhere,
)
from group import SOON, Daemon, Group, sanitized, wait_until
from noise import callers, doors
from process_cost import cpu_seconds
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
            names = {c["name"] for c in group.json("list")["checkpoints"] if c["state"] == "STATE_ACTIVE"}
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
        wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
        assert attaches(client, load(client, second))


def test_an_arena_beyond_the_budget_is_filled_up_to_it_and_that_is_said(start):
    group = start(1, "--memory-budget", "8MiB", "--arena", "16MiB")
    assert "--arena 16MiB is more than the memory budget" in group.log()
    wait_until(lambda: int(group.info()["memory"]["arena_bytes"]) == 8 * MIB, "the arena to be filled")


@contextlib.contextmanager
def memory_group(limit, name="test"):
    """A control group of that many bytes, or a skip where this machine does not let us make one."""
    lines = dict(
        line.split(":", 2)[1:]
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    )
    if "memory" in lines:
        parent, most = (
            pathlib.Path("/sys/fs/cgroup/memory" + lines["memory"]),
            "memory.limit_in_bytes",
        )
    else:
        parent, most = pathlib.Path("/sys/fs/cgroup" + lines.get("", "/")), "memory.max"
    own = parent / f"ckptd-{name}-{os.getpid()}"
    try:
        own.mkdir()
        (own / most).write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            own.rmdir()
        pytest.skip(f"no control group of our own here: {error}")
    try:
        yield own
    finally:
        wait_until(
            lambda: not (own / "cgroup.procs").read_text(), "the control group to be empty"
        )
        own.rmdir()


JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@pytest.mark.skipif(sanitized(), reason="a sanitized daemon's shadow memory is most of what it has")
def test_what_fits_each_daemon_alone_and_not_all_of_them_is_refused_and_kills_nobody(tmp_path):
    with memory_group(320 * MIB) as own:
        group = Group(tmp_path, 2, "--memory-budget", "1GiB", wrapper=("sh", "-c", JOIN, str(own)))
        try:
            group.wait_ready()
            pids = [group.pid(rank) for rank in range(2)]
            with ckptd.connect(group.address(0)) as client:
                with pytest.raises(ckptd.ResourceExhausted) as caught:
                    client.load(sparse(tmp_path / "large.safetensors", 200 * MIB), layout="replicate:2")
                assert caught.value.reason == "NO_MEMORY"
                client.load(sparse(tmp_path / "small.safetensors", 100 * MIB), layout="replicate:2")
            assert [group.pid(rank) for rank in range(2)] == pids
        finally:
            group.end()


@pytest.mark.skipif(sanitized(), reason="a sanitized daemon's shadow memory is most of what it has")
def test_two_jobs_of_one_control_group_do_not_kill_each_other(tmp_path):
    """Each fits alone."""
    path = sparse(tmp_path / "m.safetensors", 200 * MIB)
    with memory_group(320 * MIB, "jobs") as own, contextlib.ExitStack() as stack:
        options = ("--memory-budget", "1GiB", "--arena", "0")
        jobs = [stack.enter_context(Daemon(tmp_path, *options, job=name, wrapper=("sh", "-c", JOIN, own)))
                for name in ("one", "other")]
        pids = [job.pid(0) for job in jobs]
        for _ in range(3):
            together = threading.Barrier(2)
            loads = [Loading(job, 0, path, "replicate:1", together=together) for job in jobs]
            for one in loads:
                one.join(SOON)
            refused = [one.result for one in loads if isinstance(one.result, ckptd.Error)]
            assert [error.reason for error in refused] == ["NO_MEMORY"], [one.result for one in loads]
            assert [job.pid(0) for job in jobs] == pids
            for job in jobs:
                unload_everywhere(job)
                job.ctl("trim")


@pytest.mark.skipif(sanitized(), reason="a sanitized daemon's shadow memory is most of what it has")
def test_memory_that_only_the_leader_still_maps_is_free_for_a_load_that_needs_it(tmp_path):
    path = sparse(tmp_path / "model.safetensors", 100 * MIB)
    with memory_group(320 * MIB) as own:
        group = Group(tmp_path, 2, "--memory-budget", "1GiB", wrapper=("sh", "-c", JOIN, str(own)))
        try:
            group.wait_ready()
            with ckptd.connect(group.address(0)) as client:
                client.load(path, layout="replicate:2")
                unload_everywhere(group)
                # Memory that was sealed is of no use for it.
                client.load(path, layout="replicate:2", mode="exclusive")
        finally:
            group.end()


def test_a_control_groups_limit_refuses_a_load_and_kills_nobody(tmp_path):
    # A sanitized daemon's shadow memory counts, too.
    limit = (400 if sanitized() else 160) * MIB
    with memory_group(limit) as own:
        with Daemon(tmp_path, "--memory-budget", "1GiB", wrapper=("sh", "-c", JOIN, own)) as daemon:
            pid = daemon.pid(0)
            with ckptd.connect(daemon.address(0)) as client:
                error = refused(client, sparse(tmp_path / "large.safetensors", limit + 140 * MIB))
                assert "container" in error.message
                assert attaches(
                    client, load(client, sparse(tmp_path / "small.safetensors", 20 * MIB))
                )
            assert daemon.pid(0) == pid


def test_a_table_of_tensors_that_a_control_group_has_no_room_for_is_refused_and_kills_nobody(tmp_path):
    limit = (400 if sanitized() else 160) * MIB
    many = sparse(tmp_path / "many.safetensors", small=60 * limit // (160 * 1024))  # a header of 2% of it
    with memory_group(limit, "table") as own:
        with Daemon(tmp_path, wrapper=("sh", "-c", JOIN, own)) as daemon:
            pid = daemon.pid(0)
            with ckptd.connect(daemon.address(0)) as client:
                assert "tables" in refused(client, many).message
                with pytest.raises(ckptd.ResourceExhausted):
                    client.inspect(many)
                assert attaches(client, load(client, sparse(tmp_path / "few.safetensors", 5 * MIB, small=100)))
            assert daemon.pid(0) == pid


TRAINER = """
import os, pathlib, sys
import ckptd
own, address, name = sys.argv[1:]
pathlib.Path(own, "cgroup.procs").write_text(str(os.getpid()))
with ckptd.connect(address) as client, client.acquire(name, mode="private") as shard:
    print("attached", flush=True)
    pages = shard.tensors["hole"].buffer[::4096]
    for step in sys.stdin:
        if step == "read\\n":
            any(pages)
        else:
            pages[:] = bytes([1]) * len(pages)
        print(step, end="", flush=True)
"""


def charged(control_group):
    """MiB of memory that are charged to it."""
    for name in ("memory.usage_in_bytes", "memory.current"):
        with contextlib.suppress(FileNotFoundError):
            return int((control_group / name).read_text()) // MIB
    raise AssertionError(f"{control_group} does not say what it uses")


def test_a_shard_is_charged_to_the_daemons_container_and_what_a_trainer_writes_to_its_own(tmp_path):
    """The table "Memory" of deploy/kubernetes/README.md."""
    path = sparse(tmp_path / "m.safetensors", 100 * MIB)
    with memory_group(1024 * MIB, "daemon") as daemons, memory_group(1024 * MIB, "trainer") as trainers:
        with Daemon(tmp_path, wrapper=("sh", "-c", JOIN, daemons)) as daemon:
            before = charged(daemons)
            with ckptd.connect(daemon.address(0)) as client:
                name = load(client, path, mode="private").name
            assert charged(daemons) - before >= 95
            own = {**client_environment(), "OMP_NUM_THREADS": "1"}
            with Program(TRAINER, trainers, daemon.address(0), name, environment=own, modules=("numpy",)) as trainer:
                assert trainer.hear() == "attached"
                attached = charged(trainers)
                trainer.ask("read")
                assert charged(trainers) - attached < 20
                trainer.ask("write")
                assert charged(trainers) - attached >= 95


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
                lambda: resources(pid)["memfds"] == before["memfds"], "its memfds to be closed"
            )
            assert attaches(client, load(client, sparse(tmp_path / "small.safetensors", 5 * MIB)))
        assert daemon.pid(0) == pid


def test_a_small_limit_of_file_sizes_refuses_a_load_that_needs_more(tmp_path):
    source = sparse(tmp_path / "large.safetensors", 5 * MIB)
    with Daemon(tmp_path, wrapper=("prlimit", f"--fsize={MIB}:{MIB}")) as daemon:
        pid = daemon.pid(0)
        with ckptd.connect(daemon.address(0)) as client:
            error = refused(client, source)
            assert "ulimit -f" in error.message
        assert daemon.pid(0) == pid


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
                    lambda: resources(pid)["fds"] <= before + 8, "the mute ones to be sent away"
                )
            # It waited for them without spinning.
            assert cpu_seconds(pid) - cpu < 0.3 * (time.monotonic() - began) + 0.2
        assert daemon.pid(0) == pid


def cuda_load(bench, path, rank=0):
    """What `ckptctl load` says: the checkpoint it loaded, or the error."""
    layout = ("--layout", f"replicate:{bench.group.ranks}")
    answer = bench.group.ctl("load", path, *layout, rank=rank)
    # Before an error come lines of progress.
    return json.loads(answer.stdout or answer.stderr.splitlines()[-1])


def assert_holds(bench, paths, others=0):
    """Those checkpoints and no others, and no memory but theirs and that of other programs."""
    rank_0 = bench.group.json("list")["checkpoints"]
    active = {c["source"] for c in rank_0 if c["state"] == "STATE_ACTIVE"}
    assert active == set(paths), rank_0

    def used():
        return sum(int(bench.info(rank)["used_bytes"]) for rank in range(bench.group.ranks))

    wait_until(lambda: bench.held() == used() + others, "nobody else to hold memory")


def test_a_gpu_that_others_have_filled_refuses_until_they_let_go(cuda, tmp_path):
    """Within the budget: what is free on the GPU is less."""
    bench = cuda(1, gpu_bytes=32 * MIB)
    kept = sparse(tmp_path / "kept.safetensors", 3 * MIB)
    large = sparse(tmp_path / "large.safetensors", 12 * MIB)
    assert cuda_load(bench, kept)["checkpoint"]["state"] == "STATE_ACTIVE"
    with Program(OCCUPIER, 20 * MIB, environment=bench.client_environment) as other:
        assert other.hear() == "0"
        error = cuda_load(bench, large)["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED" and error["reason"] == "NO_MEMORY"
        assert f"{8 * MIB} bytes are free on the GPU" in error["message"]
        # Nor is anything evicted: it could not have helped.
        assert_holds(bench, [kept], others=20 * MIB)
    assert cuda_load(bench, large)["checkpoint"]["state"] == "STATE_ACTIVE"
    assert_holds(bench, [kept, large])


def test_a_budget_that_has_no_room_for_whole_allocations_costs_no_resident_checkpoint(cuda, tmp_path):
    # The driver gives memory in steps of 2 MiB: of these, six do not fit, though the bytes would.
    bench = cuda(1, daemon=("--memory-budget", str(11 * MIB)))
    kept, large = sparse(tmp_path / "kept.safetensors", 3 * MIB), sparse(tmp_path / "large.safetensors", 10 * MIB)
    assert cuda_load(bench, kept)["checkpoint"]["state"] == "STATE_ACTIVE"
    assert cuda_load(bench, large)["error"]["reason"] == "NO_MEMORY"
    assert_holds(bench, [kept])


def test_what_must_stay_on_a_gpu_counts_in_whole_allocations_too(cuda, tmp_path):
    # Without the idle one there would be 8 MiB beside the pinned one's bytes, but not beside the
    # 4 MiB that it takes.
    bench = cuda(1, daemon=("--memory-budget", str(23 * MIB // 2)))
    pinned, idle, large = (
        sparse(tmp_path / f"{name}.safetensors", mebibytes * MIB)
        for name, mebibytes in [("pinned", 3), ("idle", 1), ("large", 7)]
    )
    bench.group.json("pin", cuda_load(bench, pinned)["checkpoint"]["name"])
    assert cuda_load(bench, idle)["checkpoint"]["state"] == "STATE_ACTIVE"
    assert cuda_load(bench, large)["error"]["reason"] == "NO_MEMORY"
    assert_holds(bench, [pinned, idle])


# Takes memory of a GPU, says what the driver said, and keeps it until its end.
OCCUPIER = """
import sys
from cuda.bindings import driver as cu
cu.cuInit(0)
cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
print(int(cu.cuMemAlloc(int(sys.argv[1]))[0]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "ranks, fault, reason",
    [
        (1, "cuMemCreate nth=2 error=2", "NO_MEMORY"),
        (1, "cuMemMap nth=2 error=2", "NO_MEMORY"),
        (1, "cuMemSetAccess nth=2 error=1", "DEVICE_FAILED"),
        (2, "cuMemExportToShareableHandle nth=2 error=304", "DEVICE_FAILED"),
        # The second load's: of what lies behind the slab, then of its padding.
        (2, "cuMemsetD8Async nth=3 error=999", "DEVICE_FAILED"),
        (2, "cuMemsetD8Async nth=4 error=999", "DEVICE_FAILED"),
    ],
)
def test_a_driver_that_fails_in_the_middle_of_an_allocation_leaves_nothing_of_it(
    cuda, tmp_path, ranks, fault, reason
):
    bench = cuda(ranks, f"{fault} role=daemon")
    paths = [sparse(tmp_path / f"{i}.safetensors", (3 + i) * MIB) for i in range(3)]
    kept = cuda_load(bench, paths[0])["checkpoint"]
    for rank in range(ranks):
        bench.group.json("pin", kept["name"], rank=rank)  # else it would make room
    began = time.monotonic()
    error = cuda_load(bench, paths[1])["error"]
    assert error["reason"] == reason and time.monotonic() - began < SOON, error
    # The next load finds the daemons as they were.
    assert cuda_load(bench, paths[2])["checkpoint"]["state"] == "STATE_ACTIVE"
    assert_holds(bench, [paths[0], paths[2]])


def test_room_between_shards_that_stay_is_used_as_one(cuda, tmp_path):
    bench = cuda(1, gpu_bytes=32 * MIB)
    small = [sparse(tmp_path / f"{i}.safetensors", 3 * MIB) for i in range(5)]
    names = [cuda_load(bench, path)["checkpoint"]["name"] for path in small]
    for name in names[::2]:
        bench.group.unload(name)
    # Three times 4 MiB were given back, no two of them side by side.
    large = sparse(tmp_path / "large.safetensors", 15 * MIB)
    assert cuda_load(bench, large)["checkpoint"]["state"] == "STATE_ACTIVE"
    assert_holds(bench, [*small[1::2], large])
