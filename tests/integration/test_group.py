"""Daemons that die and come back, and trainers that do."""

import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ckptd
import pytest
import torch
from group import BINARIES, KEY, PATIENCE, SOON, Group, clean_environment, save, wait_until
from holds import HEARTBEATS
from ports import free_port
from process_state import runs


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "m.safetensors", {f"w{i}": torch.randn(33, 17) for i in range(5)})


def map_all(group, path, layout):
    """name -> bytes of each rank, through a fresh client."""
    result = []
    for rank in range(group.ranks):
        with ckptd.connect(group.address(rank)) as client:
            with client.acquire(client.load(path, layout=layout)) as shard:
                result.append({name: bytes(view.buffer) for name, view in shard.tensors.items()})
    return result


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_daemon_is_restarted_joins_again_and_the_next_load_works(start, path, victim):
    group = start(3)
    before = map_all(group, path, "fsdp:3")
    began = time.monotonic()
    group.kill(victim)
    assert time.monotonic() - began < SOON
    assert map_all(group, path, "fsdp:3") == before


def test_only_the_rank_that_lost_its_shard_is_loaded_again(start, path):
    group = start(3)
    map_all(group, path, "fsdp:3")
    name = group.json("list")["checkpoints"][0]["name"]
    group.kill(2)
    with ckptd.connect(group.address(2)) as client:
        again = client.load(path, layout="fsdp:3")
    assert again.name == name and not again.resident
    progress = group.json("get", name, rank=2)["progress"]
    # Its third of the rows, nothing else.
    assert int(progress["read"]["storage_bytes"]) == 5 * 11 * 17 * 4


def shared_memory(pid):
    """Inodes of the memory that a daemon has mapped, its own and others'."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            return {line.split()[4] for line in maps if "memfd" in line and line.split()[1] == "rw-s"}
    except PermissionError:
        pytest.skip("the mappings of a daemon are shown to root alone")


def test_a_member_that_reads_lets_go_of_the_memory_of_a_rank_that_left(start, path):
    group = start(3, "--reader", "all")
    map_all(group, path, "replicate:3")
    reader = group.pid(1)
    everybodys = [shared_memory(group.pid(rank)) for rank in range(3)]
    # Each of them reads for all, and maps the memory of all.
    assert everybodys[0] == everybodys[1] == everybodys[2] and len(everybodys[0]) == 3
    os.kill(group.pid(2), signal.SIGKILL)
    wait_until(lambda: len(shared_memory(reader)) == 2, "rank 1 to let go of the memory of rank 2")
    group.wait_ready()
    assert group.pid(1) == reader
    map_all(group, path, "replicate:3")


def test_a_reader_that_was_restarted_maps_the_memory_of_its_peers_again(start, path):
    group = start(3, "--reader", "all")
    map_all(group, path, "replicate:3")  # which seals it
    for rank in range(3):
        group.unload(group.json("list", rank=rank)["checkpoints"][0]["name"], rank)
    os.kill(group.pid(1), signal.SIGKILL)
    group.wait_ready()
    map_all(group, path, "replicate:3")
    loaded = group.json("list", rank=0)["checkpoints"][0]
    assert group.json("get", loaded["name"], rank=0)["progress"].get("streamed_ranks", []) == []


def test_a_trainer_keeps_its_memory_when_every_daemon_dies(start, path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        shard = client.acquire(client.load(path, layout="fsdp:1"), "private")
    expected = {name: bytes(view.buffer) for name, view in shard.tensors.items()}
    group.kill(0)
    assert {name: bytes(view.buffer) for name, view in shard.tensors.items()} == expected
    shard.close()


def test_the_lease_of_a_killed_client_ends_at_once(start, path):
    group = start(1)
    program = ("import sys, time, ckptd\n"
               "client = ckptd.connect(sys.argv[1])\n"
               "shard = client.acquire(client.load(sys.argv[2], layout='fsdp:1'))\n"
               "print('held', flush=True)\n"
               "time.sleep(600)\n")
    env = {**clean_environment(), "PYTHONPATH": os.pathsep.join(p for p in sys.path if "client/python" in p)}
    client = subprocess.Popen([sys.executable, "-c", program, group.address(0), path], env=env,
                              stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "held\n"
        leases = group.json("leases")["leases"]
        assert [lease["pid"] for lease in leases] == [client.pid]
        client.kill()
        wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
    finally:
        client.kill()
        client.wait()


def test_a_stopped_rank_is_named_to_all_long_before_their_deadline(start, tmp_path):
    group = start(3, *HEARTBEATS)
    source = save(tmp_path / "s.safetensors", {"w": torch.zeros(4096)})
    victim = group.pid(2)
    os.kill(victim, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with ckptd.connect(group.address(0)) as client:
            with pytest.raises(ckptd.Error) as caught:
                client.load(source, layout="fsdp:3", timeout=PATIENCE)
        assert time.monotonic() - began < SOON
        assert "2" in caught.value.message, caught.value.message
        assert caught.value.reason in ("RANK_LOST", "RANK_MISSING")
    finally:
        os.kill(victim, signal.SIGCONT)
    group.wait_ready()
    with ckptd.connect(group.address(1)) as client:
        assert client.load(source, layout="fsdp:3").name


def test_a_second_daemon_for_a_live_rank_is_refused(start):
    group = start(1)
    answer = subprocess.run([BINARIES / "ckptd", "run", "--rendezvous", "127.0.0.1:0"], env=group.environment,
                            capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2 and "rank-0" in answer.stderr, answer.stderr
    assert "if a job called job runs here already, give this one another name with --job" in answer.stderr
    assert group.ready()


def test_launch_ends_with_the_exit_code_of_its_command(tmp_path):
    group = Group(tmp_path, 2, command=["sh", "-c", "echo $CKPTD_ADDRESS; exit 7"])
    out, _ = group.process.communicate(timeout=60)
    assert group.process.returncode == 7
    assert out.strip() == f"unix://{tmp_path}/job/rank-{{rank}}.sock"
    assert list((tmp_path / "job").iterdir()) == []


def test_launch_reports_a_command_that_a_signal_ended(tmp_path):
    group = Group(tmp_path, 1, command=["sh", "-c", "kill -9 $$"])
    group.process.communicate(timeout=60)
    assert group.process.returncode == 128 + 9


@contextlib.contextmanager
def launched_beside_a_command(tmp_path, *options):
    """(a group whose command waits, what lets that end with 7)."""
    fifo = tmp_path / "fifo"
    begun = tmp_path / "begun"
    os.mkfifo(fifo)
    group = Group(tmp_path, 1, *options, command=["sh", "-c", f"touch {begun}; cat {fifo}; exit 7"])

    def let_it_end():
        assert group.process.poll() is None, group.log()
        os.close(os.open(fifo, os.O_WRONLY))
        return group.process.wait(60)

    with group:
        wait_until(begun.exists, "the command to begin")
        yield group, let_it_end


def test_a_command_outlives_a_daemon_that_is_given_up(tmp_path):
    with launched_beside_a_command(tmp_path, "--max-restarts", "0") as (group, let_it_end):
        os.kill(group.pid(0), signal.SIGKILL)
        wait_until(lambda: "keeping rank 0 running: restarted 0 times in a row" in group.log(), "launch to say so")
        group.wait_ready()  # it is tried again all the same
        assert let_it_end() == 7, group.log()


def test_a_command_outlives_a_daemon_that_cannot_be_started_again_for_a_while(tmp_path):
    with launched_beside_a_command(tmp_path) as (group, let_it_end):
        launch = group.process.pid
        files = resource.prlimit(launch, resource.RLIMIT_NOFILE)
        resource.prlimit(launch, resource.RLIMIT_NOFILE, (0, files[1]))
        os.kill(group.pid(0), signal.SIGKILL)
        wait_until(lambda: "rank 0 could not be started: making a pipe" in group.log(), "launch to say so")
        resource.prlimit(launch, resource.RLIMIT_NOFILE, files)
        group.wait_ready()
        assert let_it_end() == 7, group.log()


def test_launch_without_a_command_ends_with_a_daemon_that_is_given_up(tmp_path):
    with Group(tmp_path, 1, "--max-restarts", "0") as group:
        os.kill(group.pid(0), signal.SIGKILL)
        assert group.process.wait(60) == 1
        assert "keeping rank 0 running: restarted 0 times in a row" in group.log()


def test_of_several_launches_of_one_job_at_once_one_runs_and_the_others_say_so(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launch = [BINARIES / "ckptd", "launch", "--nproc", "2", "--run-dir", tmp_path, "--", "cat", fifo]
    launches = [subprocess.Popen(launch, env=clean_environment(), stderr=subprocess.PIPE, text=True) for _ in range(4)]

    def let_the_command_end():
        with contextlib.suppress(OSError):  # nobody reads it yet
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            return True

    try:
        wait_until(lambda: sum(one.poll() is None for one in launches) == 1, "all but one to end")
        ended = [one for one in launches if one.poll() is not None]
        assert [one.returncode for one in ended] == [2, 2, 2]
        for one in ended:
            assert "another `ckptd launch` keeps its daemons running" in one.stderr.read()
        wait_until(let_the_command_end, "the one that is left to start its command")
        (winner,) = [one for one in launches if one not in ended]
        assert winner.wait(60) == 0, winner.stderr.read()
    finally:
        for one in launches:
            if one.poll() is None:
                one.terminate()
            one.communicate(timeout=60)


@pytest.mark.parametrize("rounds", range(3))
def test_of_several_launches_of_one_node_of_a_job_at_once_one_runs(tmp_path, rounds):
    launch = [BINARIES / "ckptd", "launch", "--nnodes", "2", "--node-rank", "0", "--nproc", "2", "--run-dir", tmp_path,
              "--rendezvous", f"127.0.0.1:{free_port()}", "--peer-auth", "none"]
    launches = [subprocess.Popen(launch, env=clean_environment(), stderr=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        wait_until(lambda: sum(one.poll() is None for one in launches) == 1, "all but one to end")
        assert sorted(one.returncode for one in launches if one.poll() is not None) == [2, 2]
    finally:
        for one in launches:
            one.terminate()
            one.communicate(timeout=60)


def test_a_daemon_comes_back_when_its_program_was_replaced_meanwhile(start, tmp_path, path, monkeypatch):
    own = tmp_path / "bin"
    own.mkdir()
    shutil.copy(BINARIES / "ckptd", own / "ckptd")
    (own / "ckptctl").symlink_to(BINARIES / "ckptctl")
    monkeypatch.setattr("group.BINARIES", own)
    group = start(2)
    healthy = group.pid(0)
    (own / "new").write_text("#!/bin/sh\nexit 1\n")  # as of another version, which could not join
    (own / "new").chmod(0o755)
    os.rename(own / "new", own / "ckptd")
    group.kill(1)
    assert group.pid(0) == healthy
    name = pathlib.Path(f"/proc/{group.pid(1)}/comm").read_text()
    assert name == "ckptd\n"
    with ckptd.connect(group.address(0)) as client:
        assert client.load(path, layout="fsdp:2").state == "ACTIVE"


def test_a_command_that_does_not_end_is_named_and_killed_by_the_third_signal(tmp_path):
    group = Group(tmp_path, 1, command=["sh", "-c", "trap '' TERM INT; echo ready; while :; do sleep 0.1; done"])
    assert group.process.stdout.readline() == "ready\n"
    for count in (1, 2):
        group.process.send_signal(signal.SIGTERM)
        wait_until(lambda: group.log().count("to end by SIGTERM; signal 3 kills it") == count, "launch to say so")
    group.process.send_signal(signal.SIGTERM)
    group.process.communicate(timeout=60)
    assert group.process.returncode == 128 + signal.SIGKILL


def test_at_a_hangup_launch_ends_its_command_and_what_that_leaves_behind(tmp_path):
    # The worker is in a session of its own, as torchrun's are, and the command ends without it.
    worker = "setsid sh -c 'echo $$; exec sleep 1000' &"
    # Under nohup it is ignored, by what is started here as well.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        group = Group(tmp_path, 1, command=["sh", "-c", f"{worker} wait"])
    finally:
        signal.signal(signal.SIGHUP, before)
    pid = int(group.process.stdout.readline())
    group.process.send_signal(signal.SIGHUP)
    group.process.communicate(timeout=60)
    assert group.process.returncode == 128 + signal.SIGTERM
    assert not runs(pid)
    assert "waiting for the command" in group.log() and list((tmp_path / "job").iterdir()) == []


def test_launch_ends_where_its_run_directory_is_removed(tmp_path):
    with Group(tmp_path, 1) as group:
        shutil.rmtree(group.run_dir / group.job)
        assert group.process.wait(60) == 1
        assert "was removed or replaced, so nobody finds them any more; launch again" in group.log()


def test_a_command_outlives_its_run_directory_and_keeps_other_launches_out(tmp_path):
    with launched_beside_a_command(tmp_path) as (group, let_it_end):
        shutil.rmtree(group.run_dir / group.job)
        wait_until((group.run_dir / group.job / "node-0.lock").exists, "the lock to be taken again")
        other = subprocess.run([BINARIES / "ckptd", "launch"], env=group.environment, capture_output=True, text=True,
                               timeout=PATIENCE)
        assert other.returncode == 2 and "another `ckptd launch`" in other.stderr
        assert let_it_end() == 7 and group.log().count("was removed or replaced") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_processes_of_the_user_cannot_read_the_key_of_launch():
    look = "cat /proc/$PPID/environ; echo read: $?"
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        os.chown(folder, 65534, 65534)
        environment = {**clean_environment(), "CKPTD_RUN_DIR": folder, "CKPTD_GROUP_KEY": KEY}
        for parent, readable in ((["sh", "-c", f"sh -c '{look}'; true"], True),
                                 ([BINARIES / "ckptd", "launch", "--", "sh", "-c", look], False)):
            done = subprocess.run(parent, env=environment, user=65534, group=65534, extra_groups=[], capture_output=True,
                                  text=True, timeout=PATIENCE)
            assert (KEY in done.stdout, "read: 0" in done.stdout) == (readable, readable), done


def test_a_ready_descriptor_that_is_not_open_is_refused(tmp_path):
    answer = subprocess.run([BINARIES / "ckptd", "run", "--ready-fd", "8", "--rendezvous", "127.0.0.1:0"],
                            env={**clean_environment(), "CKPTD_RUN_DIR": str(tmp_path)}, capture_output=True,
                            text=True, timeout=60)
    assert answer.returncode == 2 and "--ready-fd 8: no such descriptor is open" in answer.stderr


def test_a_daemon_that_stops_leaves_the_sockets_of_its_successor_alone(tmp_path):
    with Group(tmp_path, 1) as first:
        shutil.rmtree(first.run_dir / first.job)
        with Group(tmp_path, 1) as second:
            assert first.process.wait(60) == 1
            assert second.ready()
            with ckptd.connect(second.address(0)) as client:
                assert client.list() == []


def test_killing_launch_takes_its_daemons_down(tmp_path):
    with Group(tmp_path, 2) as group:
        pids = [group.pid(rank) for rank in range(2)]
        group.process.kill()
        group.process.wait()
        wait_until(lambda: not any(map(runs, pids)), "the daemons to end")


def test_launch_says_which_daemon_did_not_stop_and_fails(tmp_path):
    group = Group(tmp_path, 2)
    group.wait_ready()
    victim = group.pid(1)
    os.kill(victim, signal.SIGSTOP)
    group.process.send_signal(signal.SIGTERM)

    def told():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{victim}/status") as status:
            pending = next(line for line in status if line.startswith("ShdPnd:")).split()[1]
            return int(pending, 16) >> (signal.SIGTERM - 1) & 1
        return True  # launch was out of patience first, and did what comes next

    wait_until(told, "rank 1 to be told to stop")
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    assert group.process.wait(PATIENCE) == 1
    assert "rank 1 was told to stop and ended with signal 9" in group.log()
