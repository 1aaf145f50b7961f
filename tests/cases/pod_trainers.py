"""Trainers of a pod: python pod_trainers.py FOLDER UID GROUP MODELS

One container with two ranks, in PID, mount and IPC namespaces of its own. Only there the folder MODELS has
files, which are for UID alone. Each rank writes FOLDER/rank-RANK.json: what it has done, or its traceback.
"""

import datetime
import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from users import become, enter_container

RANKS = 2


def model():
    with torch.device("meta"):
        made = nn.Sequential(nn.Linear(16, 10), nn.Linear(10, 6))
    fully_shard(made, mesh=init_device_mesh("cpu", (RANKS,)))
    return made


def numbers(seed):
    torch.manual_seed(seed)
    plain = nn.Sequential(nn.Linear(16, 10), nn.Linear(10, 6))
    return {name: value.detach().clone() for name, value in plain.state_dict().items()}


def assert_holds(sharded, state, rank):
    for name, parameter in sharded.named_parameters():
        chunks = state[name].chunk(RANKS)
        expected = chunks[rank] if rank < len(chunks) else state[name][:0]
        assert torch.equal(parameter.to_local(), expected), name


def train(folder, models, rank):
    import ckptd.torch

    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    done = {}
    loaded = model()
    result = ckptd.torch.load_into(loaded, os.path.join(models, "private"))
    assert_holds(loaded, numbers(1), rank)
    done["load_into"] = result.checkpoint
    again = model()
    done["resident again"] = ckptd.torch.load_into(again, os.path.join(models, "private")).resident
    assert_holds(again, numbers(1), rank)
    spread = model()
    state = numbers(2) if rank == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    ckptd.torch.set_model_state_dict(spread, state, options=options)
    assert_holds(spread, numbers(2), rank)
    with ckptd.connect() as client:
        done["sources"] = [checkpoint.source for checkpoint in client.list()]
    dist.barrier()
    dist.destroy_process_group()
    return done


def main(folder, uid, group, models):
    from safetensors.torch import save_file

    enter_container([models])
    private = os.path.join(models, "private")
    os.makedirs(private, mode=0o700)
    files = (("model-00001-of-00002.safetensors", "0."), ("model-00002-of-00002.safetensors", "1."))
    for name, prefix in files:
        part = {key: value for key, value in numbers(1).items() if key.startswith(prefix)}
        save_file(part, os.path.join(private, name))
    for name in ("", *(name for name, _ in files)):
        os.chown(os.path.join(private, name), uid, uid)
        os.chmod(os.path.join(private, name), 0o700 if not name else 0o600)
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            become(uid, [group])
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
            try:
                outcome = train(folder, models, rank)
            except BaseException:
                outcome = {"failed": traceback.format_exc()}
            with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
                json.dump(outcome, file)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
