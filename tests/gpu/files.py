"""Checkpoints for checks, and what a rank's part of them is, by other code than what is checked."""

import json
import os
import struct
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

BLOCK = 64 << 20


class Tensor(NamedTuple):
    dtype: str  # as in a safetensors header
    shape: Tuple[int, ...]
    data: bytes


def header(tensors: Iterable[Tuple[str, str, Sequence[int], int]]) -> Tuple[bytes, int]:
    """The head of a file of (name, dtype, shape, bytes) in that order; bytes that follow it."""
    entries, at = {}, 0
    for name, dtype, shape, nbytes in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def write(path, tensors: Dict[str, Tensor]) -> str:
    rows = [(name, t.dtype, t.shape, len(t.data)) for name, t in tensors.items()]
    with open(path, "wb") as file:
        file.write(header(rows)[0])
        for tensor in tensors.values():
            file.write(tensor.data)
    return str(path)


def contents(path):
    """Yields (name, bytes) of every tensor of a file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            yield name, file.read(end - begin)


def sparse(path, nbytes: int, count: int) -> str:
    """`count` tensors of zeros that take no room on the disk."""
    each = nbytes // count // 2
    head, size = header([(f"layer.{i}.weight", "BF16", (each,), each * 2) for i in range(count)])
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return str(path)


def random_files(folder, nbytes: int, parts: int, matrix: int = 16 << 20) -> List[str]:
    """Files of random BF16 matrices of about `matrix` bytes, finite numbers all; their paths."""
    import numpy

    bits = numpy.random.default_rng(20).integers(0, 1 << 16, BLOCK // 2, dtype=numpy.uint16)
    block = ((bits & 0x80FF) | 0x3C00).tobytes()
    count = max(1, nbytes // parts // matrix)
    paths = []
    for part in range(parts):
        rows = [
            (f"part.{part}.{i}.weight", "BF16", (matrix // 8192, 4096), matrix)
            for i in range(count)
        ]
        path = os.path.join(folder, f"model-{part + 1:05d}-of-{parts:05d}.safetensors")
        with open(path, "wb") as file:
            file.write(header(rows)[0])
            for i in range(count):
                # No two matrices alike, and no random number made twice over.
                start = (part * count + i) * 4098 % (BLOCK - matrix)
                file.write(memoryview(block)[start : start + matrix])
            file.flush()
            os.fsync(file.fileno())
        paths.append(path)
    names = {}
    for part, path in enumerate(paths):
        names.update({f"part.{part}.{i}.weight": os.path.basename(path) for i in range(count)})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": names}, file)
    return paths


def drop_from_page_cache(paths: Iterable[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def touch(paths: Iterable[str]) -> None:
    """Reads them, so that the page cache holds them."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(BLOCK):
                pass


def part(tensor: Tensor, dim: int, rank: int, ranks: int):
    """A rank's chunk along `dim` as PyTorch cuts it: uint8 of (*shape, bytes an element)."""
    import numpy

    elements = 1
    for size in tensor.shape:
        elements *= size
    width = len(tensor.data) // max(elements, 1)
    whole = numpy.frombuffer(tensor.data, dtype=numpy.uint8).reshape(*tensor.shape, width)
    chunk = -(-tensor.shape[dim] // ranks)
    begin = min(tensor.shape[dim], rank * chunk)
    end = min(tensor.shape[dim], begin + chunk)
    return whole[(slice(None),) * dim + (slice(begin, end),)]
