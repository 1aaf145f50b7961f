#!/usr/bin/env python3
"""Compares what we accept with what the `safetensors` library accepts.

Writes seeded mutations of safetensors files, opens each with
`safetensors.safe_open` and with a command of ours, and reports every file that
one takes and the other refuses, or that they refuse for different reasons.

    compare_safetensors.py --batch build/bin/inspect_tool --count 20000
    compare_safetensors.py --command 'ckptctl inspect --offline {}' --count 500

--batch names a program that reads paths from stdin and prints "ok ..." or an
error name per line; --command is run once per file, exit code 0 means accepted
("{}" stands for the file; it is appended when missing). Exit code 1 when there
is a disagreement; the files in question are kept and named.

We differ on purpose in these, and the script does not report them:
  - a tensor stated as an array of its three values, or a dtype stated as
    {"F32": null}: side effects of the library's deserializer, refused here;
  - more than 64 dimensions, names longer than 65,536 bytes, more than a million
    tensors: LimitExceeded here;
  - a number within rounding of the largest double, as the value of an ignored
    key: the library's conversion is approximate there (never generated here);
  - two tensors with the same offsets: the library checks them in an order that
    differs from run to run, so either's error may be the one that is named.
"""

import argparse
import collections
import json
import os
import random
import re
import shlex
import struct
import subprocess
import sys
import tempfile

import safetensors

DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}

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

PER_TENSOR = {"InvalidOffset", "ValidationOverflow", "MisalignedSlice", "TensorInvalidInfo"}

TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"false", b"0", b"-0", b"-1",
    b"1.0", b"1e3", b"1e400", b"1e-400", b"0.0", b"0e400", b"00", b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808", b'"dtype":"F32"', b'"shape":[1]', b'"data_offsets":[0,4]', b'"x":{}',
    b'"x":[[{"a":[]}]]', b'"__metadata__":null', b'"__metadata__":{}', b'"__metadata__":{"a":"b"}',
    b'"\\u0000"', b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\q"', b"\\", b"\xff",
    b"\x00", b"\xc3\xa9", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xf4\x90\x80\x80", b"\x7f",
    b"\x01", b" ", b"\t",
    b"\r\n", b"\x0c", b"\xc2\xa0", b"//", b"/**/", b"NaN", b"Infinity", b"+1", b".5", b"5.", b"0x1",
    b'"F4"', b'"F6_E2M3"', b'"f32"', b'"F32 "', b"[" * 130, b"]" * 130, b"[" * 100 + b"]" * 100,
]


def valid_header(rng):
    """A valid header as a Python object, and the bytes of data it describes."""
    header = {}
    if rng.random() < 0.4:
        header["__metadata__"] = {"format": "pt", "na\u00efve": "caf\u00e9"}
    at = 0
    for i in range(rng.choice([0, 1, 1, 2, 3, 5])):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.randrange(4))]
        if DTYPES[dtype] % 8:
            shape.append(4)
        count = 1
        for extent in shape:
            count *= extent
        end = at + count * DTYPES[dtype] // 8
        name = rng.choice(["a", "layer.%d.weight" % i, "\u5c64%d" % i, "b c", ""]) + str(i)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    return header, at


def mutate_structure(rng, header):
    """Changes one field of one tensor, or the set of tensors."""
    names = [n for n in header if n != "__metadata__"]
    if not names:
        return
    name = rng.choice(names)
    entry = header[name]
    kind = rng.randrange(9)
    odd = [-1, 0, 1, 3, 5, 2**32, 2**63, 2**64 - 1, 2**64, 1.0, 1.5, None, "1", True, [], {}]
    if kind == 0 and entry["shape"]:
        entry["shape"][rng.randrange(len(entry["shape"]))] = rng.choice(odd)
    elif kind == 1:
        entry["shape"] = rng.choice(
            [[], [1], [2, 2**63], [0, 2**64 - 1], [2**64 - 1, 2, 0], None, {}, 3])
    elif kind == 2:
        entry["data_offsets"][rng.randrange(2)] = rng.choice(odd)
    elif kind == 3:
        entry["data_offsets"] = rng.choice([[], [0], [0, 4, 8], [4, 0], None, {}, "04", 4])
    elif kind == 4:
        entry["dtype"] = rng.choice(list(DTYPES) + ["F33", "", None, 3, ["F32"], {}, "f32"])
    elif kind == 5:
        del entry[rng.choice(list(entry))]
    elif kind == 6:
        entry[rng.choice(["extra", "Dtype", ""])] = rng.choice(odd)
    elif kind == 7:
        del header[name]
    else:
        header["__metadata__"] = rng.choice(
            [None, {}, [], "x", {"a": 1}, {"a": None}, {"a": {}}, 3])


def mutate_bytes(rng, text):
    """One random edit of the JSON text."""
    at = rng.randrange(len(text) + 1)
    to = min(len(text), at + rng.choice([1, 1, 2, 5, 20]))
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at] + rng.choice(TOKENS) + text[at:]
    if kind == 1:
        return text[:at] + rng.choice(TOKENS) + text[to:]
    if kind == 2:
        return text[:at] + text[to:]
    if kind == 3:
        return text[:to] + text[at:]
    if kind == 4:
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1:]
    spots = [m.start() for m in re.finditer(rb"[{\[,]", text)] or [0]
    at = rng.choice(spots) + 1
    return text[:at] + rng.choice(TOKENS) + b"," + text[at:]


def make_file(rng):
    """The bytes of one test file."""
    header, data_bytes = valid_header(rng)
    style = rng.random()
    if style < 0.4:
        mutate_structure(rng, header)
    text = json.dumps(header, ensure_ascii=rng.random() < 0.3,
                      separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
    if rng.random() < 0.3:
        text += b" " * rng.randrange(9)
    if style > 0.35:
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            text = mutate_bytes(rng, text)
    length = len(text)
    blob = text + bytes(data_bytes)
    edit = rng.random()
    if edit < 0.05:
        blob = blob[:rng.randrange(len(blob) + 1)]
    elif edit < 0.1:
        blob += bytes(rng.choice([1, 2, 8]))
    elif edit < 0.15:
        length = rng.choice([length + 1, max(0, length - 1), 0, 10**8, 10**8 + 1, 2**63,
                             2**64 - 1, 2**64 - 8])
    blob = struct.pack("<Q", length) + blob
    return blob[:rng.randrange(12)] if edit > 0.98 else blob


def reference_verdict(path):
    """ "ok N" or our name of the library's error."""
    try:
        with safetensors.safe_open(path, "numpy") as handle:
            return "ok %d" % len(list(handle.keys()))
    except Exception as error:  # the library raises many kinds
        text = str(error)
        for pattern, name in MESSAGES:
            if re.search(pattern, text):
                return name
        return "other: " + text


def batch_verdicts(tool, paths):
    out = subprocess.run([tool], input="\n".join(paths) + "\n", capture_output=True, text=True,
                         check=True, timeout=600)
    lines = out.stdout.splitlines()
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


def deliberate(ours, reference, blob):
    """Whether a disagreement is one of those in the docstring."""
    if not reference.startswith("ok"):
        return ours in PER_TENSOR and reference in PER_TENSOR
    if ours == "LimitExceeded":
        return True
    if ours != "InvalidHeaderDeserialization":
        return False
    as_array = re.search(rb'":\s*\[\s*"[A-Z0-9_]+"\s*,\s*\[', blob)
    as_map = re.search(rb'"dtype"\s*:\s*\{\s*"[A-Z0-9_]+"\s*:\s*null\s*\}', blob)
    return bool(as_array or as_map)


def agree(ours, reference, compare_names):
    if not compare_names:
        return ours.startswith("ok") == reference.startswith("ok")
    return ours == reference


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--batch", help="program that reads paths from stdin")
    how.add_argument("--command", help="command run once per file")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    rng = random.Random(args.seed)
    folder = tempfile.mkdtemp(prefix="compare_safetensors.")
    tally, bad = collections.Counter(), 0
    for start in range(0, args.count, 500):
        blobs = [make_file(rng) for _ in range(min(500, args.count - start))]
        paths = [os.path.join(folder, "%d.safetensors" % (start + i)) for i in range(len(blobs))]
        for path, blob in zip(paths, blobs):
            with open(path, "wb") as file:
                file.write(blob)
        if args.batch:
            verdicts = batch_verdicts(args.batch, paths)
        else:
            verdicts = [command_verdict(args.command, path) for path in paths]
        for path, blob, ours in zip(paths, blobs, verdicts):
            reference = reference_verdict(path)
            tally[re.split("[: ]", reference)[0]] += 1
            if agree(ours, reference, args.batch is not None) or deliberate(ours, reference, blob):
                os.unlink(path)
                continue
            bad += 1
            print("DISAGREE %s\n  ours: %s\n  safetensors: %s\n  %r" %
                  (path, ours, reference, blob[:300]))
    print("%d files, seed %d, safetensors %s: %d disagreements" %
          (args.count, args.seed, safetensors.__version__, bad))
    print("verdicts of the library:", dict(sorted(tally.items())))
    if not bad:
        os.rmdir(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
