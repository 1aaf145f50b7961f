"""One rank of one sample: python sample.py SPEC.json RANK. Writes FOLDER/rank-RANK.json.

Started fresh for every sample. The clock runs from one moment that all ranks
agree on, when each has its model sharded and on meta, to the moment this rank has
touched every page of its parameters.
"""

import json
import os
import pathlib
import sys
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "deploy/main_job")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import contenders  # noqa: E402
import floors  # noqa: E402
import model as llama  # noqa: E402
import peers  # noqa: E402
import resuming  # noqa: E402

PAGE = 4096


def build(nbytes):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        model = llama.Decoder(llama.Shape.of_bytes(nbytes)).to(torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Stripped(torch.nn.Module):
    """Names as in the checkpoint: everything below `model`."""

    def __init__(self, inner):
        super().__init__()
        self.model = inner


def together():
    """A moment shortly ahead, the same on every rank (one host: one clock)."""
    start = torch.tensor([time.monotonic() + 0.05], dtype=torch.float64)
    dist.broadcast(start, 0)
    dist.barrier()
    # Ranks may outnumber cores: those that spin would keep the others from getting here.
    time.sleep(max(0.0, start.item() - time.monotonic() - 0.001))
    while time.monotonic() < start.item():
        pass
    return start.item()


def pass_gate(gate, rank):
    """Waits for the moment that the benchmark says, once all ranks are here."""
    pathlib.Path(f"{gate}-{rank}").touch()
    while not os.path.exists(gate):
        time.sleep(0.01)
    time.sleep(max(0.0, float(pathlib.Path(gate).read_text()) - time.monotonic()))


def touch(parts):
    total = 0
    for local in parts.values():
        local = local.reshape(-1)
        if local.numel():
            total += int(local.view(torch.uint8)[::PAGE].sum())
    return total


def parts_of(job):
    """name -> what this rank has of a parameter, or of a state of the optimizer."""
    parts = {name: parameter.detach().to_local() for name, parameter in job.model.named_parameters()}
    return {**parts, **(resuming.states(job) if job.optimizer else {})}


def checksums(parts):
    sums = {}
    for name, local in parts.items():
        flat = local.contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy() if flat.numel() else b""
        sums[name] = [list(local.shape), zlib.crc32(data)]
    return sums


def memory():
    """Proportional bytes of this process: shared memory and private."""
    found = {"shmem": 0, "anon": 0, "file": 0}
    for line in open("/proc/self/smaps_rollup"):
        for key, label in (("shmem", "Pss_Shmem:"), ("anon", "Pss_Anon:"), ("file", "Pss_File:")):
            if line.startswith(label):
                found[key] = int(line.split()[1]) * 1024
    return found


def import_for(contender):
    """What its calls would import otherwise, on the clock."""
    import torch.distributed.checkpoint.state_dict  # noqa: F401

    if contender in peers.LOADS:
        __import__(contender)
    if contenders.is_ours(contender):
        import ckptd.torch  # noqa: F401
        import grpc  # noqa: F401
    if contender.startswith("accelerate") or contender in (*contenders.OVER_ACCELERATE, *resuming.CONTENDERS):
        import accelerate.utils.fsdp_utils  # noqa: F401


def main(spec_path, rank):
    spec = json.loads(pathlib.Path(spec_path).read_text())
    torch.set_num_threads(1)
    store = dist.FileStore(spec["store"], spec["ranks"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["ranks"])
    model = Stripped(build(spec["bytes"]))
    folders = ("source", "saved", "saved_elsewhere", "pickled", "training", "of_peer")
    job = contenders.Job(model, *(pathlib.Path(spec[folder]) for folder in folders))
    import_for(spec["contender"])
    # Some systems take pages back that nobody has used for a few seconds.
    floors.touch_files(spec["warm"][rank::spec["ranks"]])
    contenders.PREPARE.get(spec["contender"], lambda job: None)(job)
    before = memory()
    if spec["gate"]:
        pass_gate(spec["gate"], rank)
    start = together()
    contenders.CONTENDERS[spec["contender"]](job)
    loaded = time.monotonic() - start
    touch(parts_of(job))
    result = {"loaded": loaded, "touched": time.monotonic() - start}
    dist.barrier()
    result["memory"] = {key: [before[key], value] for key, value in memory().items()}
    dist.barrier()
    if spec["check"]:
        result["checksums"] = checksums(parts_of(job))
    if job.keep and hasattr(job.keep[0], "seconds"):
        result["stages"] = job.keep[0].seconds
    written = pathlib.Path(spec["folder"], f"rank-{rank}.part")
    written.write_text(json.dumps(result))
    written.rename(written.with_suffix(".json"))
    sys.stdin.read()  # the first to leave would break the others' last barrier
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
