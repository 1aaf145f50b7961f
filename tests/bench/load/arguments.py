"""Arguments that the programs of the benchmark share: checked before anything is built or started."""

import argparse
import os
import pathlib
import signal
import sys


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


def parse(parser):
    """What was asked for. Ends here where that was only to be checked."""
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check_arguments:
        sys.exit()
    return options


def run(main):
    """Calls main(); SIGTERM ends it as Ctrl-C does, with all that it has started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print("bench: interrupted; everything it started has been stopped", file=sys.stderr)
        sys.exit(130)
