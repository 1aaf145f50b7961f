"""Other launchers: systemd's units, and Slurm's prolog and epilog, played with what they give their programs."""

import fcntl
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import threading

import ckptd
import pytest
from group import BINARIES, PATIENCE, ROOT, clean_environment, key_for, save

SYSTEMD = ROOT / "deploy" / "systemd"
SLURM = ROOT / "deploy" / "slurm"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def exposure(unit):
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit], text=True,
                          capture_output=True)
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


@needs_systemd
@pytest.mark.parametrize("name, drop_in", [
    ("ckptd@.service", None), ("ckptd@.service", "gpu.conf"), ("ckptd@.service", "fdstore.conf"),
    ("ckptd-keeper@.service", None),
])
def test_the_units_are_those_that_systemd_reads_and_expose_little(tmp_path, name, drop_in):
    text = (SYSTEMD / name).read_text()
    if drop_in:
        text += (SYSTEMD / drop_in).read_text()
    unit = tmp_path / name
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


class Systemd:
    """The part of systemd that keeps a unit's descriptors (FileDescriptorStoreMax=), and starts the unit again with them."""

    def __init__(self, folder):
        self.path, self.stored, self.heard = str(folder / "notify"), {}, queue.Queue()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            text, fds, _, _ = socket.recv_fds(self.socket, 4096, 8)
            said = dict(line.split("=", 1) for line in text.decode().splitlines())
            if "FDSTORE" in said:
                self.stored[said["FDNAME"]] = fds.pop()
            elif "FDSTOREREMOVE" in said and said["FDNAME"] in self.stored:
                os.close(self.stored.pop(said["FDNAME"]))
            for fd in fds:  # a barrier's
                os.close(fd)
            if "READY" in said:
                self.heard.put(text)

    def start(self, folder):
        names = list(self.stored)
        # Far away from where they are to be.
        fds = [fcntl.fcntl(self.stored[name], fcntl.F_DUPFD, 500) for name in names]
        moves = " ".join(f"{3 + i}<&{fd} {fd}<&-" for i, fd in enumerate(fds))
        script = f'exec {moves}; export LISTEN_PID=$$; exec "$0" run --keeper systemd --rendezvous 127.0.0.1:0'
        environment = {**clean_environment(), **key_for(()), "CKPTD_RUN_DIR": str(folder), "CKPTD_SEGMENT_BYTES": "2MiB",
                       "NOTIFY_SOCKET": self.path, "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}
        unit = subprocess.Popen(["bash", "-c", script, BINARIES / "ckptd"], env=environment, pass_fds=fds)
        for fd in fds:
            os.close(fd)
        assert self.heard.get(timeout=PATIENCE) == b"READY=1"
        return unit


def test_a_unit_that_is_started_again_has_its_checkpoints_and_leases_from_systemds_store(tmp_path):
    systemd, torch = Systemd(tmp_path), pytest.importorskip("torch")
    path = save(tmp_path / "m.safetensors", {"w": torch.arange(1000)})
    address = f"unix:{tmp_path}/default/rank-0.sock"
    unit = systemd.start(tmp_path)
    try:
        with ckptd.connect(address) as client:
            name = client.load(path, layout="fsdp:1").name
            shard = client.acquire(name)
        os.unlink(path)
        unit.kill()
        unit.wait(PATIENCE)
        unit = systemd.start(tmp_path)
        with ckptd.connect(address) as client, client.acquire(name) as again:
            assert bytes(again.tensors["w"].buffer) == torch.arange(1000).numpy().tobytes()
            assert client.list()[0].lease_count == 2
        shard.close()
    finally:
        unit.terminate()
        assert unit.wait(PATIENCE) == 0


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
