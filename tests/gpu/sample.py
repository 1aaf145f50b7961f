"""Loads on demand, by one loader: python sample.py LOADER SPEC. Answers each line with JSON.

SPEC is JSON: files, address (ckptd's), digest, checkpoint (the same tensors for torch.load).
Everything is imported and the GPU open before; what was loaded is dropped after each answer.
"""

import gc
import json
import sys
import time

import torch

ON_GPU = torch.cuda.is_available()
HOME = "cuda" if ON_GPU else "cpu"
PARTS = {}  # method of ckptd's client -> milliseconds of its last call


def note_parts(*methods):
    """Has them noted from now on: what is left of a load is PyTorch's tensors."""
    from ckptd._client import Client

    def timed(name, method):
        def call(*arguments, **options):
            begin = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                PARTS[name] = round((time.perf_counter() - begin) * 1e3, 2)

        return call

    for name in methods:
        setattr(Client, name, timed(name, getattr(Client, name)))


def ckptd_load(spec):
    import ckptd.torch

    source = spec.get("folder") or spec["files"][0]
    return ckptd.torch.load_file(
        source, HOME, mode="shared", address=spec["address"], digest=spec.get("digest", True)
    )


def safetensors_load(spec):
    from safetensors.torch import load_file

    found = {}
    for path in spec["files"]:
        found.update(load_file(path, device=HOME))
    return found


def torch_load(spec):
    loaded = torch.load(spec["checkpoint"], map_location="cpu", weights_only=True)
    return {name: tensor.to(HOME) for name, tensor in loaded.items()}


LOADERS = {"ckptd": ckptd_load, "safetensors": safetensors_load, "torch.load": torch_load}


def settle():
    if ON_GPU:
        torch.cuda.synchronize()


def checksum(tensors):
    """Of all bytes and their order within tensors; equal for equal loads."""
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1).view(torch.int16)
        half = flat.numel() // 2
        total = (total * 31 + int(flat.sum(dtype=torch.int64))) % (1 << 61)
        total = (total * 31 + int(flat[:half].sum(dtype=torch.int64))) % (1 << 61)
    return total


def main(loader, text):
    torch.set_num_threads(1)
    if not ON_GPU:
        import host_view

        host_view.install()
    torch.empty(1, device=HOME)
    settle()
    if loader == "ckptd":
        import ckptd.torch  # noqa: F401
        import grpc  # noqa: F401

        note_parts("device", "load", "acquire", "close")
    spec = json.loads(text)
    for line in sys.stdin:
        words = line.split()
        begin = time.perf_counter()
        tensors = LOADERS[loader](spec)
        settle()
        seconds = time.perf_counter() - begin
        answer = {"seconds": seconds, "tensors": len(tensors), "parts ms": dict(PARTS)}
        if "check" in words:
            answer["checksum"] = checksum(tensors)
        print(json.dumps(answer), flush=True)
        tensors = None
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()


def save_for_torch(path, files):
    """The same tensors as torch.save writes them."""
    from safetensors.torch import load_file

    found = {}
    for file in files:
        found.update(load_file(file))
    torch.save(found, path)
