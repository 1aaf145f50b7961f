"""Other libraries than PyTorch over the daemon's memory."""

import hashlib
import importlib.util

import client
import files
from checks_bytes import some
from gpu_record import Checks, NotShown

checks = Checks()
TYPES = ("BF16", "BOOL", "C64", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U32")


def seen_by(bench, library):
    if bench.fake or importlib.util.find_spec(library) is None:
        raise NotShown(f"it takes a GPU and the package {library}")
    tensors = {dtype: some(dtype, 37, 8) for dtype in TYPES}
    source = files.write(bench.path() / "m.safetensors", tensors)
    reader = bench.client(bench.group(1).address(0))
    # JAX makes no array that may not be written.
    said = client.ask(reader, "load", source=source, layout="replicate:1", mode="exclusive")
    assert "name" in said, said
    client.ask(reader, "acquire", mode="exclusive")
    found = client.ask(reader, "arrays", library=library)
    for dtype, tensor in tensors.items():
        assert found[dtype]["moved"] == 0, f"{dtype}: the array lies elsewhere"
        assert found[dtype]["digest"] == hashlib.sha256(tensor.data).hexdigest(), dtype
    return {"types": len(found)}


@checks("CuPy has every tensor where the daemon put it, and the file's bytes")
def cupy(bench):
    return seen_by(bench, "cupy")


@checks("JAX has every tensor where the daemon put it, and the file's bytes")
def jax(bench):
    return seen_by(bench, "jax")
