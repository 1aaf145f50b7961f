"""The options of deploy/quickstart, which it looks at before anything is installed or built: the
standard library alone.

    python options.py --ranks 2    # says nothing where they are right
"""

import argparse
import contextlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DESCRIPTION = "The main job, end to end: checkpoint, daemons, trainers, SIGKILL, the next start, proof."


def parse_bytes(text: str) -> int:
    """Bytes of "300MB", "1.6GB", "64KB" or a plain number, as an argument's type."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "": 1}
    unit = next(unit for unit in units if text.upper().endswith(unit))
    with contextlib.suppress(ValueError, OverflowError):
        nbytes = int(float(text[: len(text) - len(unit)]) * units[unit])
        if nbytes > 0:
            return nbytes
    raise argparse.ArgumentTypeError(f"{text!r} is no size: write 300MB, 1.6GB or a number of bytes")


def count(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 1024:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1024")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy/quickstart", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--bytes", "--size", dest="bytes", type=parse_bytes, default=300_000_000,
                        help="size of the checkpoint, e.g. 300MB (default) or 4GB")
    parser.add_argument("--ranks", type=count,
                        help="daemons and trainers (default 2, or 1 where there is one GPU)")
    parser.add_argument("--memory", choices=("auto", "host", "cuda"), default="auto",
                        help="where shards live: on a GPU per rank, or in host memory; auto (default): on GPUs "
                        "where both ckptd and PyTorch see any")
    parser.add_argument("--steps", type=count, default=2, help="training steps before the kill (default 2)")
    parser.add_argument("--keep", action="store_true", help="leave the daemons running")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "main-job",
                        help="where the checkpoint and the sockets go")
    parser.add_argument("--run-dir", type=pathlib.Path, help="where the sockets go instead: their paths are short")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "bin", help=argparse.SUPPRESS)
    parser.add_argument("--trainer", type=pathlib.Path, default=ROOT / "deploy" / "main_job" / "train.py",
                        help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    parse()
