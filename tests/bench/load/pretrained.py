"""How long transformers' from_pretrained takes natively and with weights from the daemons.

    tests/bench/run pretrained --ranks 4 --rounds 3

From a common start to the slowest rank's touched parameters, files cached and, for ckptd, the checkpoint
resident. The same processes serve all samples: what importing costs is left out. Bytes are compared on each
rank. Plans: `plain`, every rank has all of the model; `tp` and `fsdp`, from_pretrained shards it itself, by
its distributed_config; `accelerate`, from_pretrained under FSDP_CPU_RAM_EFFICIENT_LOADING and then accelerate's
fsdp2_prepare_model, which shards it and broadcasts rank 0's weights.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]

import main_job  # noqa: E402

import arguments  # noqa: E402
import report  # noqa: E402
import running  # noqa: E402

PATIENCE = 600
SEGMENT = 256 << 20  # of an arena, as daemons have it unless told
DTYPES = {"float32": 4, "bfloat16": 2}  # bytes of an element; the file's is float32
NAMES = [f"{plan} {dtype}" for plan in ("plain", "tp", *report.FSDP2_PLANS) for dtype in DTYPES]
FSDP2_NAMES = [name for name in NAMES if name.split()[0] in report.FSDP2_PLANS]
SIZES = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
         "num_key_value_heads": 8}


def sizes_of(nbytes):
    """The configuration of a model that has, in float32, as its file, `nbytes` or up to a layer more."""
    hidden, heads, groups = SIZES["hidden_size"], SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    layer = 4 * hidden * (2 * hidden + 2 * hidden * groups // heads + 3 * SIZES["intermediate_size"])
    left = nbytes - 4 * 2 * SIZES["vocab_size"] * hidden
    return {**SIZES, "num_hidden_layers": max(1, -(-left // layer))}


def checkpoint(directory, sizes):
    """The model's folder, written once."""
    import transformers

    path = directory / f"pretrained-{sizes['num_hidden_layers']}"
    if not (path / "config.json").exists():
        running.say(f"writing {path}")
        transformers.logging.disable_progress_bar()
        with tempfile.TemporaryDirectory(dir=directory) as part:
            model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes))
            model.save_pretrained(pathlib.Path(part, path.name), max_shard_size="100GB")
            pathlib.Path(part, path.name).rename(path)
    return path


def follow(name, processes, folder, say):
    """Waits for what all ranks have found, telling what they are at."""
    files = [folder / f"found-{rank}.json" for rank in range(len(processes))]
    deadline, said, progress = time.monotonic() + PATIENCE, None, folder / "progress"
    while not all(file.exists() for file in files):
        late = time.monotonic() > deadline
        for rank, process in enumerate(processes):
            # The others would wait long for a rank that has failed.
            if process.poll() is not None or (late and not files[rank].exists()):
                log = (folder / f"log-{rank}").read_text()[-3000:]
                raise SystemExit(f"bench: from_pretrained, {name}: rank {rank} did not finish:\n{log}")
        if progress.exists() and (text := progress.read_text()) and text != said:
            said = text
            say(f"{said}  from_pretrained, {name}")
        time.sleep(0.1)
    return json.loads(files[0].read_text())


def run_ranks(daemons, folder, spec, say):
    environment = {**daemons.environment, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                   "WORLD_SIZE": str(spec["ranks"])}
    written, processes = folder / "spec.json", []
    written.write_text(json.dumps(spec))
    try:
        for rank in range(spec["ranks"]):
            with open(folder / f"log-{rank}", "wb") as log:
                processes.append(subprocess.Popen(
                    [sys.executable, str(HERE / "pretrained_rank.py"), str(written), str(rank)],
                    env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdin=subprocess.PIPE,
                    stdout=log, stderr=log))
        return follow(spec["name"], processes, folder, say)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def arena_for(name, nbytes, ranks):
    """Room in each daemon for what a line has resident, and for what it takes besides for good."""
    plan, dtype = name.split()
    whole = nbytes * DTYPES[dtype] // DTYPES["float32"]
    part = whole // ranks
    slabs = {"plain": [whole], "accelerate": [whole, part]}.get(plan, [part])
    # Slabs are rows of segments. One to spare, for padding.
    return (sum(-(-slab // SEGMENT) for slab in slabs) + 1) * SEGMENT


def run(start, options, rounds, names, say):
    """What was measured: bytes of the file, and per name the seconds of each contender."""
    sizes, ranks, samples = sizes_of(options.bytes), options.ranks, {}
    source = checkpoint(options.directory, sizes)
    nbytes = (source / "model.safetensors").stat().st_size
    for name in names:
        # Daemons of its own: memory that other lines had lent could not be handed over.
        with tempfile.TemporaryDirectory() as place, start(ranks, arena_for(name, nbytes, ranks)) as daemons:
            folder = pathlib.Path(place)
            spec = {"name": name, "source": str(source), "sizes": sizes, "ranks": ranks, "rounds": rounds,
                    "folder": place, "store": str(folder / "store"), "ckptctl": str(options.binaries / "ckptctl")}
            samples[name] = run_ranks(daemons, folder, spec, say)
    return {"bytes": nbytes, "ranks": ranks, "rounds": rounds, "samples": samples}


def text(found):
    """All that was measured, a line each."""
    lines = [f"from_pretrained of {found['bytes'] / 1e9:.2f} GB in float32, {found['ranks']} ranks, resident in "
             f"daemons with room in their arena;\nmedians of {found['rounds']} rounds in seconds; construction builds "
             "the model on meta and shards nothing",
             f"  {'':22}{'native':>9}{'ckptd':>9}{'ratio':>8}{'construction':>14}{'beyond it':>11}"]
    for name, samples in found["samples"].items():
        native, ours, built = report.pretrained_medians(samples)
        lines.append(f"  {name:22}{native:9.3f}{ours:9.3f}{native / ours:7.1f}x{built:14.3f}{ours - built:11.3f}")
    return "\n".join(lines)


def part_of_name(text):
    if not any(text in name for name in NAMES):
        raise argparse.ArgumentTypeError(f"no line is called {text!r}; there are: {'; '.join(NAMES)}")
    return text


def read_arguments():
    parser = arguments.of_loads("pretrained", __doc__, size="least size of the checkpoint, in float32")
    parser.add_argument("--only", type=part_of_name, default="", metavar="TEXT",
                        help="just the lines whose names contain TEXT: " + "; ".join(NAMES))
    return arguments.parse(parser)


def main():
    options = read_arguments()
    start = running.starter(options.binaries, options.directory)
    names = [name for name in NAMES if options.only in name]
    try:
        found = run(start, options, options.rounds, names, running.say)
    except main_job.Failure as failure:
        sys.exit(f"bench: {failure}")
    running.say("")
    table = report.Table()
    report.pretrained(table, found["samples"])
    print(f"{len(os.sched_getaffinity(0))} cores; {text(found)}")
    if table.lines:
        print(f"\nwhat is to be reached\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
