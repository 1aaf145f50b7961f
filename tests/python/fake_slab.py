"""What the fake daemon does with bytes: reads a file, cuts it up, lays it out in memfds.

Placement is worked out on index lists with NumPy, independently of the daemon's
own arithmetic.
"""

import fcntl
import ctypes
import json
import os
import struct

import numpy as np
from ckptd import _dtypes

ALIGNMENT = 512
F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 2, 4, 16


class Refusal(Exception):
    def __init__(self, code, reason, message, facts=None):
        super().__init__(message)
        self.code, self.reason, self.message, self.facts = code, reason, message, facts or {}


def offered(data):
    """The safetensors file that a process offers by one that starts with CKPTDMEM."""
    (count,) = struct.unpack("<Q", data[8:16])
    at = 16 + 16 * count
    (length,) = struct.unpack("<Q", data[at : at + 8])
    ranges = struct.iter_unpack("<QQ", data[16:at])
    values = (ctypes.string_at(address, size) for address, size in ranges)  # this very process
    return data[at : at + 8 + length] + b"".join(values)


def of_torch(path):
    """The tensors of a file of torch, as a safetensors file."""
    import safetensors.torch
    import torch

    return safetensors.torch.save({name: t.contiguous() for name, t in torch.load(path, weights_only=True).items()})


def read_file(path):
    """name -> (Dtype, shape, file offset, bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(b"CKPTDMEM"):
        data = offered(data)
    elif data.startswith(b"PK"):
        data = of_torch(path)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    base = 8 + length
    return {
        name: (
            _dtypes.BY_NAME[entry["dtype"]],
            tuple(entry["shape"]),
            base + entry["data_offsets"][0],
            data[base + entry["data_offsets"][0] : base + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def chunk(indices, parts, which):
    size = -(-len(indices) // parts)
    return indices[which * size : (which + 1) * size]


def local_indices(sharding, meshes, shape, rank):
    """Index list per dimension, and the length of chunk 0 along the padded dimension."""
    lists = [list(range(size)) for size in shape]
    mesh = meshes[sharding.mesh]
    where = np.argwhere(np.array(mesh.ranks).reshape(tuple(mesh.shape)) == rank)[0]
    steps = list(enumerate(sharding.placements))
    if sharding.HasField("padded_dim"):
        # FSDP2 cuts what tensor parallelism has left: strided placements come last.
        steps = [s for s in steps if s[1].kind != 3] + [s for s in steps if s[1].kind == 3]
    padded = None
    for at, placement in steps:
        if placement.kind == 1 or mesh.shape[at] == 1:
            continue
        dim = placement.dim % max(len(shape), 1)
        before, parts = lists[dim], mesh.shape[at]
        if placement.kind == 2 or sharding.HasField("padded_dim"):
            lists[dim] = chunk(before, parts, where[at])
        else:
            pieces = [
                chunk(before, placement.split_factor, i) for i in range(placement.split_factor)
            ]
            lists[dim] = [i for piece in pieces for i in chunk(piece, parts, where[at])]
        if sharding.HasField("padded_dim") and dim == sharding.padded_dim:
            padded = len(chunk(before, parts, 0))
    return lists, padded


def joined(array, boxes):
    """The parts of `array` in `boxes`, one after another along dimension 0."""
    parts = []
    for box in boxes:
        index = tuple(slice(at, at + size) for at, size in zip(box.offsets, box.extents))
        parts.append(array[index])
    return np.concatenate(parts) if array.ndim else array


def cast(array, source, target, name=""):
    if not target or target == source.number:
        return array, source
    row = _dtypes.BY_NUMBER[target]
    if {source.number, target} - _dtypes.CASTABLE:
        raise Refusal(3, "LAYOUT_MISMATCH", f"cannot cast {source.name} to {row.name}", {"tensor": name})
    wide = (
        array.astype("f8")
        if source.name != "BF16"
        else (array.astype("u4") << 16).view("f4").astype("f8")
    )
    if row.name != "BF16":
        return wide.astype(row.numpy), row
    bits = wide.astype("f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(
        "u2"
    ), row  # to nearest, ties to even; no NaN here


class Slab:
    """Tensors laid out one after another in sealed memfd segments."""

    def __init__(self, segment_bytes):
        self.segment_bytes = segment_bytes
        self.rows, self.aliases, self.parts, self.size = [], [], [], 0
        self.unexpected = []

    def add(self, name, row, array, padded_count):
        data = np.ascontiguousarray(array).tobytes()
        padded = padded_count * row.bits // 8
        self.rows.append((name, row.number, array.shape, self.size, len(data), padded))
        self.parts.append((self.size, data))
        self.size = -(-(self.size + padded) // ALIGNMENT) * ALIGNMENT

    def finish(self, writable):
        memory = bytearray(self.size)
        for offset, data in self.parts:
            memory[offset : offset + len(data)] = data
        self.segments, self.sizes = [], []
        for at in range(0, self.size, self.segment_bytes):
            part = memory[at : at + self.segment_bytes]
            fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.write(fd, part)
            if not writable:
                fcntl.fcntl(fd, 1033, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)
            self.segments.append(fd)
            self.sizes.append(len(part))
        self.parts = []

    def descriptors(self, writable):
        """What is sent to a client, who cannot write what is not for writing."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        return [os.open(f"/proc/self/fd/{fd}", flags) for fd in self.segments]

    def describe(self, reply, fd_socket, writable):
        reply.memfd.fd_socket = fd_socket
        reply.memfd.segment_bytes.extend(self.sizes)
        reply.memfd.writable = writable

    def close(self):
        for fd in self.segments:
            os.close(fd)
