"""`ckptctl wait` before, while and after daemons start, and which daemons ckptctl means on a host without rank 0."""

import contextlib
import json
import signal
import subprocess

import ckptd
import pytest
from faults import sparse
from group import BINARIES, KEY, PATIENCE, SOON, Daemon, Group, clean_environment, wait_until
from ports import free_port


def command(run_dir, *arguments, job="job"):
    return ([str(BINARIES / "ckptctl"), *map(str, arguments)],
            {**clean_environment(), "CKPTD_RUN_DIR": str(run_dir), "CKPTD_JOB": job})


def ctl(run_dir, *arguments):
    words, environment = command(run_dir, *arguments)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@contextlib.contextmanager
def waiting(run_dir, *arguments):
    """`ckptctl wait`, once it has said that it waits."""
    words, environment = command(run_dir, "wait", "--timeout", f"{PATIENCE}s", *arguments)
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        try:
            yield process, said
        finally:
            process.kill()


def test_an_init_container_may_wait_before_any_daemon_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    with waiting(folder) as (process, said):
        assert said == "no daemon answers yet\n"
        with Group(folder, 2):
            out, error = process.communicate(timeout=SOON)
            assert process.returncode == 0 and out.startswith("the group of 2 is complete ("), error


def test_it_waits_for_what_the_daemons_load_at_the_start_by_its_path(tmp_path_factory, tmp_path):
    folder, path = tmp_path_factory.mktemp("g"), sparse(tmp_path / "m.safetensors")
    with waiting(folder, "--for", f"active={path}", "--output", "json") as (process, _):
        with Group(folder, 2, "--load", path) as group:
            out, error = process.communicate(timeout=SOON)
            assert process.returncode == 0, error
            found = json.loads(out)["checkpoint"]
            assert found["state"] == "STATE_ACTIVE" and found["source"] == path
            with ckptd.connect(group.address(1)) as client:
                client.acquire(client.get(found["name"])).close()
            assert ctl(folder, "wait", "--for", f"active={found['name']}").returncode == 0


def test_a_load_at_the_start_that_fails_ends_it_with_the_reason(tmp_path_factory, tmp_path):
    folder, path = tmp_path_factory.mktemp("g"), sparse(tmp_path / "m.safetensors", 64 << 20)
    with waiting(folder, "--for", f"active={path}", "--output", "json") as (process, _):
        with Group(folder, 1, "--load", path, "--memory-budget", "16MiB"):
            _, error = process.communicate(timeout=SOON)
            assert process.returncode == 1
            assert json.loads(error.splitlines()[-1])["error"]["reason"] == "NO_MEMORY"


def test_waiting_ends_at_its_time_with_4_and_without_a_daemon_with_3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    nobody = ctl(folder, "wait", "--timeout", "300ms")
    assert nobody.returncode == 3 and "not within 300 ms: connecting to the daemon" in nobody.stderr
    daemon = Daemon(folder, ranks=2)
    try:
        wait_until(lambda: daemon.info(0), "the daemon")
        missing = ctl(folder, "wait", "--timeout", "2s")
        assert missing.returncode == 4
        assert "the group is not complete: waiting for rank 1" in missing.stderr
    finally:
        daemon.stop()


def test_ctrl_c_ends_it_with_130(tmp_path_factory):
    with waiting(tmp_path_factory.mktemp("g")) as (process, _):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SOON)
        assert process.returncode == 130


@pytest.fixture
def second_pod(tmp_path_factory):
    """The daemons of the second of two pods, ranks 2 and 3: those of the first do not run."""
    folder = tmp_path_factory.mktemp("g")
    group = Group(folder, 2, "--nnodes", "2", "--node-rank", "1", "--rendezvous", f"127.0.0.1:{free_port()}",
                  environment={"CKPTD_GROUP_KEY": KEY})
    try:
        wait_until(lambda: group.info(2) and group.info(3), "the daemons of the pod")
        yield group
    finally:
        group.end()


def test_in_a_pod_without_rank_0_the_lowest_rank_there_is_meant_and_that_is_said(second_pod):
    said = ctl(second_pod.run_dir, "info", "--output", "json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["rank"] == 2
    assert said.stderr == "ckptctl: rank 0 is on another host; this is about rank 2\n"
    missing = ctl(second_pod.run_dir, "wait", "--timeout", "2s")
    assert missing.returncode == 4 and missing.stderr.count("this is about rank 2") == 1


def test_all_ranks_are_those_of_the_pod_though_no_other_has_joined(second_pod):
    drained = ctl(second_pod.run_dir, "drain", "--all-ranks", "--output", "json")
    assert drained.returncode == 0, drained.stderr
    assert drained.stdout.count('"rank"') == 2
    assert "2 of 4 ranks have no socket on this host" in drained.stderr


def test_all_ranks_of_the_pod_of_rank_0_are_its_own_before_another_pod_has_joined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g")
    group = Group(folder, 2, "--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}",
                  environment={"CKPTD_GROUP_KEY": KEY})
    try:
        wait_until(lambda: group.info(0) and group.info(1), "the daemons of the pod")
        listed = ctl(folder, "list", "--all-ranks")
        assert listed.returncode == 0, listed.stderr
        (folder / "job" / "rank-1.sock").unlink()
        (folder / "job" / "rank-1.admin.sock").unlink()
        assert "rank 1: " in ctl(folder, "list", "--all-ranks", "--timeout", "2s").stderr
    finally:
        group.end()
