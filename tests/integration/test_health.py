"""Health by name, on the sockets and on the port for probes, and the fixed ports of daemons."""

import os
import signal
import subprocess
import tempfile

import ckptd
import grpc
import hanging
import pytest
from faults import Loading, sparse
from group import BINARIES, PATIENCE, Daemon, Group, clean_environment, wait_until
from ports import free_port
from probe import check, watch

SERVING, NOT_SERVING = "SERVING", "NOT_SERVING"
CHECKPOINT = "ckptd.v1.Checkpoint/"


@pytest.fixture
def probed(tmp_path_factory):
    """Starts a group under launch with a port for probes: (group, address of that port)."""
    groups = []

    def start(ranks, *options):
        port = free_port()
        groups.append(Group(tmp_path_factory.mktemp("g"), ranks, "--health-port", port, *options))
        return groups[-1], f"127.0.0.1:{port}"

    yield start
    for group in groups:
        group.stop()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    port = free_port()
    with Group(tmp_path_factory.mktemp("g"), 2, "--health-port", port) as group:
        yield group, f"127.0.0.1:{port}"


def test_the_port_of_launch_answers_for_all_its_daemons_by_name(two, tmp_path):
    group, port = two
    path = sparse(tmp_path / "m.safetensors")
    assert [check(port, name) for name in ("", "liveness", "ckptd.v1.Group")] == [SERVING] * 3
    assert check(port, CHECKPOINT + path) == "NOT_FOUND"
    with ckptd.connect(group.address(1)) as client:
        name = client.load(path, layout="replicate:2").name
    found = [check(port, CHECKPOINT + text) for text in (path, name, name.removeprefix("checkpoints/"))]
    assert found == [SERVING] * 3
    assert check(port, CHECKPOINT + "nosuch") == check(port, "nosuch") == "NOT_FOUND"


def test_the_sockets_of_each_daemon_answer_the_same_names(two):
    group, _ = two
    for rank in range(2):
        for end in (".sock", ".admin.sock"):
            socket = f"unix:{group.run_dir}/{group.job}/rank-{rank}{end}"
            assert [check(socket, name) for name in ("", "liveness", "ckptd.v1.Group")] == [SERVING] * 3
            assert check(socket, "nosuch") == "NOT_FOUND"


def test_the_port_serves_health_and_nothing_else(two):
    _, port = two
    methods = ["/ckptd.v1.CheckpointService/ListCheckpoints", "/ckptd.v1.AdminService/GetDaemonInfo",
               "/ckptd.v1.GroupService/Heartbeat", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
    with grpc.insecure_channel(port) as channel:
        for method in methods:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(method)(b"", timeout=60)
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED, method


def test_a_watch_hears_when_a_checkpoint_comes(two, tmp_path):
    group, port = two
    path = sparse(tmp_path / "m.safetensors")
    with grpc.insecure_channel(port) as channel:
        statuses = watch(channel, CHECKPOINT + path)
        assert next(statuses) == "SERVICE_UNKNOWN"
        with ckptd.connect(group.address(0)) as client:
            client.load(path, layout="replicate:2")
        assert next(status for status in statuses if status != NOT_SERVING) == SERVING


def test_one_daemon_that_stands_still_is_not_overlooked_and_forgiven_when_it_goes_on(two):
    group, port = two
    process = group.pid(1)
    os.kill(process, signal.SIGSTOP)
    try:
        assert check(port, "liveness") == NOT_SERVING
    finally:
        os.kill(process, signal.SIGCONT)
    wait_until(lambda: check(port, "liveness") == SERVING, "the daemon to be seen alive")
    wait_until(group.ready, "the group to be complete again")


def test_a_daemon_that_comes_back_is_found_again(two):
    group, port = two
    group.kill(1)
    wait_until(lambda: check(port, "ckptd.v1.Group") == SERVING, "the new daemon to be seen")


def test_an_incomplete_group_is_alive_and_not_ready(tmp_path):
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        daemon = Daemon(folder, "--health-port", f"127.0.0.1:{port}", ranks=2)
        try:
            wait_until(lambda: check(f"127.0.0.1:{port}", "liveness") == SERVING, "a daemon that serves")
            assert check(f"127.0.0.1:{port}", "ckptd.v1.Group") == NOT_SERVING
        finally:
            daemon.stop()


with tempfile.TemporaryDirectory() as scratch:
    reason = hanging.why_not(scratch)


@pytest.mark.skipif(reason is not None, reason=str(reason))
def test_a_daemon_whose_load_hangs_in_storage_is_alive(two, tmp_path):
    group, port = two
    path = sparse(tmp_path / "h.safetensors")
    with hanging.HangingFile(path) as file:
        Loading(group, 0, path, "fsdp:2")
        file.await_opener()
        assert check(port, "liveness") == check(port, "ckptd.v1.Group") == SERVING
        assert check(port, CHECKPOINT + path) == NOT_SERVING


def test_a_drain_ends_all_but_liveness(probed):
    group, port = probed(2)
    group.wait_ready()
    assert group.ctl("drain", rank=1).returncode == 0
    assert [check(port, name) for name in ("", "ckptd.v1.Group")] == [NOT_SERVING] * 2
    assert check(port, "liveness") == SERVING


def run(*arguments):
    return subprocess.run([BINARIES / "ckptd", *map(str, arguments)], env=clean_environment(), capture_output=True, text=True,
                          timeout=PATIENCE)


@pytest.mark.parametrize("verb", [["launch"], ["run", "--rendezvous", "127.0.0.1:0", "--peer-auth", "none"]], ids=["launch", "run"])
def test_a_port_that_is_taken_is_named(two, tmp_path, verb):
    _, port = two
    done = run(*verb, "--run-dir", tmp_path, "--health-port", port)
    assert done.returncode == 2 and f"listening on {port}: another daemon has it" in done.stderr, done.stderr
    assert "--health-port" in done.stderr


def test_daemons_listen_on_the_ports_that_a_firewall_was_told(tmp_path_factory):
    first = 20000 + os.getpid() % 900 * 10  # below those that the system gives to others
    with Group(tmp_path_factory.mktemp("g"), 3, "--peer-port", first) as group:
        ports = [int(group.info(rank)["peer_address"].rsplit(":", 1)[1]) for rank in range(3)]
        assert ports[1:] == [first + 1, first + 2]
        assert ports[0] == int(group.info(0)["config"]["rendezvous"].rsplit(":", 1)[1])
