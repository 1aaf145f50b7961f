"""Runs the cases of fsdp_cases on one rank: python fsdp_worker.py FOLDER RANK WORLD [CASE ...].

With CKPTD_TEST_ADDRESS (holding {rank}) the cases run against real daemons, one
per rank, instead of a fake one in each process; with CKPTD_TEST_HOST_VIEW (the folder of
host_view) memory of fake GPUs is taken for the host's.

CKPTD_TEST_CASES names another module of cases than fsdp_cases.

Writes FOLDER/rank-RANK.json: case name -> null, or the traceback of its failure.
"""

import contextlib
import datetime
import importlib
import json
import os
import sys
import traceback


def main(folder, rank, world, only):
    os.environ.pop("CKPTD_ADDRESS", None)
    import ckptd._client
    import torch
    import torch.distributed as dist
    from fake_daemon import FakeDaemon
    from fsdp_bench import Bench

    cases = importlib.import_module(os.environ.get("CKPTD_TEST_CASES", "fsdp_cases")).CASES

    if "CKPTD_TEST_HOST_VIEW" in os.environ:
        sys.path.append(os.environ["CKPTD_TEST_HOST_VIEW"])
        import host_view

        host_view.install()
    # Daemons are there before their trainers, or never come.
    ckptd._client.CONNECT_SECONDS = 0.5
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=180)
    )
    outcome = {}
    files = os.path.join(folder, "files")
    os.makedirs(files, exist_ok=True)
    real = os.environ.get("CKPTD_TEST_ADDRESS", "")
    daemon = contextlib.nullcontext() if real else FakeDaemon(folder, rank, world, 4096)
    with daemon:
        address = real.replace("{rank}", str(rank)) if real else daemon.path
        for case in cases[world]:
            if only and case.__name__ not in only:
                continue
            torch.manual_seed(0)
            try:
                case(Bench(address, files, rank, world, case.__name__))
                outcome[case.__name__] = None
            except BaseException:
                outcome[case.__name__] = traceback.format_exc()
            with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
                json.dump(outcome, file)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
