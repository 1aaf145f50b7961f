"""Daemons that go on in the background, end when nobody uses them, and that trainers start."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading

import ckptd
import pytest
from faults import sparse
from group import BINARIES, KEY, PATIENCE, SOON, clean_environment, parsed, wait_until

# What a trainer does with its daemon, and what it finds.
TRAINER = """
import sys, ckptd
with ckptd.connect() as client:
    checkpoint = client.load(sys.argv[1], layout="fsdp:2")
    with client.acquire(checkpoint) as shard:
        print(checkpoint.name, checkpoint.resident, sum(len(view.buffer) for view in shard.tensors.values()))
"""


class Host:
    """The jobs of one run directory; those that are left end with it."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {**clean_environment(), "CKPTD_RUN_DIR": str(folder)}
        self.environment["PATH"] = f"{BINARIES}:{self.environment['PATH']}"

    def ckptd(self, *arguments):
        done = subprocess.run([BINARIES / "ckptd", *map(str, arguments)], env=self.environment, text=True,
                              capture_output=True, timeout=PATIENCE)
        return done.returncode, done.stderr

    def launch(self, job, *options):
        return self.ckptd("launch", "--job", job, "--detach", "--segment-bytes", "2MiB", *options)

    def runs(self, job):
        return (self.folder / job / "node-0.lock").exists()

    def client(self, job, rank=0):
        return ckptd.connect(self.folder / job / f"rank-{rank}.sock")

    @contextlib.contextmanager
    def in_use(self, job):
        """Touches the lock file of a daemon of that job, as the daemon does while a client has a lease."""
        ended = threading.Event()

        def touch():
            while not ended.wait(0.1):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self.folder / job / "rank-0.lock")

        thread = threading.Thread(target=touch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "run")
    yield host
    jobs = [folder.name for folder in host.folder.iterdir()] if host.folder.exists() else []
    for job in jobs:
        assert host.ckptd("stop", "--job", job) == (0, "")
        assert [file.name for file in (host.folder / job).iterdir() if not file.name.endswith((".log", ".old"))] == []


def test_they_go_on_when_launch_has_returned_and_end_when_they_are_told_to(host):
    code, said = host.launch("job", "--nproc", 2)
    assert code == 0 and "daemons of job job are ready, and go on in the background; `ckptd stop --job job` ends them" in said
    with host.client("job", 1) as client:
        assert client.list() == []
    code, said = host.launch("job", "--nproc", 2)
    assert code == 0 and "the daemons of job job run already" in said
    assert "rank 1" in (host.folder / "job" / "node-0.log").read_text()
    assert host.ckptd("stop", "--job", "job") == (0, "")
    with pytest.raises(ckptd.Unavailable):
        ckptd.connect(host.folder / "job" / "rank-0.sock", wait=0)


def test_launch_says_why_daemons_could_not_be_started(host):
    code, said = host.launch("job", "--load", host.folder / "none.safetensors", "--ready-when", "loaded")
    assert code == 1
    assert "starting rank 0 --ready-when loaded" in said and "SOURCE_NOT_FOUND" in said
    assert not host.runs("job")
    code, said = host.launch("job", "--linger", "15 parsecs")
    assert code == 2 and "--linger" in said


def test_they_end_when_nobody_has_used_them_for_a_while_and_not_while_somebody_does(host, tmp_path):
    path = sparse(tmp_path / "m.safetensors", 1 << 20)
    with contextlib.ExitStack() as stack:
        with host.in_use("used"):
            # Longer than a busy machine keeps its daemon from saying that it is used.
            assert host.launch("used", "--linger", "2s")[0] == 0
            client = stack.enter_context(host.client("used"))
            stack.enter_context(client.acquire(client.load(path, layout="replicate:1")))
        # As long as it takes others to end after a second, one after the other.
        for idle in ("first", "second", "third"):
            assert host.launch(idle, "--linger", "1s")[0] == 0
            wait_until(lambda: not host.runs(idle), f"the idle daemon of {idle} to end")
            assert "nobody has used the daemons for 1 s" in (host.folder / idle / "node-0.log").read_text()
        assert host.runs("used")
    wait_until(lambda: not host.runs("used"), "the daemon that is used no more to end")


def test_they_keep_no_file_of_the_caller_open(host, tmp_path):
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([BINARIES / "ckptd", "launch", "--job", "job", "--detach"], pass_fds=[lock.fileno()],
                              env={**host.environment, "CKPTD_KEEPER": ""}, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_keeper_that_is_left_keeps_no_pipe_of_its_launcher_open(host):
    # The pipes end with the launcher, although the keeper lives for a minute more.
    done = subprocess.run([BINARIES / "ckptd", "launch", "--job", "job", "--keep", "--", "true"], capture_output=True,
                          env={**host.environment, "CKPTD_KEEPER": ""}, text=True, timeout=SOON)
    assert done.returncode == 0, done.stderr
    assert (host.folder / "job" / "keeper.sock").exists()


def test_daemons_that_are_stopped_before_they_are_ready_have_not_been_started(host):
    environment = {**host.environment, "CKPTD_GROUP_KEY": KEY}
    launch = subprocess.Popen([BINARIES / "ckptd", "launch", "--job", "job", "--detach", "--nnodes", "2",
                               "--node-rank", "1", "--rendezvous", "127.0.0.1:9"], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((host.folder / "job" / "rank-1.sock").exists, "a daemon that waits for the other node")
    assert host.ckptd("stop", "--job", "job", "--node-rank", 1) == (0, "")
    _, said = launch.communicate(timeout=PATIENCE)
    assert launch.returncode == 1 and "launching job job: its daemons were told to stop before" in said


def test_a_launch_of_other_ranks_does_not_take_those_that_run_for_its_own(host):
    assert host.launch("job", "--nproc", 2)[0] == 0
    for ranks in (1, 3):
        code, said = host.launch("job", "--nproc", ranks)
        assert code == 2 and f"it runs already with 2 daemons on this node, not {ranks}; end it with" in said


def test_of_several_that_fail_at_once_each_says_why(host):
    command = [BINARIES / "ckptd", "launch", "--job", "job", "--detach", "--slab-dir", host.folder / "none"]
    launches = [subprocess.Popen(command, env=host.environment, text=True, stderr=subprocess.PIPE) for _ in range(8)]
    said = [launch.communicate(timeout=PATIENCE)[1] for launch in launches]
    assert ["checking --slab-dir" in one for one in said] == [True] * len(launches), said


@pytest.mark.parametrize("name, value, why", [
    ("LOCAL_WORLD_SIZE", 0, "launching 0 daemons: a node has 1 to 1024"),
    ("LOCAL_WORLD_SIZE", 2_000_000, "launching 2000000 daemons: a node has 1 to 1024"),
    ("GROUP_WORLD_SIZE", 65_537, "launching on 65537 nodes: a job has 1 to 65536"),
])
def test_sizes_of_the_environment_are_bounded_as_those_of_flags_are(host, name, value, why):
    host.environment[name] = str(value)
    code, said = host.launch("job")
    assert code == 2 and why in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make PID namespaces")
def test_stop_ends_no_process_of_another_container_that_has_the_launchers_number(host):
    assert host.launch("job")[0] == 0
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", BINARIES / "ckptd", "stop", "--job", "job"],
                          env=host.environment, text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 1 and "its launcher runs in another PID namespace" in done.stderr
    assert host.runs("job")


def run_trainers(host, path, **more):
    """What both ranks of a job print."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    trainers = [
        subprocess.Popen([sys.executable, "-c", TRAINER, path], text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE,
                         env={**host.environment, **world, "RANK": str(rank), "LOCAL_RANK": str(rank), **more})
        for rank in range(2)
    ]
    said = [trainer.communicate(timeout=PATIENCE) for trainer in trainers]
    return [(trainer.returncode, *texts) for trainer, texts in zip(trainers, said)]


def test_the_first_trainers_of_a_host_start_them_and_the_next_find_the_weights(host, tmp_path):
    path = sparse(tmp_path / "m.safetensors", 1 << 20)
    first = run_trainers(host, path, CKPTD_AUTO="1")
    assert [code for code, _, _ in first] == [0, 0], first
    (name, _, size), *_ = found = [said.split() for _, said, _ in first]
    # The second one finds what the first has loaded for both.
    assert "False" in [resident for _, resident, _ in found] and int(size) >= 1 << 19
    again = run_trainers(host, path, CKPTD_AUTO="1")
    assert [(code, *said.split()) for code, said, _ in again] == [(0, name, "True", size)] * 2
    info = parsed(subprocess.run([BINARIES / "ckptctl", "info", "--output", "json"], env=host.environment, text=True,
                                 capture_output=True, check=True).stdout)
    assert info["world_size"] == 2


@pytest.mark.parametrize("variables, why", [
    ({}, "start the job's daemons with `ckptd launch"),
    ({"CKPTD_AUTO": "1", "CKPTD_MEMORY_BUDGET": "many"}, "CKPTD_AUTO is set): "),
    ({"CKPTD_AUTO": "1", "CKPTD_ADDRESS": "/nowhere/rank-{rank}.sock"}, "from CKPTD_ADDRESS"),
])
def test_where_they_are_not_started_the_error_says_why(host, variables, why):
    environment = {**host.environment, "RANK": "0", "WORLD_SIZE": "1", **variables}
    code = "import ckptd\ntry: ckptd.connect(wait=0)\nexcept ckptd.Unavailable as error: print(error.reason, error)"
    said = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)
    assert said.stdout.startswith("DAEMON_UNREACHABLE") and why in said.stdout, said
    assert not os.path.exists(host.folder / "default" / "node-0.lock")
