"""How fast a training is put back by ckptd: model and AdamW, beside torch's and accelerate's own functions.

    tests/bench/run resume --bytes 200MB --ranks 2 --rounds 3

An FSDP2 model in bf16 and its optimizer, whose states are twice the model's bytes; as many ranks as saved it. Files
are cached, digests are off, and the daemons hold nothing of them.
"""

import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]

import main_job  # noqa: E402
import make_checkpoint  # noqa: E402

import arguments  # noqa: E402
import report  # noqa: E402
import resuming  # noqa: E402
import rounds  # noqa: E402
import running  # noqa: E402
import sources  # noqa: E402


def run(options, say):
    source = options.directory / f"llama-{options.bytes}"
    nbytes = make_checkpoint.make(source, options.bytes)
    start = running.starter(options.binaries, options.directory)

    def write(path):
        with start(options.ranks, 0) as daemons:
            rounds.Bench(daemons, source, options.bytes, options.ranks, training=path).run_ranks(resuming.SAVE, False)

    training = sources.made(options.directory / f"training-{options.bytes}-{options.ranks}", write)
    with start(options.ranks, 3 * (nbytes // options.ranks * 51 // 50 + (4 << 20))) as daemons:
        bench = rounds.Bench(daemons, source, options.bytes, options.ranks, training=training)
        loads = rounds.run(bench, list(resuming.CONTENDERS), options.rounds, rounds.WARM_FLOOR, False, say)
    return {"bytes": nbytes, "loads": loads}


def main():
    options = arguments.parse(arguments.of_loads("resume", __doc__, "200MB", ranks=2, size="size of the model"))
    try:
        found = run(options, running.say)
    except main_job.Failure as failure:
        sys.exit(f"bench: {failure}")
    running.say("")
    print(f"{len(os.sched_getaffinity(0))} cores, a model of {found['bytes'] / 1e9:.2f} GB in bf16 and AdamW, "
          f"{options.ranks} ranks; median and range of {options.rounds} rounds, bytes compared on each rank")
    for name, samples in found["loads"].items():
        print(report.row(name, samples))
    table = report.Table()
    report.resume(table, found["loads"])
    print(f"\nwhat is to be reached\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
