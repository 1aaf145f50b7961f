"""A rank that is killed between its load and its first step, and the one that comes after it: FOLDER RANK WORLD WHICH.

"first" trains, saves and trains on, writes its losses, loads into another model and ends by SIGKILL.
"next" loads the same, and writes what it found.
"""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from fsdp_bench import Bench, train
from resume_bench import adamw, by_layer, load, new, saved_by_dcp, trained


def main(folder, rank, world, which):
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, f"store-{which}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    bench = Bench(os.environ["CKPTD_TEST_ADDRESS"].replace("{rank}", str(rank)), folder, rank, world, "killed")
    path = os.path.join(folder, "killed-1")
    if which == "first":
        whole = trained(by_layer, adamw)
        assert saved_by_dcp(bench, *whole) == path
        write(folder, which, rank, {"losses": train(*whole)})
    model, optimizer = new(by_layer, adamw)
    result = load(bench, model, optimizer, path)
    dist.barrier()
    if which == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    resident = [result.model.resident, result.optimizer.resident]
    write(folder, which, rank, {"losses": train(model, optimizer), "resident": resident})
    dist.destroy_process_group()


def write(folder, which, rank, found):
    with open(os.path.join(folder, f"{which}-{rank}.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
