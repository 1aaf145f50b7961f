"""How fast ckptctl merges and converts, beside a plain copy and beside torch's and accelerate's own tools.

    tests/bench/run tools --bytes 1.6GB --rounds 3

The source is a DCP folder that `--ranks` ranks saved, each its rows of every weight, and its files are cached. A
plain copy is cp, and then fsync of what it wrote, as ckptctl's. torch's and accelerate's tools wait for no storage;
what importing them costs is left out.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]


import arguments  # noqa: E402
import running  # noqa: E402

PATIENCE = 1800
COPY, FOREIGN = 0.8, 3.0  # what is to be reached: of a copy's speed, and times the other tools'
WIDTH = 4096

SAVE = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                        init_method="file://" + sys.argv[3])
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
rows, width = int(sys.argv[2]), int(sys.argv[4])
whole = torch.randn(width, width, dtype=torch.bfloat16)
state = {f"layers.{i}.weight": distribute_tensor(whole, mesh, [Shard(0)]) for i in range(rows // width)}
dcp.save({"model": state}, checkpoint_id=sys.argv[1])
"""
FOREIGN_MERGE = """
import sys, time
from accelerate.utils import merge_fsdp_weights
begin = time.monotonic()
merge_fsdp_weights(sys.argv[1], sys.argv[2])
print(time.monotonic() - begin)
"""
FOREIGN_SAVE = """
import sys, time
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
begin = time.monotonic()
dcp_to_torch_save(sys.argv[1], sys.argv[2])
print(time.monotonic() - begin)
"""


def checkpoint(directory, nbytes, ranks):
    """The DCP folder, written once."""
    rows = max(1, nbytes // (2 * WIDTH * WIDTH)) * WIDTH
    path = directory / f"tools-{rows}-{ranks}"
    if not (path / ".metadata").exists():
        running.say(f"writing {path}")
        shutil.rmtree(path, ignore_errors=True)
        store = directory / "tools-store"
        store.unlink(missing_ok=True)
        environment = {**os.environ, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen([sys.executable, "-c", SAVE, str(path), str(rows), str(store), str(WIDTH)],
                                      env={**environment, "RANK": str(rank)}) for rank in range(ranks)]
        if any(process.wait(PATIENCE) for process in processes):
            raise SystemExit("bench: the checkpoint could not be written")
    return path


def clock(command):
    begin = time.monotonic()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
    return time.monotonic() - begin


def told(code, *words):
    """Seconds that a program says it took."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True,
                          timeout=PATIENCE)
    return float(done.stdout.split()[-1])


def copy(source, target):
    return clock(["sh", "-c", 'cp -r --reflink=never "$0" "$1" && find "$1" -type f -exec sync {} +', source, target])


def lines(ckptctl, dcp, folder):
    """{name: (ours, other, least ratio)}: functions that write anew, and give their seconds."""
    single, torch_file = folder / "kept.safetensors", folder / "kept.bin"
    clock([ckptctl, "convert", dcp, single, "--quiet"])
    clock([ckptctl, "convert", dcp, torch_file, "--quiet"])

    def convert(source, target):
        return lambda: clock([ckptctl, "convert", source, folder / target, "--quiet"])

    def merge():
        return clock([ckptctl, "merge", dcp, folder / "merged", "--quiet"])

    return {
        "merge beside a copy": (merge, lambda: copy(dcp, folder / "copy"), COPY),
        "merge beside merge_fsdp_weights": (merge, lambda: told(FOREIGN_MERGE, dcp, folder / "theirs"), FOREIGN),
        "DCP to torch beside a copy": (convert(dcp, "out.bin"), lambda: copy(dcp, folder / "copy"), COPY),
        "DCP to torch beside dcp_to_torch_save": (
            convert(dcp, "out.bin"), lambda: told(FOREIGN_SAVE, dcp, folder / "theirs.pt"), FOREIGN),
        "torch to safetensors beside a copy": (
            convert(torch_file, "out.safetensors"), lambda: copy(torch_file, folder / "copy"), COPY),
        "safetensors to DCP beside a copy": (
            lambda: clock([ckptctl, "convert", single, folder / "out", "--to", "dcp", "--quiet"]),
            lambda: copy(single, folder / "copy"), COPY),
    }


def clear(folder):
    for path in folder.iterdir():
        if path.name.startswith("kept"):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(options):
    dcp = checkpoint(options.directory, options.bytes, options.ranks)
    nbytes = sum(path.stat().st_size for path in dcp.iterdir())
    folder = options.directory / "tools-out"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    samples = {}
    try:
        for name, (ours, other, least) in lines(options.binaries / "ckptctl", dcp, folder).items():
            taken = {"ours": [], "other": [], "least": least}
            for number in range(options.rounds + 1):
                running.say(f"round {number} of {options.rounds}  {name}")
                for who, measure in (("ours", ours), ("other", other)):
                    clear(folder)
                    seconds = measure()
                    if number > 0:  # the first one warms up
                        taken[who].append(seconds)
            samples[name] = taken
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"bytes": nbytes, "ranks": options.ranks, "rounds": options.rounds, "samples": samples}


def text(found):
    out = [f"tools on {found['bytes'] / 1e9:.2f} GB that {found['ranks']} ranks saved, cached; medians of "
           f"{found['rounds']} rounds in seconds",
           f"  {'':40}{'ckptctl':>9}{'other':>9}{'speed':>8}{'least':>7}"]
    for name, taken in found["samples"].items():
        ours, other = statistics.median(taken["ours"]), statistics.median(taken["other"])
        verdict = "" if other / ours >= taken["least"] else "  MISSED"
        out.append(f"  {name:40}{ours:9.2f}{other:9.2f}{other / ours:7.2f}x{taken['least']:6.1f}x{verdict}")
    return "\n".join(out)


def main():
    options = arguments.parse(arguments.of_loads("tools", __doc__, size="size of the checkpoint, about", who="that saved it"))
    found = run(options)
    running.say("")
    print(f"{len(os.sched_getaffinity(0))} cores; {text(found)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    arguments.run(main)
