"""Other launchers: systemd's units, and Slurm's prolog and epilog, played with what they give their programs."""

import os
import pathlib
import shutil
import socket
import subprocess

import ckptd
import pytest
from group import BINARIES, PATIENCE, ROOT, clean_environment

SYSTEMD = ROOT / "deploy" / "systemd"
SLURM = ROOT / "deploy" / "slurm"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def exposure(unit):
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit], text=True,
                          capture_output=True)
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


@needs_systemd
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
def test_the_unit_is_one_that_systemd_reads_and_exposes_little(tmp_path, gpu):
    text = (SYSTEMD / "ckptd@.service").read_text()
    if gpu:
        text += (SYSTEMD / "gpu.conf").read_text()
    unit = tmp_path / "ckptd@.service"
    unit.write_text(text.replace("/usr/bin/ckptd", str(BINARIES / "ckptd")))
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    code, overall = exposure(unit)
    assert code == 0, overall


def test_the_service_manager_hears_when_the_daemons_are_ready_and_when_they_end(tmp_path):
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(str(tmp_path / "notify"))
    heard.settimeout(PATIENCE)
    environment = {**clean_environment(), "CKPTD_RUN_DIR": str(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with heard, subprocess.Popen([BINARIES / "ckptd", "launch", "--nproc", "2"], env=environment) as launch:
        try:
            assert heard.recv(1000) == b"READY=1\nSTATUS=2 daemons are ready"
            launch.terminate()
            assert heard.recv(1000) == b"STOPPING=1"
            assert launch.wait(PATIENCE) == 0
        finally:
            launch.kill()


class Slurm:
    """A job of Slurm on nodes that are this host."""

    NAMES = ["localhost", "node-1"]

    def __init__(self, folder, nodes):
        self.folder, self.nodes = folder, nodes
        tools = folder / "tools"
        tools.mkdir()
        for name, line in (("scontrol", f"printf '%s\\n' {' '.join(self.NAMES[:nodes])}"), ("logger", f'echo "$3" >>{folder}/system.log')):
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        (folder / "key").write_text("0123456789abcdef0123456789abcdef")
        (folder / "run").mkdir()
        self.environment = {
            **clean_environment(), "SLURM_JOB_ID": "77", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GID": str(os.getgid()),
            "SLURM_JOB_COMMENT": "night, ckptd", "SLURM_JOB_NODELIST": "any", "SLURM_JOB_GPUS": "0,1",
            "CKPTD_SLURM_PATH": f"{tools}:{BINARIES}:{os.environ['PATH']}", "CKPTD_SLURM_KEY": str(folder / "key"),
            "CKPTD_SLURM_RUN": str(folder / "run"), "CKPTD_SEGMENT_BYTES": "2MiB",
        }  # fmt: skip

    def run(self, script, **more):
        """What each node's script prints, and what it has told the system's log; they run at the same time."""
        running = [
            subprocess.Popen([SLURM / script], env={**self.environment, "SLURMD_NODENAME": name, **more}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for name in self.NAMES[: self.nodes]
        ]
        said = [one.communicate(timeout=PATIENCE) for one in running]
        assert [(one.returncode, errors) for one, (_, errors) in zip(running, said)] == [(0, "")] * self.nodes
        log = self.folder / "system.log"
        logged = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [printed for printed, _ in said], logged

    def left(self):
        return list((self.folder / "run").iterdir())


@pytest.mark.parametrize("nodes", [1, 2])
def test_prologs_start_the_daemons_of_a_job_and_epilogs_end_them(tmp_path, nodes):
    job = Slurm(tmp_path, nodes)
    try:
        _, logged = job.run("prolog")
        assert len(logged) == nodes and all("the daemons of job 77 are ready" in line for line in logged), logged
        (lines, *_), _ = job.run("task-prolog")
        variables = dict(line.removeprefix("export ").split("=", 1) for line in lines.splitlines())
        for rank in range(2 * nodes):
            folder = pathlib.Path(variables["CKPTD_RUN_DIR"]) / variables["CKPTD_JOB"]
            with ckptd.connect(folder / f"rank-{rank}.sock") as client:
                assert client.list() == []
    finally:
        job.run("epilog")
    assert job.left() == []


def test_a_job_that_has_not_asked_gets_no_daemons(tmp_path):
    job = Slurm(tmp_path, 1)
    for script in ("prolog", "task-prolog", "epilog"):
        assert job.run(script, SLURM_JOB_COMMENT="nockptd") == ([""], [])
    assert job.left() == []


def test_a_node_is_not_drained_because_daemons_could_not_be_started(tmp_path):
    job = Slurm(tmp_path, 1)
    _, logged = job.run("prolog", CKPTD_MEMORY_BUDGET="many")
    assert any("many" in line for line in logged), logged
    job.run("epilog")
    assert job.left() == []


def test_a_job_of_several_nodes_needs_the_secret_of_the_cluster(tmp_path):
    job = Slurm(tmp_path, 2)
    (tmp_path / "key").unlink()
    assert [line.endswith("job 77 gets no daemons") for line in job.run("prolog")[1]] == [True, True]
    job.run("epilog")
