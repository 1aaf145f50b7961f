"""Arguments that the programs of the benchmark share: checked before anything is built or started."""

import argparse
import os
import pathlib
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "deploy/main_job"))

import make_checkpoint  # noqa: E402


def count(text):
    """A number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def folder(text):
    """A directory that is there, or was made, and may be written."""
    path = pathlib.Path(text).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"making {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written by this user")
    return path


def output(text):
    """A file that can be written: the figures of half an hour go there."""
    path = pathlib.Path(text).resolve()
    try:
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"writing {path}: {error.strerror}") from error
    return path


def of_loads(program, description, nbytes="1.6GB", ranks=4, rounds=3, size="size of the checkpoint",
             who="daemons and trainers", **more):
    """A parser of what programs take that measure loads of a checkpoint. size, who: help for --bytes and --ranks."""
    parser = argparse.ArgumentParser(prog=f"tests/bench/run {program}".rstrip(), description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, **more)
    parser.add_argument("--bytes", type=make_checkpoint.parse_bytes, default=make_checkpoint.parse_bytes(nbytes),
                        help=f"{size} (default {nbytes})")
    parser.add_argument("--ranks", type=count, default=ranks, help=f"{who} (default {ranks})")
    parser.add_argument("--rounds", type=count, default=rounds,
                        help=f"measured rounds (default {rounds}), after one to warm up")
    parser.add_argument("--directory", type=folder, default=ROOT / "build" / "bench",
                        help="where checkpoints go, and stay for the next run")
    parser.add_argument("--json", type=output, help="write all samples here")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "bin", help=argparse.SUPPRESS)
    return parser


def parse(parser):
    """What was asked for. Ends here where that was only to be checked."""
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check_arguments:
        sys.exit()
    if getattr(options, "directory", None):
        options.directory.mkdir(parents=True, exist_ok=True)  # the default one
    return options


def run(main):
    """Calls main(); SIGTERM ends it as Ctrl-C does, with all that it has started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print("bench: interrupted; everything it started has been stopped", file=sys.stderr)
        sys.exit(130)
