"""Whether every rank of a group on fake GPUs has just the source's bytes, by what its client is handed.

    python shard_bytes.py ADDRESSES SOURCE CHECKPOINT LAYOUT DTYPE

A process of its own, which sees the GPUs as trainers do. What ranks hash themselves would not tell: who was
sent wrong bytes hashes these."""

import json
import os
import pathlib

import warm

HERE = pathlib.Path(__file__).resolve().parent


def shard(tensor, name, rank, layout):
    """The part of a tensor that a rank has of it: fsdp:N, replicate:N, hsdp:RxN, or @ and a file of rules."""
    import torch

    kind, _, sizes = layout.partition(":")
    if layout.startswith("@"):
        rules = json.loads(pathlib.Path(layout[1:]).read_text())
        whole = any(rule["match"] == name and not rule.get("placements") for rule in rules["rules"])
        parts = 1 if whole else rules["world_size"]
    else:
        parts = {"fsdp": 0, "replicate": 1, "hsdp": -1}[kind]
        parts = parts if parts == 1 else int(sizes.split("x")[parts])
    chunks = torch.chunk(tensor, parts)
    place = rank % parts
    return (chunks[place] if place < len(chunks) else tensor[:0]).contiguous()


def raw(tensor):
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def main(addresses, source, checkpoint, layout, dtype):
    import ckptd
    import torch
    from faults import content
    from safetensors.torch import load_file

    path = pathlib.Path(source)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    state = {name: tensor for file in files for name, tensor in load_file(file).items()}
    if dtype:
        state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
    wrong = []
    for rank, address in enumerate(json.loads(addresses)):
        with ckptd.connect(address) as client, client.acquire(checkpoint) as held:
            assert set(held.tensors) == set(state), (rank, sorted(set(held.tensors) ^ set(state)))
            wrong += [(rank, name) for name, tensor in state.items()
                      if content(held.tensors[name]) != raw(shard(tensor, name, rank, layout))]
    print(json.dumps(wrong))


def wrong_tensors(bench, source, checkpoint, layout, dtype=""):
    """[rank, name] of every tensor whose bytes are not the source's, cast to a dtype of PyTorch's where one is named."""
    group = bench.group
    paths = [HERE, HERE.parent / "testing", HERE.parents[1] / "client/python/src"]
    environment = {**group.environment, **bench.fake.environment("trainer"), "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join(map(str, paths))}
    addresses = json.dumps([group.address(rank) for rank in range(group.ranks)])
    program = warm.spawn(["-c", "import sys, shard_bytes; shard_bytes.main(*sys.argv[1:])", addresses, source,
                          checkpoint, layout, dtype], environment, stdout=warm.PIPE, stderr=warm.PIPE)
    try:
        printed, errors = program.communicate(600)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    return json.loads(printed)
