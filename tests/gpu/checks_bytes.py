"""Every byte that arrives in the GPU's memory is the file's, or what PyTorch would make of it."""

import hashlib
import random

import client
import files
from bench import Bench
from files import Tensor
from gpu_record import Checks

checks = Checks()

# Bits of an element of every type a file may hold.
WIDTHS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64}  # fmt: skip
TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "I16": "int16", "U16": "uint16",
    "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
    "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}  # fmt: skip
RANDOM = random.Random(5)


def some(dtype: str, *shape: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    data = RANDOM.randbytes(count * WIDTHS[dtype] // 8)
    return Tensor(dtype, shape, bytes(b & 1 for b in data) if dtype == "BOOL" else data)


def finite(dtype: str, *shape: int) -> Tensor:
    """Numbers without the NaNs whose bits a cast may choose."""
    import torch

    values = torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    raw = values.to(getattr(torch, TORCH[dtype])).view(torch.uint8)
    return Tensor(dtype, shape, raw.numpy().tobytes())


def home(bench: Bench) -> str:
    """Where PyTorch sees the memory: that of a fake GPU is the host's."""
    if not bench.fake:
        return "cuda"
    import host_view

    host_view.install()
    return "cpu"


def loaded(bench: Bench, group, rank: int, source: str, **options):
    """name -> uint8 array of (*shape, bytes an element), copied from the GPU by PyTorch."""
    import ckptd.torch
    import torch

    tensors = ckptd.torch.load_file(
        source, home(bench), mode="shared", address=group.address(rank), **options
    )
    found = {}
    for name, tensor in tensors.items():
        width = tensor.element_size()
        flat = tensor.contiguous().reshape(-1).view(torch.uint8).cpu()
        found[name] = (str(tensor.dtype), flat.numpy().reshape(*tensor.shape, width))
    return found


def assert_part(name, got, want):
    assert got.shape == want.shape, f"{name}: {got.shape} instead of {want.shape}"
    assert got.tobytes() == want.tobytes(), f"{name}: other bytes than the file's"


@checks("every tensor of every type, read back by the driver, has the file's bytes")
def all_types_by_driver(bench):
    tensors = {f"of.{dtype}": some(dtype, 24, 40) for dtype in WIDTHS}
    tensors["odd"] = some("BF16", 701, 1111)
    tensors["one"] = some("F32", 1)
    tensors["scalar"] = some("I64")
    tensors["empty"] = some("F16", 0, 4)
    source = files.write(bench.path() / "m.safetensors", tensors)
    group = bench.group(1)
    reader = bench.client(group.address(0))
    client.ask(reader, "load", source=source, layout="replicate:1")
    client.ask(reader, "acquire")
    sums = client.ask(reader, "digest")
    assert sums == {name: hashlib.sha256(t.data).hexdigest() for name, t in tensors.items()}
    return {"tensors": len(tensors)}


@checks("every tensor of every type is the file's for PyTorch", "torch", "numpy")
def all_types_in_torch(bench):
    import torch

    names = [dtype for dtype in TORCH if hasattr(torch, TORCH[dtype])]
    tensors = {dtype: some(dtype, 33, 8) for dtype in names}
    source = files.write(bench.path() / "m.safetensors", tensors)
    found = loaded(bench, bench.group(1), 0, source, layout="replicate:1")
    for dtype, tensor in tensors.items():
        assert found[dtype][0] == f"torch.{TORCH[dtype]}", found[dtype][0]
        assert_part(dtype, found[dtype][1], files.part(tensor, 0, 0, 1))
    return {"types": names}


LAYOUT = {
    "rules": [
        {"match": "columns.*", "placements": ["shard(1)"]},
        {"match": "deep.*", "placements": ["shard(2)"]},
        {"match": "rows.*", "placements": ["shard(0)"], "padded": True},
    ],
    "default": {},
}


def in_parts(bench, ranks):
    tensors = {
        "columns.even": some("BF16", 96, 64 * ranks),
        "columns.odd": some("F32", 37, 16 * ranks + 1),
        "columns.bytes": some("U8", 301, 7),
        "deep.half": some("F16", 5, 6, 11),
        "rows.even": some("BF16", 8 * ranks, 257),
        "rows.uneven": some("F32", 8 * ranks + 3, 33),
        "rows.few": some("F64", 1, 3),
        "rows.large": some("BF16", 1201, 999),
        "whole": some("I32", 77),
    }
    dims = {"columns": 1, "deep": 2, "rows": 0}
    source = files.write(bench.path() / "m.safetensors", tensors)
    group = bench.group(ranks)
    layout = {"world_size": ranks, "mesh": {"shape": [ranks]}, **LAYOUT}
    for rank in range(ranks):
        found = loaded(bench, group, rank, source, layout=layout)
        for name, tensor in tensors.items():
            dim = dims.get(name.split(".")[0])
            whole = dim is None
            want = files.part(tensor, dim or 0, 0 if whole else rank, 1 if whole else ranks)
            assert_part(f"rank {rank}: {name}", found[name][1], want)
    devices = {group.info(rank)["memory"]["device_uuid"] for rank in range(ranks)}
    return {"daemons": ranks, "GPUs": len(devices)}


@checks("two daemons on one GPU give each rank its rows, columns and depths", "torch", "numpy")
def two_ranks(bench):
    return in_parts(bench, 2)


@checks("four daemons on one GPU give each rank its rows, columns and depths", "torch", "numpy")
def four_ranks(bench):
    return in_parts(bench, 3 if bench.quick else 4)


@checks("casts are PyTorch's, bit for bit, and exempted names keep float32", "torch", "numpy")
def casts(bench):
    import torch

    tensors = {
        f"{d}.{i}": finite(d, 65, 33 + i) for d in ("F32", "F16", "BF16", "F64") for i in (0, 1)
    }
    tensors["norm"], tensors["count"] = finite("F32", 65), some("I64", 9)
    source = files.write(bench.path() / "m.safetensors", tensors)
    group = bench.group(2)
    goals = ["BF16"] if bench.quick else ["BF16", "F16", "F32"]
    for goal in goals:
        for rank in range(2):
            found = loaded(
                bench, group, rank, source, layout="fsdp:2", dtype=goal, keep_fp32=["norm"]
            )
            for name, tensor in tensors.items():
                own = torch.frombuffer(
                    bytearray(tensor.data), dtype=getattr(torch, TORCH[tensor.dtype])
                )
                kept = name == "norm" or not own.is_floating_point()
                cast = own if kept else own.to(getattr(torch, TORCH[goal]))
                raw = Tensor(goal, tensor.shape, cast.view(torch.uint8).numpy().tobytes())
                assert_part(
                    f"{goal}: rank {rank}: {name}", found[name][1], files.part(raw, 0, rank, 2)
                )
    return {"to": goals}
