"""The probes and the hook of the manifests, run against daemons."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

import manifests

BINARIES = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", manifests.ROOT / "build")).resolve() / "bin"
# A busy machine starts a daemon in seconds.
SOON = 60
KEY = "0123456789abcdef" * 4


@pytest.fixture(scope="module", autouse=True)
def binaries():
    if not (BINARIES / "ckptd").exists():
        (pytest.fail if "CKPTD_BUILD_DIR" in os.environ else pytest.skip)(
            f"there is no {BINARIES}/ckptd; run deploy/setup --build first")


class Pod:
    """The daemons of one pod of two, and what kubelet would run beside them."""

    def __init__(self, folder, number, port):
        container = self._container()
        self.run_dir = pathlib.Path(folder) / f"pod-{number}"
        self.run_dir.mkdir()
        said = {key: value for key, value in manifests.environment(container).items() if isinstance(value, str)}
        self.environment = {
            **said, "PATH": f"{BINARIES}:{os.environ['PATH']}", "CKPTD_RUN_DIR": str(self.run_dir),
            "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": str(number), "CKPTD_MEMORY": "host",
            "CKPTD_ARENA": "0", "CKPTD_HOST_ID": f"pod-{number}", "CKPTD_RENDEZVOUS": f"127.0.0.1:{port}",
            "CKPTD_GROUP_KEY_FILE": str(pathlib.Path(folder) / "key")}
        self.arguments = [*container["command"], *container["args"]]
        self.probes = {key.removesuffix("Probe"): value["exec"]["command"]
                       for key, value in container.items() if key.endswith("Probe")}
        self.hook = container["lifecycle"]["preStop"]["exec"]["command"]
        self.launcher = None

    @staticmethod
    def _container():
        template, = manifests.all_pod_templates(manifests.chart(manifests.values_of("job-4-nodes")))
        return manifests.daemon_container(template)

    def start(self):
        self.launcher = subprocess.Popen(self.arguments, env=self.environment, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)

    def stop(self):
        if self.launcher is not None:
            self.launcher.terminate()
            self.launcher.wait(SOON)

    def passes(self, probe):
        return subprocess.run(self.probes[probe], env=self.environment, capture_output=True,
                              timeout=SOON).returncode == 0

    def soon(self, probe, wanted=True):
        end = time.monotonic() + SOON
        while self.passes(probe) != wanted:
            assert time.monotonic() < end, f"{probe} is not {wanted} after {SOON} s"
            time.sleep(0.05)

    def process_of(self, rank):
        socket = self.run_dir / self.environment["CKPTD_JOB"] / f"rank-{rank}.sock"
        said = subprocess.run(["ckptctl", "--address", str(socket), "info"], env=self.environment, check=True,
                              capture_output=True, text=True, timeout=SOON).stdout
        return next(int(line.split()[1]) for line in said.splitlines() if line.startswith("pid:"))


@pytest.fixture
def pods():
    """Two pods whose daemons do not run yet."""
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Unix socket paths are short: tmp_path would not fit.
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder, contextlib.ExitStack() as stack:
        (pathlib.Path(folder) / "key").write_text(KEY, encoding="utf-8")
        made = [Pod(folder, number, port) for number in range(2)]
        for pod in made:
            stack.callback(pod.stop)
        yield made


def test_no_probe_passes_before_the_daemons_start(pods):
    assert not any(pods[0].passes(probe) for probe in pods[0].probes)


@pytest.mark.parametrize("number", [0, 1])
def test_the_startup_probe_passes_although_other_pods_are_missing(pods, number):
    pods[number].start()
    pods[number].soon("startup")
    assert pods[number].passes("liveness") and not pods[number].passes("readiness")


def test_pods_are_ready_once_the_group_is_complete_and_no_longer_when_drained(pods):
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.soon("readiness")
    done = subprocess.run(pods[1].hook, env=pods[1].environment, capture_output=True, text=True, timeout=SOON)
    assert done.returncode == 0, done.stderr
    assert not pods[1].passes("readiness") and pods[1].passes("liveness")


def test_the_liveness_probe_fails_while_a_daemon_hangs_and_passes_when_it_goes_on(pods):
    pods[0].start()
    pods[0].soon("startup")
    process = pods[0].process_of(1)
    os.kill(process, signal.SIGSTOP)
    try:
        assert not pods[0].passes("liveness")
    finally:
        os.kill(process, signal.SIGCONT)
    pods[0].soon("liveness")


def test_a_killed_daemon_comes_back_without_kubelet(pods):
    pods[0].start()
    pods[0].soon("startup")
    os.kill(pods[0].process_of(1), signal.SIGKILL)
    pods[0].soon("liveness", wanted=False)
    pods[0].soon("liveness")


def test_a_daemon_that_is_missing_is_not_overlooked(pods):
    pods[0].start()
    pods[0].soon("startup")
    sockets = pods[0].run_dir / pods[0].environment["CKPTD_JOB"]
    shutil.move(sockets / "rank-1.sock", sockets / "moved")
    assert not pods[0].passes("startup")
    shutil.move(sockets / "moved", sockets / "rank-1.sock")
