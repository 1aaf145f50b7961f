"""FSDP2 on memory that came from the daemon, CUDA graphs over it, and the main job."""

import os
import signal
import subprocess
import sys
import tempfile

import client
import place
import trainer_files
from bench import TRAINER
from gpu_record import Checks, NotShown

checks = Checks()


def told_all(programs, verb, **arguments):
    """The answers of all ranks; every rank is told before the first is waited for."""
    for program in programs:
        client.tell(program, verb, **arguments)
    return [client.hear(program) for program in programs]


def fsdp(bench, ranks):
    source = trainer_files.source(bench, ballast=False)
    folder = bench.path("store")
    group = bench.group(ranks)
    programs = [
        bench.program(TRAINER, group.address(r), source, "exclusive", r, ranks, folder)
        for r in range(ranks)
    ]
    for said in told_all(programs, "reference"):
        if said:  # PyTorch alone, without ckptd, failed
            raise NotShown(f"this PyTorch cannot do it by itself: {said['message']}")
    for said in told_all(programs, "load"):
        assert said.get("copied") == {} and said["copied_bytes"] == 0, said
    allocated = told_all(programs, "count")
    for said in told_all(programs, "inside"):
        assert said["inside"] > 0 and said["outside"] == 0, said
    for said in told_all(programs, "compare") + told_all(programs, "train", steps=5):
        assert said.get("same") is True, said
    # FSDP2's first forward is where it would make copies of its own.
    for said in told_all(programs, "inside"):
        assert said["outside"] == 0, f"FSDP2 moved parameters out of the daemon's memory: {said}"
    return {"ranks": ranks, "allocated by PyTorch": [a["allocated"] for a in allocated]}


@checks("FSDP2 trains in the daemon's memory on one rank, as it does in its own", "torch")
def one_rank(bench):
    return fsdp(bench, 1)


@checks("a CUDA graph over imported memory is captured, replayed, and right", "torch on a GPU")
def graphs(bench):
    group = bench.group(1)
    program = bench.program(TRAINER, group.address(0), trainer_files.source(bench), "exclusive")
    for verb, arguments in (("reference", {}), ("load", {})):
        said = client.ask(program, verb, **arguments)
        assert "reason" not in said, said
    said = client.ask(program, "graph", replays=5)
    # Sums may run in another order when recorded.
    assert said.get("same") or said.get("by", 1) < 1e-5, said
    return said


@checks(
    "FSDP2 trains in the daemon's memory on two ranks of one GPU, as it does in its own", "torch"
)
def two_ranks(bench):
    return fsdp(bench, 2)


def run_main_job(bench):
    """What it prints, of a run on this GPU. It ends what it has started, also when it is late."""
    nbytes = "3MB" if bench.fake else "300MB" if bench.quick else "2GB"
    run_dir = bench.keep(tempfile.TemporaryDirectory(prefix="ckptd-gpu-"))  # a short path
    folders = ["--binaries", place.BUILD / "bin", "--directory", bench.path(), "--run-dir", run_dir]
    # This PyTorch sees a fake GPU's memory as the host's.
    trainer = ["--trainer", place.ROOT / "tests/testing/host_view_trainer.py"] if bench.fake else []
    visible = {} if bench.fake else {"CUDA_VISIBLE_DEVICES": bench.uuid}
    job = subprocess.Popen(
        [sys.executable, place.ROOT / "deploy/main_job/main_job.py", "--memory", "cuda", "--ranks", "1",
         "--bytes", nbytes, *folders, *trainer],
        env={**os.environ, **bench.environment, **visible},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        said, _ = job.communicate(timeout=300 if bench.fake else 85)
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=30)
    assert job.returncode == 0 and said.endswith("\nverified\n"), said[-3000:]
    return said


@checks(
    "the main job: loaded once, trained in place, killed, and started again without storage",
    "torch",
    "safetensors",
)
def main_job(bench):
    lines = run_main_job(bench).splitlines()
    return {"said": [" ".join(line.split()) for line in lines if line.startswith("  ")]}
