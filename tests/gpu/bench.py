"""What checks stand on: daemons on the one GPU, its free memory, clients, files."""

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import List, Optional

import client
import files
from group import Group, wait_until
from program import Program

CLIENT = "import sys, client; client.main(*sys.argv[1:])"
TRAINER = "import sys, trainer; trainer.main(*sys.argv[1:])"
MIB = 1 << 20
# What a driver keeps for itself when contexts grow, in checks on memory that must come back.
SLACK = 32 * MIB
SLACK_AFTER_RESTART = 64 * MIB


class Bench:
    """One step's. `figure` and `not_measured` are the record's."""

    def __init__(self, spec: dict, record):
        self.fake, self.quick, self.uuid = spec["fake"], spec["quick"], spec["uuid"]
        self.has = set(spec["has"])
        self.folder = pathlib.Path(spec["folder"])  # for files, perhaps large
        self.environment = spec["environment"]
        self.nccl = spec["nccl"]  # path, version, and why it cannot be used, if so
        self.figure, self.not_measured = record.figure, record.not_measured
        self._stack = contextlib.ExitStack()
        self._gpu = None
        self.trained = None  # what one check found for the next

    def clean_up(self) -> None:
        """After each check: ends what it started, whatever became of it."""
        self._stack.close()

    def broken_rules(self) -> List[str]:
        """Mistakes of any process that the fake driver has seen."""
        if not self.fake:
            return []
        folder = pathlib.Path(self.environment["CKPTD_FAKE_CUDA"]).parent
        traces = [folder / name for name in ("trace", "nccl-trace")]
        lines = [line for t in traces if t.exists() for line in t.read_text().splitlines()]
        return [line for line in lines if '"violation"' in line]

    def keep(self, context):
        """Enters a context manager until the check ends."""
        return self._stack.enter_context(context)

    def path(self, name: str = "f") -> pathlib.Path:
        """A folder for files, removed after the check."""
        made = tempfile.mkdtemp(prefix=name + "-", dir=self.folder)
        self._stack.callback(shutil.rmtree, made, True)
        return pathlib.Path(made)

    def group(self, ranks: int, *options) -> Group:
        """Daemons that share the GPU, until the check ends."""
        # Socket paths are short, wherever large files go.
        run_dir = tempfile.mkdtemp(prefix="ckptd-gpu-")
        self._stack.callback(shutil.rmtree, run_dir, True)
        group = Group(
            run_dir,
            ranks,
            "--memory",
            "cuda",
            "--device",
            self.uuid,
            *options,
            environment=self.environment,
        )
        self._stack.callback(lambda: print(group.log()[-4000:], file=sys.stderr, flush=True))
        return self.keep(group)

    def warm_group(self, ranks: int, *options) -> Group:
        """The same after a first load, with which a daemon's own memory grows."""
        group = self.group(ranks, *options)
        source = files.sparse(self.path() / "first.safetensors", 8 * MIB, 4)
        one = self.client(group.address(0))
        said = client.ask(one, "load", source=source, layout=f"replicate:{ranks}")
        assert "name" in said, said
        unload(group)
        return group

    def program(self, code: str, *arguments) -> Program:
        return self.keep(Program(code, *arguments, environment={**os.environ, **self.environment}))

    def client(self, address: str) -> Program:
        return self.program(CLIENT, address)

    # -- the GPU's memory

    def gpu(self):
        if self._gpu is None:
            import gpu

            self._gpu = gpu.Gpu(self.uuid)
        return self._gpu

    def free(self) -> int:
        """Bytes of the GPU that nobody has, in any process."""
        return self.gpu().free()

    def comes_back(self, before: int, slack: int = SLACK, seconds: float = 20) -> dict:
        """Waits until as much memory is free as `before`; a fact for the report."""
        slack = 0 if self.fake else slack
        wait_until(
            lambda: self.free() >= before - slack,
            f"{(before - self.free()) / 1e6:.1f} MB of the GPU's memory to come back",
            seconds,
        )
        return {"missing bytes": max(0, before - self.free())}


def unload(group: Group, rank: Optional[int] = None) -> None:
    """Everything that is resident, on one rank or all."""
    for number in range(group.ranks) if rank is None else [rank]:
        for checkpoint in group.json("list", rank=number)["checkpoints"]:
            if checkpoint["state"] == "STATE_ACTIVE":
                group.json("unload", checkpoint["name"], "--force", rank=number)


def leases(group: Group) -> int:
    return sum(len(group.json("leases", rank=r)["leases"]) for r in range(group.ranks))


def timed(work):
    """(seconds, what it returned)."""
    begin = time.perf_counter()
    value = work()
    return time.perf_counter() - begin, value
