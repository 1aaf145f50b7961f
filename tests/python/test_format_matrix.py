"""Every format by every layout and cast: each rank's shard of each tensor is the one that torch makes.

One process of load_tool plans and places all of them. What the whole tensors are, hash_tool says, which reads
them element by element; tests/python/test_fixtures.py holds its answers against what the real tools saved.
"""

import atexit
import functools
import json
import math
import os
import pathlib
import re
import subprocess

import pytest
from test_fixtures import ROOT, SAYS, cases, path_of, sources

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset  # noqa: E402

# A mesh of two dimensions cuts by rows, then by what is last.
GRID = {"world_size": 6, "meshes": {"m": {"shape": [2, 3]}},
        "default": {"mesh": "m", "placements": ["shard(0)", "shard(-1)"]}}
LAYOUTS = {  # name -> (layout, shape of the mesh, placements of a tensor of so many dimensions)
    **{f"fsdp:{n}": (f"fsdp:{n}", (n,), lambda dims: [Shard(0)]) for n in (1, 2, 3, 4, 6)},
    "hsdp:2x3": ("hsdp:2x3", (2, 3), lambda dims: [Replicate(), Shard(0)]),
    "grid:2x3": (json.dumps(GRID), (2, 3), lambda dims: [Shard(0), Shard(dims - 1)]),
}
CASTS = {"": None, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8, "C32": 4, "C64": 8,
         "C128": 16, "BITS8": 1, "BITS16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1,
         "F8_E5M2FNUZ": 1}


class Tool:
    """A program that answers lines with a JSON object, and bytes behind it."""

    def __init__(self, name):
        build = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build"))
        if not (build / "bin" / name).exists():
            pytest.skip(f"{name} is not built")
        self.process = subprocess.Popen([build / "bin" / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self.process.kill)

    def ask(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.read(int(self.process.stdout.readline())))
        return answer, self.process.stdout.read

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def load():
    tool = Tool("load_tool")
    yield tool.ask
    tool.close()


PATHS = list(dict.fromkeys(path_of(case, one.path) for case in cases() if case not in SAYS for one in sources(case)))


@functools.cache
def whole():
    """source -> (its format, name -> (dtype, tensor of bytes or floats)), of all that can be opened."""
    found = dict.fromkeys(PATHS)
    # hash_tool flushes when it ends.
    answers, _ = Tool("hash_tool").process.communicate("".join(f"{path}\n" for path in PATHS).encode())
    for path in found:
        length, answers = answers.split(b"\n", 1)
        answer, answers = json.loads(answers[:int(length)]), answers[int(length):]
        tensors = {}
        for one in answer.get("tensors", []):
            data, answers = answers[:one["bytes"]], answers[one["bytes"]:]
            tensors[one["name"]] = one["dtype"], as_tensor(data, one["dtype"], one["shape"])
        if "error" not in answer:
            found[path] = answer["format"], tensors
    return {path: contents for path, contents in found.items() if contents is not None}


def as_tensor(data, dtype, shape):
    """Floats that can be cast as such; else each element as its bytes. None: elements are less than a byte."""
    if dtype in FLOATS:
        flat = torch.frombuffer(bytearray(data), dtype=FLOATS[dtype]) if data else torch.empty(0, dtype=FLOATS[dtype])
        return flat.reshape(shape)
    if dtype not in SIZES:
        return None
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.reshape([*shape, SIZES[dtype]])


@functools.cache
def box(shape, layout, rank):
    """(offsets, sizes) of a rank's part, as torch has it."""
    _, mesh, placements = LAYOUTS[layout]
    if not shape:
        return (), ()
    coordinate = [int(i) for i in torch.unravel_index(torch.tensor(rank), mesh)]
    local, offset = _compute_local_shape_and_global_offset(shape, mesh, coordinate, placements(len(shape)))
    return tuple(offset), tuple(local)


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def check(path, layout, cast, load):
    answer, read = load("\t".join((path, LAYOUTS[layout][0], cast)))
    assert "error" not in answer, answer["error"]
    slabs = [read(size) for size in answer["slabs"]]
    _, tensors = whole()[path]
    assert len(slabs) == math.prod(LAYOUTS[layout][1])
    for rank, (table, slab) in enumerate(zip(answer["ranks"], slabs)):
        held = {row["name"]: row for row in table}
        for name, (dtype, full) in tensors.items():
            if full is None:
                continue
            row, floats = held.pop(name), dtype in FLOATS
            dims = full.dim() if floats else full.dim() - 1
            offsets, sizes = box(tuple(full.shape[:dims]), layout, rank)
            want = full[tuple(slice(at, at + size) for at, size in zip(offsets, sizes))]
            if floats and cast:
                dtype, want = cast, want.to(CASTS[cast])
            got = as_tensor(slab[row["offset"]:row["offset"] + row["bytes"]], dtype, row["shape"])
            if floats and cast and got.shape == want.shape:  # in some casts kernels of torch differ in the bits of NaN
                got = torch.where(got.isnan() & want.isnan(), want, got)
            assert row["dtype"] == dtype and same_bits(got, want), f"{name} of rank {rank} by {layout} as {cast or 'is'}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[len(str(ROOT / "tests/fixtures")) + 1:])
def test_shards_are_torch_s(path, load):
    if path not in whole():
        pytest.skip("it is not read")  # tests/python/test_fixtures.py says which are
    for layout in LAYOUTS:
        for cast in CASTS:
            check(path, layout, cast, load)


def test_every_format_is_among_them():
    registered = re.findall(r"formats/(\w+)/format\.h", (ROOT / "common/source/registry.cc").read_text())
    # Parts of several formats in one folder are a format of its own; nothing is read as unrecognised.
    assert {kind for kind, _ in whole().values()} == {*registered, "parts"} - {"unrecognised"}
