"""How fast torch's dcp.load fills an FSDP2 model by ckptd's StorageReader, beside FileSystemReader.

    tests/bench/run dcp --bytes 400MB --ranks 2 --rounds 3

Into memory that the model has already. The same number of ranks saved the checkpoint, or another one. Files are
cached, and the daemons hold nothing of them.
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
import rounds  # noqa: E402
import running  # noqa: E402
import sources  # noqa: E402

NAMES = [name for ours, theirs, _ in report.READERS for name in (ours, theirs)]


def run(options, say):
    source = options.directory / f"llama-{options.bytes}"
    nbytes = make_checkpoint.make(source, options.bytes)
    start = running.starter(options.binaries, options.directory)
    more = sources.prepare(start, options, source, NAMES)
    with start(options.ranks, nbytes // options.ranks * 51 // 50 + (4 << 20)) as daemons:
        bench = rounds.Bench(daemons, source, options.bytes, options.ranks, **more)
        return {"bytes": nbytes, "loads": rounds.run(bench, NAMES, options.rounds, rounds.WARM_FLOOR, False, say)}


def main():
    options = arguments.parse(arguments.of_loads("dcp", __doc__, "400MB", ranks=2))
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
    report.originals(table, found["loads"], report.READERS)
    print(f"\nwhat is to be reached\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
