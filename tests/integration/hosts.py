"""A group of daemons of which each runs on one of two hosts (network namespaces)."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import ckptd
from group import BINARIES, PATIENCE, Group, clean_environment, key_for, wait_until
from slices import as_bytes, rows

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from namespaces import TwoHosts, why_not  # noqa: E402,F401

PORT = 29611


class SpreadGroup(Group):
    """`hosts[rank]` is 0 or 1. Clients talk to all daemons over their Unix sockets, as on any host.

    Each host has its own run directory, and its own name: the kernel's boot id is one here."""

    def __init__(self, folder, network, hosts, *options, job="job", names=("host-0", "host-1"), per_rank=None,
                 budget="1GiB", segments="2MiB", unshared=None, environment=None, other_files=None, port=PORT):
        self.network, self.hosts, self.options, self.names = network, hosts, options, names
        self.port = port  # of rank 0
        self.per_rank, self.budget, self.segments = per_rank or {}, budget, segments
        self.unshared = unshared  # a folder that host 1 does not see
        self.other_files = other_files  # (folder, what host 1 sees in its place)
        self.ranks, self.job, self.folder = len(hosts), job, pathlib.Path(folder)
        self.environment = {**clean_environment(), "CKPTD_JOB": job, **(environment or {})}
        self.keys = [key_for((*options, *self.per_rank.get(rank, ()))) for rank in range(self.ranks)]
        self.processes = [self.start(rank) for rank in range(self.ranks)]

    def command(self, rank):
        return [BINARIES / "ckptd", "run", "--job", self.job, "--rank", rank, "--world-size", self.ranks,
                "--run-dir", self.run_dir_of(rank), "--host-id", self.names[self.hosts[rank]],
                "--segment-bytes", self.segments, "--memory-budget", self.budget, *self.addresses(rank),
                *self.options, *self.per_rank.get(rank, ())]

    def addresses(self, rank):
        return ("--rendezvous", f"{self.network.addresses[self.hosts[0]]}:{self.port}",
                "--advertise", self.network.addresses[self.hosts[rank]])

    def start(self, rank):
        host = self.hosts[rank]
        arguments = [*self.network.inside(host), *(self.mounts() if host else ()), *self.command(rank)]
        with open(self.log_of(rank), "a") as log:
            return subprocess.Popen([str(a) for a in arguments], env={**self.environment, **self.keys[rank]}, stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log)

    def restart(self, rank):
        """Another daemon in its place, in the group; another one than rank 0."""
        epoch = self.info()["epoch"]
        self.processes[rank].kill()
        self.processes[rank].wait()
        wait_until(lambda: self.info()["epoch"] != epoch, f"rank {rank} to be missed")
        self.processes[rank] = self.start(rank)
        self.wait_ready()

    def mounts(self):
        """Namespaces of the network come with one of mounts."""
        if self.unshared:
            return "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', self.unshared
        if self.other_files:
            script = 'mount --bind "$1" "$0" && shift && exec "$@"'
            return "sh", "-c", script, *self.other_files
        return ()

    def run_dir_of(self, rank):
        return self.folder / f"h{self.hosts[rank]}"

    def log_of(self, rank):
        return self.folder / f"rank-{rank}.log"

    def log(self):
        return "\n".join(f"--- rank {rank}\n{self.log_of(rank).read_text()}" for rank in range(self.ranks))

    def address(self, rank):
        return f"unix://{self.run_dir_of(rank)}/{self.job}/rank-{rank}.sock"

    def ctl(self, *arguments, rank=0):
        command = [BINARIES / "ckptctl", "--output", "json", "--rank", rank, *arguments]
        return subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=PATIENCE,
                              env={**self.environment, "CKPTD_RUN_DIR": str(self.run_dir_of(rank))})

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def stop(self):
        running = [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        self.end()
        codes = {rank: self.processes[rank].returncode for rank in running}
        assert not any(codes.values()), f"exit codes by rank {codes}:\n{self.log()}"

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait_ready(self):
        def probe():
            ended = [rank for rank, process in enumerate(self.processes) if process.poll() is not None]
            assert not ended, f"ranks {ended} ended early:\n{self.log()}"
            return self.ready()
        return wait_until(probe, f"a complete group; logs in {self.folder}")

    def pid(self, rank):
        return self.processes[rank].pid

    def kill(self, rank, number=signal.SIGKILL):
        os.kill(self.processes[rank].pid, number)
        self.processes[rank].wait()
        self.processes[rank] = self.start(rank)
        self.wait_ready()


def check_rows(group, path, tensors, layout, **options):
    """Every rank maps its rows; the name of the checkpoint."""
    for rank in range(group.ranks):
        with ckptd.connect(group.address(rank)) as client:
            checkpoint = client.load(path, layout=layout, **options)
            with client.acquire(checkpoint) as shard:
                for name, tensor in tensors.items():
                    expected = as_bytes(rows(tensor, rank, group.ranks))
                    assert bytes(shard.tensors[name].buffer) == expected, (rank, name)
            assert group.json("verify", checkpoint.name, rank=rank)
    return checkpoint.name


def total(tensors):
    return sum(t.numel() * t.element_size() for t in tensors.values())


def load_in_background(group, path, layout, rank=0, timeout=60):
    """(thread, answers): answers gets the exception, or the checkpoint. thread.accepted: once the group knows the load."""
    answers, accepted = [], threading.Event()

    def run():
        try:
            with ckptd.connect(group.address(rank)) as client:
                answers.append(client.load(path, layout=layout, timeout=timeout, progress=lambda _: accepted.set()))
        except ckptd.Error as error:
            answers.append(error)
    thread = threading.Thread(target=run)
    thread.accepted = accepted
    thread.start()
    return thread, answers


def progress_of(group, rank=0):
    listed = group.json("list", rank=rank)["checkpoints"]
    return listed[0]["progress"] if listed else None


def wait_for_bytes(group, waiting=()):
    """Until bytes move of a load that all of these wait for."""
    for thread, _ in waiting:
        assert thread.accepted.wait(PATIENCE), "a client that waits for the load"
    wait_until(lambda: int((progress_of(group) or {}).get("bytes_done", 0)) > 0, "the first bytes to move")


def transfer_seconds(group, name):
    """How long bytes moved."""
    stages = group.json("get", name)["progress"]["stages"]
    return next(float(one["duration"].rstrip("s")) for one in stages if one["stage"] == "STAGE_TRANSFERRING")
