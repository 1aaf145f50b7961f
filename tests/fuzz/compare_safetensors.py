#!/usr/bin/env python3
"""Compares what we accept with what the `safetensors` library accepts.

Writes seeded mutations of safetensors files (safetensors_files.py), opens each
with `safetensors.safe_open` and with a command of ours, and reports every file
that one takes and the other refuses, that they refuse for different reasons, or
of whose tensors they have other names, dtypes, shapes or bytes.

    compare_safetensors.py --batch build/bin/inspect_tool --count 20000
    compare_safetensors.py --command 'ckptctl inspect {}' --count 500

--batch names a program that reads paths from stdin and prints a line for each,
as inspect_tool.cc says; --command is run once per file, exit code 0 means
accepted ("{}" stands for the file; it is appended when missing), and no more is
compared. Exit code 1 when there is a disagreement; the files in question are
kept and named. Exit code 1 also when few of the accepted files were odd.

We differ on purpose in these, and the script counts but does not report them:
  - a tensor stated as an array of its three values, or a dtype stated as
    {"F32": null}: side effects of the library's deserializer, refused here;
  - more than 64 dimensions, names longer than 65,536 bytes, more than a million
    tensors: LimitExceeded here;
  - a number within rounding of the largest double, as the value of an ignored
    key: the library's conversion is approximate there (never generated here);
  - a file whose name ends in .json: an index here (never generated here);
  - a file that is refused, has another name than *.safetensors and does not begin
    as such a file: the sentence is about what else it may be here;
  - faulty tensors with the same offsets: the library checks those in an order
    that differs from run to run. Excused is only what the library says as well,
    asked again.
"""

import argparse
import collections
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile

import safetensors
from safetensors_files import TRAITS, make_file, make_name, traits_of

# What the library says -> the name that we give.
MESSAGES = [
    (r"header too small|file too small", "HeaderTooSmall"),
    (r"header too large", "HeaderTooLarge"),
    (r"invalid header length", "InvalidHeaderLength"),
    (r"invalid UTF-8 in header", "InvalidHeader"),
    (r"invalid JSON in header", "InvalidHeaderDeserialization"),
    (r"invalid offset for tensor", "InvalidOffset"),
    (r"overflow computing buffer size", "ValidationOverflow"),
    (r"does not end up at a byte boundary", "MisalignedSlice"),
    (r"info shape|invalid shape, data type, or offset", "TensorInvalidInfo"),
    (r"incomplete metadata", "MetadataIncompleteBuffer"),
]

# Of the accepted files, at least this share has each trait.
LEAST_SHARE = 0.1


def describe(tensors):
    """What inspect_tool prints of the tensors that the library read."""
    words = ["ok"]
    for name, info in sorted(tensors, key=lambda tensor: tensor[0].encode()):
        extents = ",".join(map(str, info["shape"]))
        words.append("%s:%s:%s:%s" % (name.encode().hex(), info["dtype"], extents,
                                      info["data"].hex()))
    return " ".join(words)


def reference_verdict(path):
    """ "ok" and the tensors, or our name of the library's error."""
    try:
        with safetensors.safe_open(path, "numpy"), open(path, "rb") as file:
            return describe(safetensors.deserialize(file.read()))
    except Exception as error:  # the library raises many kinds
        text = str(error)
        for pattern, name in MESSAGES:
            if re.search(pattern, text):
                return name
        return "other: " + text


def batch_verdicts(tool, paths):
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    out = subprocess.run([tool], input=names, capture_output=True, check=True, timeout=600)
    lines = out.stdout.decode().splitlines()
    if len(lines) != len(paths):
        sys.exit("%s printed %d lines for %d files" % (tool, len(lines), len(paths)))
    return lines


def command_verdict(command, path):
    words = shlex.split(command)
    words = [path if w == "{}" else w for w in words] if "{}" in words else words + [path]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    if done.returncode < 0:
        return "killed by signal %d" % -done.returncode
    return "ok" if done.returncode == 0 else "refused"


def limit_exceeded(reference):
    """Whether tensors that the library accepted are beyond a limit of ours."""
    tensors = [word.split(":") for word in reference.split(" ")[1:]]
    return len(tensors) > 1_000_000 or any(
        len(name) > 2 * 65_536 or shape.count(",") >= 64 for name, _, shape, _ in tensors)


def deliberate(ours, reference, path, blob):
    """Which of the differences in the docstring a disagreement is, if one."""
    if not reference.startswith("ok"):
        if ours in ("SOURCE_INVALID", "SOURCE_UNSUPPORTED") and not path.endswith(".safetensors"):
            return "another name"
        # Each time its map has another order.
        if any(reference_verdict(path) == ours for _ in range(100)):
            return "same offsets"
        return None
    if ours == "LimitExceeded" and limit_exceeded(reference):
        return "limit"
    if ours != "InvalidHeaderDeserialization":
        return None
    as_array = re.search(rb'":\s*\[\s*"[A-Z0-9_]+"\s*,\s*\[', blob)
    as_map = re.search(rb'"dtype"\s*:\s*\{\s*"[A-Z0-9_]+"\s*:\s*null\s*\}', blob)
    return "deserializer" if as_array or as_map else None


def agree(ours, reference, compare_all):
    if not compare_all:
        return ours.startswith("ok") == reference.startswith("ok")
    return ours == reference


def write_files(rng, folder, start, count):
    """Returns (path, bytes) of each: a path from `folder`, where we are, or from the root."""
    files = []
    for number in range(start, start + count):
        blob, name = make_file(rng), make_name(rng, number)
        with open(name, "wb") as file:
            file.write(blob)
        where = rng.choice(["", "./", "../%s/" % os.path.basename(folder), folder + "//"])
        files.append((where + name, blob))
    return files


def verdicts_of(args, paths):
    if args.batch:
        return batch_verdicts(args.batch, paths)
    return [command_verdict(args.command, os.path.abspath(path)) for path in paths]


class Tally:
    """What came of the files."""

    def __init__(self):
        self.verdicts, self.excused, self.traits = (collections.Counter() for _ in range(3))
        self.bad = 0

    def add(self, args, path, blob, ours):
        """Counts one file; True where both agree."""
        reference = reference_verdict(path)
        self.verdicts[re.split("[: ]", reference)[0]] += 1
        if reference.startswith("ok"):
            self.traits.update(traits_of(os.path.basename(path), blob))
        if agree(ours, reference, args.batch is not None):
            return True
        why = deliberate(ours, reference, path, blob)
        if why:
            self.excused[why] += 1
            return True
        self.bad += 1
        print("DISAGREE %r\n  ours: %.300s\n  safetensors: %.300s\n  %r" %
              (os.path.abspath(path), ours, reference, blob[:300]))
        return False

    def scarce(self, count):
        """Traits that too few of the accepted files have, where there are files enough to say."""
        least = LEAST_SHARE * max(self.verdicts["ok"], LEAST_SHARE * count)
        return [trait for trait in TRAITS if self.traits[trait] < least] if count >= 1000 else []

    def print(self, args):
        print("%d files, seed %d, safetensors %s: %d disagreements" %
              (args.count, args.seed, safetensors.__version__, self.bad))
        print("verdicts of the library:", dict(sorted(self.verdicts.items())))
        print("of the accepted, with", dict(self.traits))
        print("differ on purpose:", dict(sorted(self.excused.items())))
        for trait in self.scarce(args.count):
            print("too few accepted files with", trait)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--batch", help="program that reads paths from stdin", type=os.path.abspath)
    how.add_argument("--command", help="command run once per file")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    rng, tally = random.Random(args.seed), Tally()
    folder = tempfile.mkdtemp(prefix="compare_safetensors.")
    back = os.getcwd()
    os.chdir(folder)
    for start in range(0, args.count, 500):
        files = write_files(rng, folder, start, min(500, args.count - start))
        verdicts = verdicts_of(args, [path for path, _ in files])
        for (path, blob), ours in zip(files, verdicts):
            if tally.add(args, path, blob, ours):
                os.unlink(path)
    os.chdir(back)
    tally.print(args)
    if not tally.bad:
        os.rmdir(folder)
    return 1 if tally.bad or tally.scarce(args.count) else 0


if __name__ == "__main__":
    sys.exit(main())
