"""One rank of a job in which another one is lost: python lost_rank.py FOLDER RANK WORLD HOW FUNCTION...

Calls the FUNCTIONs one after the other, and writes FOLDER/rank-RANK.json: for each [type, reason,
sentence, seconds from the loss, or from the call if that came later, to the error]; of a rank that
comes late, what was said while it was waited for instead of the error.
"""

import datetime
import json
import logging
import os
import pathlib
import sys
import time

import ckptd.torch
import torch
import torch.distributed as dist
from fsdp_bench import numbers
from spread_bench import BROADCAST, Bare, only_on_first, ours, sharded


class Job:
    def __init__(self, rank):
        self.rank, self.address = rank, os.environ["CKPTD_TEST_ADDRESS"].replace("{rank}", str(rank))


def by_a_dist_module(job, model, given, **options):
    ckptd.torch.DistModule(model, address=job.address, **options).load_state_dict(given)


def by_a_dict_of_shards(job, model, given, **options):
    options["address"] = job.address
    if job.rank == 0:
        ckptd.torch.broadcast_and_shard_state_dict(given, model.state_dict(), {}, **options)
    else:
        ckptd.torch.shard_broadcasted_state_dict(model.state_dict(), {}, **options)


def by_set_model_state_dict(job, model, given, **options):
    ckptd.torch.set_model_state_dict(model, given, options=BROADCAST, address=job.address, **options)


FUNCTIONS = {
    "fsdp2_load_full_state_dict": ours,
    "DistModule": by_a_dist_module,
    "broadcast_and_shard_state_dict": by_a_dict_of_shards,
    "set_model_state_dict": by_set_model_state_dict,
}


def store_of(folder, rank, world, how):
    if how != "its store goes with it":
        return dist.FileStore(str(folder / "store"), world)
    port = folder / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, True, wait_for_workers=False)
        (folder / "port.part").write_text(str(store.port))
        (folder / "port.part").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(port.read_text()), world, False, wait_for_workers=False)


class Noted(logging.Handler):
    """Leaves what is said in FOLDER/said-RANK.json, with seconds since the others were left alone."""

    def __init__(self, folder, rank):
        super().__init__()
        self.folder, self.path = folder, folder / f"said-{rank}.json"

    def emit(self, record):
        seconds = time.monotonic() - float((self.folder / "moment").read_text())
        self.path.with_suffix(".part").write_text(json.dumps(["", "", record.getMessage(), seconds]))
        self.path.with_suffix(".part").rename(self.path)


def be_late(folder, world):
    """Until all others have said that they wait."""
    while len(list(folder.glob("said-*.json"))) < world - 1:
        time.sleep(0.01)


def be_lost(how):
    if how in ("it is killed", "its store goes with it"):
        os.kill(os.getpid(), 9)
    raise KeyError("a mistake of the trainer")


def heard(job, folder, function, given, timeout):
    """What a call came to, as written for the test."""
    began = time.monotonic()
    try:
        FUNCTIONS[function](job, sharded(Bare), given, timeout=timeout)
        return ["nothing", "", "", 0.0]
    except Exception as error:
        since = max(began, float((folder / "moment").read_text()))
        return [type(error).__name__, getattr(error, "reason", ""), str(error), time.monotonic() - since]


def main(folder, rank, world, how, *functions):
    folder = pathlib.Path(folder)
    store = store_of(folder, rank, world, how)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=60))
    job, state = Job(rank), numbers(Bare())
    lost = 0 if how in ("its store goes with it", "it is rank 0 and late") else world - 1
    if how != "it raises before its first call":
        ours(job, sharded(Bare), only_on_first(job, state))
    dist.barrier()
    if rank == lost:
        (folder / "moment").write_text(str(time.monotonic()))
        be_late(folder, world) if "late" in how else be_lost(how)
    elif "late" in how:
        logging.getLogger("ckptd").addHandler(Noted(folder, rank))
    timeout = 60 if "late" in how else 20
    said = [heard(job, folder, function, only_on_first(job, state), timeout) for function in functions]
    if "late" in how and rank != lost and said[0][0] == "nothing":
        said = [json.loads((folder / f"said-{rank}.json").read_text())]
    (folder / f"rank-{rank}.json").write_text(json.dumps(said))
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
