"""One rank of a job whose process group is made anew: python regrouped.py FOLDER RANK WORLD.

Ranks 0 and 1 fail together in a group of their own, then all ranks load in a new one; then the last
process is killed. Writes FOLDER/rank-RANK.json: what the load and the call after that came to.
"""

import datetime
import json
import os
import pathlib
import sys
import time

import ckptd.torch
import torch
import torch.distributed as dist
from fsdp_bench import numbers
from spread_bench import Bare, only_on_first, sharded


def join(folder, name, rank, world):
    store = dist.FileStore(str(folder / name), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))


def attempt(call):
    began = time.monotonic()
    try:
        call()
        return ["", "", time.monotonic() - began]
    except Exception as error:
        return [type(error).__name__, str(error), time.monotonic() - began]


class Job:
    def __init__(self, rank):
        self.rank = rank


def main(folder, rank, world):
    folder, found = pathlib.Path(folder), []
    address = os.environ["CKPTD_TEST_ADDRESS"].replace("{rank}", str(rank))

    def load():
        module = ckptd.torch.DistModule(sharded(Bare), address=address, timeout=40)
        module.load_state_dict(only_on_first(Job(rank), numbers(Bare())))

    if rank < 2:
        join(folder, "first", rank, 2)
        found.append(attempt(lambda: ckptd.torch.broadcast_and_shard_state_dict({}, {}, {}, timeout=40)
                             if rank else ckptd.torch.shard_broadcasted_state_dict({}, {}, timeout=40)))
        dist.barrier()
        dist.destroy_process_group()
    join(folder, "second", rank, world)
    found.append(attempt(load))
    dist.barrier()
    if rank == world - 1:
        os.kill(os.getpid(), 9)
    found.append(attempt(load))
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
