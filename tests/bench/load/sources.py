"""How fast ckptd loads the same weights from a file of torch and from DCP, beside safetensors.

    tests/bench/run sources --bytes 1.6GB --ranks 4 --rounds 3

Of a DCP checkpoint the same number of ranks saved it, or another one. Files are cached, digests are off. Also the
same for thousands of small tensors, where what a format costs for each of them shows.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]

import main_job  # noqa: E402
import make_checkpoint  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import arguments  # noqa: E402
import contenders  # noqa: E402
import fixed  # noqa: E402
import floors  # noqa: E402
import growth  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
import running  # noqa: E402

NAMES = (contenders.SAFETENSORS, *contenders.SOURCES)
SMALL, SMALL_BYTES, SMALL_RANKS = 10_000, 4096, 2


def made(path, write):
    """A folder that is written once, whole or not at all."""
    if not path.exists():
        running.say(f"writing {path}")
        part = path.with_name(f"{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        write(part)
        part.rename(path)
    return path


def pickled(folder, source, nbytes):
    """The weights of `source` in one file of torch."""
    def write(path):
        state = {}
        for file in contenders.files_of(source):
            state.update(load_file(file))
        torch.save(state, path / "pytorch_model.bin")

    return made(folder / f"torch-{nbytes}", write)


def saved(start, folder, source, nbytes, ranks):
    """A DCP checkpoint of them, saved by `ranks` ranks."""
    def write(path):
        with start(ranks, 0) as daemons:
            rounds.Bench(daemons, source, nbytes, ranks, saved=path).run_ranks(contenders.SAVE, False)

    return made(folder / f"dcp-{nbytes}-{ranks}", write)


def prepare(start, options, source, names):
    """Checkpoints that the loaders of these names read besides safetensors, as arguments of rounds.Bench."""
    needed, how = {contenders.READS.get(name) for name in names}, (options.directory, source, options.bytes)
    made_by = {
        "saved": lambda: saved(start, *how, options.ranks),
        "saved_elsewhere": lambda: saved(start, *how, 2 if options.ranks != 2 else 4),
        "pickled": lambda: pickled(*how),
    }
    return {what: make() for what, make in made_by.items() if what in needed}


# -- small tensors -------------------------------------------------------------


def small_sources(folder):
    """name -> what is loaded."""
    plain = fixed.make(folder, SMALL, SMALL * SMALL_BYTES)
    return {
        "safetensors": plain,
        "torch zip": made(folder / f"torch-small-{SMALL}",
                          lambda path: torch.save(load_file(plain), path / "pytorch_model.bin")),
        "DCP": made(folder / f"dcp-small-{SMALL}",
                    lambda path: dcp.save(load_file(plain), checkpoint_id=path, no_dist=True)),
    }


def run_small(start, folder, number_of_rounds, say):
    """name -> samples of loads by rule, after one round that is dropped; clients have no torch."""
    sources = small_sources(folder)
    found = {name: [] for name in sources}
    with contextlib.ExitStack() as stack:
        daemons = stack.enter_context(start(SMALL_RANKS, SMALL * SMALL_BYTES // SMALL_RANKS * 2 + (8 << 20)))
        crowds = {name: stack.enter_context(contextlib.closing(growth.Crowd(daemons, path, SMALL_RANKS, 1)))
                  for name, path in sources.items()}
        for crowd in crowds.values():
            crowd.answers()
        for number in range(number_of_rounds + 1):
            order = list(sources)
            random.Random(number).shuffle(order)
            for name in order:
                say(f"{f'round {number}/{number_of_rounds}' if number else 'warming up'}  small tensors, {name}")
                rounds.forget(daemons, SMALL_RANKS)
                path = sources[name]
                floors.touch_files(path.iterdir() if path.is_dir() else [path])
                sample = crowds[name].attach(resident=False)
                crowds[name].leave()
                found[name] += [sample] * (number > 0)
    return found


# -- all of it -----------------------------------------------------------------


def run(options, say):
    source = options.directory / f"llama-{options.bytes}"
    nbytes = make_checkpoint.make(source, options.bytes)
    start = running.starter(options.binaries, options.directory)
    more = prepare(start, options, source, NAMES)
    with start(options.ranks, nbytes // options.ranks * 51 // 50 + (4 << 20)) as daemons:
        bench = rounds.Bench(daemons, source, options.bytes, options.ranks, **more)
        loads = rounds.run(bench, NAMES, options.rounds, rounds.WARM_FLOOR, False, say)
    return {"bytes": nbytes, "loads": loads, "small": run_small(start, options.directory, options.rounds, say)}


def main():
    options = arguments.parse(arguments.of_loads("sources", __doc__))
    try:
        found = run(options, running.say)
    except main_job.Failure as failure:
        sys.exit(f"bench: {failure}")
    running.say("")
    print(f"{len(os.sched_getaffinity(0))} cores, {found['bytes'] / 1e9:.2f} GB in bf16, {options.ranks} ranks; median "
          f"and range of {options.rounds} rounds, bytes compared on each rank")
    for name, samples in found["loads"].items():
        print(report.row(name, samples))
    table = report.Table()
    report.sources(table, found["loads"])
    report.small(table, found["small"], SMALL)
    print(f"\nwhat is to be reached\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
