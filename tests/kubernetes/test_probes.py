"""The probes, the hook and the init container of the manifests, tried on daemons as kubelet would."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import grpc
import pytest

import manifests
from ports import free_port

BINARIES = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", manifests.ROOT / "build")).resolve() / "bin"
# A busy machine starts a daemon in seconds.
SOON = 60
KEY = "9d0c1be75f3a4682d19b7ec0a35f826411f0a7c95e2d38b46c80f7139ae5b2d4"


@pytest.fixture(scope="module", autouse=True)
def binaries():
    if not (BINARIES / "ckptd").exists():
        (pytest.fail if "CKPTD_BUILD_DIR" in os.environ else pytest.skip)(
            f"there is no {BINARIES}/ckptd; run deploy/setup --build first")


SERVING = b"\x08\x01"


class Pod:
    """The daemons of one pod of two, and what kubelet would do to them."""

    def __init__(self, folder, number, rendezvous):
        container, self.waits = self._containers()
        self.run_dir = pathlib.Path(folder) / f"pod-{number}"
        self.run_dir.mkdir()
        self.port = free_port()
        said = {key: value for key, value in manifests.environment(container).items() if isinstance(value, str)}
        # These come from the pod and from a Job's controller. Pods have ports of their own, and these two share one host.
        own = {"PATH": f"{BINARIES}:{os.environ['PATH']}", "CKPTD_RUN_DIR": str(self.run_dir), "PET_NPROC_PER_NODE": "2",
               "PET_NNODES": "2", "JOB_COMPLETION_INDEX": str(number), "CKPTD_MEMORY": "host", "CKPTD_ARENA": "0",
               "CKPTD_HOST_ID": f"pod-{number}", "CKPTD_RENDEZVOUS": f"127.0.0.1:{rendezvous}", "CKPTD_PEER_PORT": "0",
               "CKPTD_HEALTH_PORT": str(self.port), "CKPTD_GROUP_KEY_FILE": str(pathlib.Path(folder) / "key")}
        self.environment = {**said, **own}
        self.arguments = [*container["command"], *container["args"]]
        self.services = {key.removesuffix("Probe"): value["grpc"]["service"]
                         for key, value in container.items() if key.endswith("Probe")}
        self.hook = container["lifecycle"]["preStop"]["exec"]["command"]
        self.launcher = None

    @staticmethod
    def _containers():
        values = {"nodes": 2, "trainer": {"waitFor": "group"}}
        template, = manifests.all_pod_templates(manifests.documents(manifests.render(values)))
        wait = template["spec"]["initContainers"][1]
        return manifests.daemon_container(template), [*wait["command"], *wait["args"]]

    def start(self):
        self.launcher = subprocess.Popen(self.arguments, env=self.environment, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)

    def stop(self):
        if self.launcher is not None:
            self.launcher.terminate()
            self.launcher.wait(SOON)

    def run(self, command):
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SOON)

    def passes(self, probe):
        service = self.services[probe].encode()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                return check(b"\x0a" + bytes([len(service)]) + service, timeout=SOON) == SERVING
        except grpc.RpcError:
            return False

    def soon(self, probe):
        end = time.monotonic() + SOON
        while not self.passes(probe):
            assert time.monotonic() < end, f"waited {SOON} s in vain for the {probe} probe"
            time.sleep(0.05)

    def process_of(self, rank):
        at = self.run_dir / self.environment["CKPTD_JOB"] / f"rank-{rank}.sock"
        said = self.run(["ckptctl", "--address", str(at), "info"]).stdout
        return next(int(line.split()[1]) for line in said.splitlines() if line.startswith("pid:"))


@pytest.fixture
def pods():
    """Two pods whose daemons do not run yet."""
    port = free_port()
    # Unix socket paths are short: tmp_path would not fit.
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder, contextlib.ExitStack() as stack:
        (pathlib.Path(folder) / "key").write_text(KEY, encoding="utf-8")
        made = [Pod(folder, number, port) for number in range(2)]
        for pod in made:
            stack.callback(pod.stop)
        yield made


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
    done = pods[1].run(pods[1].hook)
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


def test_the_init_container_of_each_pod_ends_when_the_group_is_complete(pods):
    pods[1].start()
    pods[1].soon("startup")
    with subprocess.Popen(pods[1].waits, env=pods[1].environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as waiting:
        for line in waiting.stderr:
            if "the group is not complete" in line:
                break
        assert waiting.poll() is None
        pods[0].start()
        said, more = waiting.communicate(timeout=SOON)
    assert waiting.returncode == 0 and "the group of 4 is complete" in said, more
