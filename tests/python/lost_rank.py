"""One rank of a job in which another one is lost: python lost_rank.py FOLDER RANK WORLD HOW.

Writes FOLDER/rank-RANK.json: [type, reason, sentence, seconds from the loss to the error]; of one
that comes late, what was said while it was waited for instead of the error.
"""

import datetime
import json
import logging
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from fsdp_cases import numbers
from spread_bench import Bare, only_on_first, ours, sharded


class Job:
    def __init__(self, rank):
        self.rank, self.address = rank, os.environ["CKPTD_TEST_ADDRESS"].replace("{rank}", str(rank))


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


def main(folder, rank, world, how):
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
    try:
        ours(job, sharded(Bare), only_on_first(job, state), timeout=60)
        said = ["nothing", "", "", 0.0]
        if "late" in how and rank != lost:
            said = json.loads((folder / f"said-{rank}.json").read_text())
    except Exception as error:
        moment = float((folder / "moment").read_text())
        said = [type(error).__name__, getattr(error, "reason", ""), str(error), time.monotonic() - moment]
    (folder / f"rank-{rank}.json").write_text(json.dumps(said))
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
