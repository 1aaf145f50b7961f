"""Groups of daemons on fake GPUs, with real trainers on them."""

import json
import os
import pathlib

import fake_cuda
import fake_nccl
import warm
from faults import Program, client_environment
from fsdp_bench import Net, numbers
from group import Group, save, save_in_files

HERE = pathlib.Path(__file__).resolve().parent
WHY_NOT = fake_cuda.why_not()


class Trainers:
    """One cuda_trainer per rank of a group. A context manager."""

    def __init__(self, folder, group, fake, source, mode, environment=None, handle=None):
        folder.mkdir()
        folders = ("integration", "cases", "python", "testing", "../client/python/src")
        paths = [HERE.parent / folder for folder in folders]
        own = {
            **group.environment, **fake.environment("trainer"), **(environment or {}),
            "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths)),
        }  # fmt: skip
        code = "import sys, cuda_trainer; cuda_trainer.main(*sys.argv[1:])"
        self.all = [
            Program(code, folder, rank, group.ranks, group.address(rank), source, mode, handle or "", environment=own,
                    modules=warm.TORCH)
            for rank in range(group.ranks)
        ]
        self.pids = [program.pid for program in self.all]
        self.loaded = [json.loads(program.hear()) for program in self.all]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.all:
            program.__exit__()

    def ask(self, what):
        """The answers of all; every rank is asked before the first is waited for."""
        for program in self.all:
            program.process.stdin.write(what + "\n")
        return [json.loads(program.hear()) for program in self.all]

    def end(self):
        """Ends them in the ordinary way."""
        for program in self.all:
            program.process.communicate(timeout=60)
        return [program.process.returncode for program in self.all]


class Bench:
    """A group on fake GPUs, one each, and a checkpoint; `nccl`: options of a fake NCCL beside them.

    group(run_dir, ranks, *options, environment=) makes the daemons. gpus: further options of the fake GPUs."""

    def __init__(self, folder, run_dir, ranks, *faults, daemon=(), gpu_bytes=0x10000000, nccl=None, group=Group,
                 files=1, gpus=None):
        self.folder = folder
        self.fake = fake_cuda.FakeCuda(folder, gpus=max(ranks, 2), bytes=gpu_bytes, faults=faults, **(gpus or {}))
        state = numbers(Net())
        self.source = save_in_files(folder / "m", state, files) if files > 1 else save(folder / "m.safetensors", state)
        own = self.fake.environment("daemon")
        self.nccl = None if nccl is None else fake_nccl.FakeNccl(self.fake, **nccl)
        if self.nccl is not None:
            own.update(self.nccl.environment())
        self.group = group(run_dir, ranks, "--memory", "cuda", *daemon, environment=own)
        self.count = 0

    @property
    def client_environment(self):
        return {**client_environment(), **self.fake.environment("trainer")}

    def trainers(self, mode, handle=None, **environment):
        self.count += 1
        folder = self.folder / f"t{self.count}"
        return Trainers(folder, self.group, self.fake, self.source, mode, environment, handle)

    def info(self, rank=0):
        return self.group.info(rank)["memory"]

    def state(self, rank=0):
        return [c["state"] for c in self.group.json("list", rank=rank)["checkpoints"]]

    def leases(self):
        return sum(len(self.group.json("leases", rank=rank)["leases"]) for rank in range(self.group.ranks))

    def contexts(self, pid):
        """How many times that process keeps a GPU's context."""
        made, given_back = (
            len(self.fake.calls(f"cuDevicePrimaryCtx{what}", pid=pid, result=0)) for what in ("Retain", "Release")
        )
        return made - given_back

    def held(self):
        return self.fake.held_bytes()

    def unload(self):
        for rank in range(self.group.ranks):
            for checkpoint in self.group.json("list", rank=rank)["checkpoints"]:
                if checkpoint["state"] == "STATE_ACTIVE":
                    self.group.unload(checkpoint["name"], rank)
