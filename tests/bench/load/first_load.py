"""What the first load costs with daemons that have just started, by how they make memory ready.

    tests/bench/run first-load --bytes 1.6GB --ranks 4 --rounds 3

Fresh daemons for each sample. Trainers have imported all they need and built their model; then daemons start,
and the load begins when they have been up for 5 s, or, with an arena of a given size, when that is filled. By
default a job that never ran takes a share of what is available, and one that ran takes what it loaded then.
"""

import json
import pathlib
import random
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]

import main_job  # noqa: E402
import make_checkpoint  # noqa: E402
import processes  # noqa: E402

import arguments  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
from running import say  # noqa: E402

UP = 5.0  # seconds that daemons have been up
MOST = 1.3  # times as long as with a filled arena
LOADER = "ckptd, digests off"
FILLED, NONE = "filled arena", "no arena"
FIRST, LATER = "default, never ran", "default, ran before"
KINDS = (FILLED, FIRST, LATER, NONE)


class LateDaemons(processes.Daemons):
    """Daemons that start when they are told to. Whether their arena is filled is waited for only with `filled`."""

    def __init__(self, binaries, run_dir, ranks, *options, filled=False):
        self.given, self.filled, self.process = (binaries, run_dir, ranks, *options), filled, None
        self.environment = processes.environment_of(run_dir, processes.own_job())

    def start(self):
        super().__init__(*self.given)

    def ready(self, info):
        return super().ready(info) if self.filled else info["state"] == "READY"

    def stop(self):
        if self.process is not None:
            super().stop()


def daemons_of(kind, binaries, run_dir, nbytes, ranks):
    arena = nbytes // ranks * 51 // 50 + (4 << 20)
    options = {FILLED: ("--arena", arena), NONE: ("--arena", 0)}.get(kind, ())
    return LateDaemons(binaries, run_dir, ranks, *options, filled=kind == FILLED)


def load(kind, options, source, nbytes, run_dir, check=False):
    """One sample, with what the daemons had ready when the load began."""
    daemons = daemons_of(kind, options.binaries, run_dir, nbytes, options.ranks)
    bench = rounds.Bench(daemons, source, options.bytes, options.ranks)
    ready = []

    def gate():
        daemons.start()
        up = time.monotonic()
        if kind != FILLED:
            time.sleep(UP - 0.5)
        ready.extend(daemons.info(rank)["memory"]["arena_bytes"] for rank in range(options.ranks))
        return up if kind == FILLED else up + UP

    try:
        sample = bench.run_ranks(LOADER, check, bench.files, gate)
    finally:
        daemons.stop()
    return {**sample, "ready": sum(ready)}


def run(options, say):
    """kind -> samples of `rounds` rounds, after one that is dropped but has its bytes compared."""
    source = options.directory / f"llama-{options.bytes}"
    nbytes = make_checkpoint.make(source, options.bytes)
    found = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="ckptd-") as again:
        for number in range(options.rounds + 1):
            first, order = {}, list(KINDS)
            random.Random(number).shuffle(order)
            for kind in order:
                say(f"{f'round {number}/{options.rounds}' if number else 'warming up'}  {kind}")
                with tempfile.TemporaryDirectory(prefix="ckptd-") as never:
                    run_dir = pathlib.Path(again if kind == LATER else never)
                    sample = load(kind, options, source, nbytes, run_dir, check=number == 0)
                if number == 0:
                    first[kind] = sample
                else:
                    sample.pop("checksums", None)
                    found[kind].append(sample)
            if first:
                rounds.check_bytes(first)
    return {"samples": found, "bytes": nbytes}


def judge(table, samples):
    floor = report.median(samples[FILLED])
    for kind in (FIRST, LATER):
        table.at_most(f"first load, {kind}, daemons up for 5 s, vs filled arena", report.median(samples[kind]) / floor,
                      MOST, "x")
    table.plain("first load, no arena, vs filled arena", f"{report.median(samples[NONE]) / floor:.2f} x")


def text(found):
    lines = [f"the first load of {found['bytes'] / 1e9:.2f} GB by daemons that have just started"]
    for kind, samples in found["samples"].items():
        ready = sorted(sample["ready"] / found["bytes"] for sample in samples)
        lines.append(f"{report.row(kind, samples)}   ready before: {ready[0]:.2f} - {ready[-1]:.2f} S")
    return "\n".join(lines)


def main():
    options = arguments.parse(arguments.of_loads("first-load", __doc__))
    try:
        found = run(options, say)
    except main_job.Failure as failure:
        sys.exit(f"bench: {failure}")
    say("")
    table = report.Table()
    judge(table, found["samples"])
    print(f"{text(found)}\n\nwhat is to be reached\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
