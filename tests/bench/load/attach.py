"""A fresh trainer that attaches to what is resident: python attach.py tensors|into SOURCE COUNT.

Prints JSON: seconds of the first call in this process and of five later ones.
"""

import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ckptd.torch
import grpc  # noqa: F401  imported by the first call otherwise


def model_of(count):
    with torch.device("meta"):
        layers = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(count)))
    return fully_shard(layers, mesh=init_device_mesh("cpu", (1,)))


def tensors(source, _):
    start = time.perf_counter()
    found = ckptd.torch.load_file(source)
    return time.perf_counter() - start, found


def into(source, count):
    model = model_of(count)
    start = time.perf_counter()
    result = ckptd.torch.load_into(model, source)
    taken = time.perf_counter() - start
    assert not result.copied and result.tensor_count == count
    return taken, model


def main(what, source, count):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    taken = []
    for _ in range(6):
        seconds, kept = {"tensors": tensors, "into": into}[what](source, count)
        taken.append(seconds)
        del kept
        gc.collect()
    print(json.dumps({"first": taken[0], "later": sorted(taken[1:])}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
