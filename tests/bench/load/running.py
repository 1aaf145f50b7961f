"""What the programs of the benchmark share while they measure: daemons of their own, and what they say meanwhile."""

import contextlib
import sys

import main_job


def say(text):
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n",
          file=sys.stderr, flush=True)


def starter(binaries, folder):
    """start(ranks, arena bytes, place) -> running daemons as a context, with sockets of their own."""

    @contextlib.contextmanager
    def start(ranks, arena, place="run"):
        run_dir = folder / place
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        daemons = main_job.Daemons(binaries, run_dir, ranks, "--arena", arena)
        try:
            yield daemons
        finally:
            daemons.stop()

    return start
