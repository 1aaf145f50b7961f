"""Loads whose bytes travel by NCCL: checkpoints, what was asked of the fake NCCL, and how loads end."""

import contextlib
import json
import os
import sys
import time

import torch
from faults import Program
from group import save_in_files, wait_until
from shard_bytes import wrong_tensors

NCCL = ("--comm", "nccl")
HEARTBEATS = ("--heartbeat-interval", "0.25", "--heartbeat-timeout", "3")
# Longest that anybody may wait once something has died.
LIMIT = 30
# A link on which a load of sample() takes so many seconds that none is over before a test has done something.
SLOW = 500_000  # bytes a second


# A client that loads, and keeps its shard until it is told to end.
HOLDER = """
import sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    shard = client.acquire(client.load(sys.argv[2], layout=sys.argv[3]))
print("holds it", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def holding(bench, rank, source, layout):
    own = {**bench.client_environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Program(HOLDER, bench.group.address(rank), source, layout, environment=own) as program:
        assert program.hear() == "holds it"
        yield


def exchanged(bench, call="ncclSend"):
    """What was asked of NCCL so far, as dicts."""
    return [json.loads(line) for line in bench.nccl.trace(f'"{call}"')]


def tensor_bytes(state):
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def sample(folder, rows=257, count=12, files=5):
    """(path, state dict) of a checkpoint of some MB, with rows that no world size divides.

    In several files, each a step of its own: of several readers none reads it all."""
    generator = torch.Generator().manual_seed(5)
    state = {f"layer.{i}.weight": torch.randn(rows + i, 300, generator=generator) for i in range(count)}
    state |= {f"layer.{i}.norm": torch.randn(7, generator=generator) for i in range(count)}
    return save_in_files(folder / "n", state, files), state


def load(bench, source, layout, *options, dtype=""):
    """Loads, and looks that every rank has the source's bytes; the checkpoint, as rank 0 shows it."""
    if dtype:
        options = (*options, "--dtype", {"bfloat16": "BF16"}[dtype])
    answer = bench.group.ctl("load", source, "--layout", layout, *options)
    assert answer.returncode == 0, f"{answer.stderr}\n{bench.group.log()}"
    loaded = json.loads(answer.stdout)
    name = loaded.get("checkpoint", loaded)["name"]
    for rank in range(bench.group.ranks):
        wait_until(lambda rank=rank: bench.group.json("get", name, rank=rank)["state"] == "STATE_ACTIVE", "the load to end")
        assert bench.group.json("verify", name, rank=rank)["mismatched"] == []
    assert wrong_tensors(bench, source, name, layout, dtype) == []
    return bench.group.json("get", name)


def begin(bench, source, layout="fsdp:4"):
    """A load that is under way: something has been asked of NCCL. One that ends before, because
    a busy machine has kept a rank silent, is begun again."""
    for _ in range(3):
        answer = bench.group.json("load", source, "--layout", layout, "--no-wait")
        name = answer.get("checkpoint", answer)["name"]
        try:
            wait_until(lambda: exchanged(bench, "ncclGroupEnd") or not is_loading(bench, name),
                       "the first exchange")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{bench.group.log()}") from None
        if exchanged(bench, "ncclGroupEnd"):
            return name
        bench.group.wait_ready()
    raise AssertionError(f"no load came as far as its first exchange:\n{bench.group.log()}")


def is_loading(bench, name):
    answer = bench.group.ctl("get", name)
    return answer.returncode == 0 and json.loads(answer.stdout)["state"] == "STATE_LOADING"


def failure(bench, name, since, rank=0):
    """How the load ended, in time."""
    def ended():
        found = bench.group.json("get", name, rank=rank)
        return found if found["state"] != "STATE_LOADING" else None
    found = wait_until(ended, f"the load to end:\n{bench.group.log()}", LIMIT)
    assert time.monotonic() - since < LIMIT
    assert found["state"] == "STATE_FAILED", found
    return found["failure"]
