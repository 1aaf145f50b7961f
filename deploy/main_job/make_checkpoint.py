"""Writes a Llama-shaped safetensors checkpoint of random bf16 weights.

    python make_checkpoint.py DIRECTORY --bytes 500MB
"""

import argparse
import json
import os
import pathlib
import struct
import sys

import numpy as np

import model as llama
from options import parse_bytes

FILE_BYTES = 1_000_000_000  # per file, as checkpoints of real models are split
BLOCK_ELEMENTS = 4 << 20


def split(tensors):
    """Groups of (name, shape) that go into one file each."""
    groups, size = [[]], 0
    for name, shape in tensors:
        nbytes = 2 * int(np.prod(shape))
        if groups[-1] and size + nbytes > FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, shape))
        size += nbytes
    return groups


def write_file(path, tensors, generator):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        nbytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors:
            left = int(np.prod(shape))
            while left:
                n = min(left, BLOCK_ELEMENTS)
                # Random sign, two exponents around 1/128, random mantissa: finite
                # weights of a sensible size in which every element differs.
                bits = np.frombuffer(generator.bytes(2 * n), dtype=np.uint16)
                file.write(((bits & 0x80FF) | 0x3C00).astype(np.uint16).tobytes())
                left -= n
    return offset


def make(directory: pathlib.Path, total: int) -> int:
    """Makes the checkpoint unless it is there already; returns its tensor bytes."""
    shape = llama.Shape.of_bytes(total)
    stamp = directory / "shape.json"
    wanted = {"hidden": shape.hidden, "layers": shape.layers, "intermediate": shape.intermediate}
    groups = split(shape.tensors())
    nbytes = sum(2 * int(np.prod(size)) for group in groups for _, size in group)
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return nbytes
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = os.statvfs(directory.parent)
    if free.f_bavail * free.f_frsize < nbytes * 11 // 10:
        sys.exit(f"make_checkpoint: {directory} has too little space for {nbytes / 1e9:.1f} GB")
    directory.mkdir(exist_ok=True)
    generator = np.random.default_rng(20)
    weight_map = {}
    for i, group in enumerate(groups):
        name = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        write_file(directory / name, group, generator)
        weight_map.update({tensor: name for tensor, _ in group})
    index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    stamp.write_text(json.dumps(wanted))
    return nbytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--bytes", type=parse_bytes, default=parse_bytes("500MB"), help="size, e.g. 500MB or 4GB")
    arguments = parser.parse_args()
    print(make(arguments.directory, arguments.bytes))


if __name__ == "__main__":
    main()
