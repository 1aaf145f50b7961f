"""Where the main job can keep shards on this machine: in GPUs' memory, or the host's."""

import dataclasses
import re
import subprocess

from processes import Failure


@dataclasses.dataclass(frozen=True)
class Place:
    memory: str  # of the daemons: "host" or "cuda"
    device: str  # of the trainers, as PyTorch calls it: "cpu" or "cuda"
    ranks: int
    where: str   # for people


def gpus_seen(binaries) -> int:
    """GPUs that daemons would find."""
    answer = subprocess.run([binaries / "ckptd", "info", "--memory", "auto"], capture_output=True, text=True,
                            timeout=60)
    if answer.returncode != 0:
        raise Failure(f"ckptd info: {answer.stderr.strip()}")
    return len(re.findall(r"^gpu-\d+ = ", answer.stdout, re.MULTILINE))


def choose(binaries, memory: str, ranks) -> Place:
    """memory: as --memory; ranks: how many were asked for, or None. Raises Failure."""
    gpus = 0 if memory == "host" else gpus_seen(binaries)
    torch_on_gpus = gpus > 0 and _torch_sees_gpus()
    if memory == "auto":
        memory = "cuda" if torch_on_gpus and (ranks or 1) <= gpus else "host"
    if memory == "host":
        return Place("host", "cpu", ranks or 2, "host memory")
    if gpus == 0:
        raise Failure("--memory cuda: there is no GPU here (build/bin/ckptd info says why); try --memory host")
    ranks = ranks or min(2, gpus)
    if ranks > gpus:
        raise Failure(f"--memory cuda with {ranks} ranks: each takes a GPU, and there {_are(gpus)}; try --ranks {gpus}")
    return Place("cuda", "cuda" if torch_on_gpus else "cpu", ranks, f"the memory of {ranks} GPU{'s' * (ranks > 1)}")


def _are(gpus: int) -> str:
    return "is 1" if gpus == 1 else f"are {gpus}"


def _torch_sees_gpus() -> bool:
    import torch  # a second, where there is a GPU

    return torch.cuda.is_available()
