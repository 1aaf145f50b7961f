"""Runs the cases of fsdp_cases on one rank against a real daemon.

python real_fsdp_worker.py FOLDER ADDRESS RANK WORLD; writes FOLDER/rank-RANK.json.
"""

import datetime
import json
import os
import sys
import traceback


def main(folder, address, rank, world):
    import torch
    import torch.distributed as dist
    from fsdp_cases import CASES, Bench
    from safetensors.torch import save_file

    class RealBench(Bench):
        """One checkpoint for all ranks: rank 0's daemon reads it."""

        saved = 0

        def save(self, tensors):
            RealBench.saved += 1
            path = os.path.join(self.folder, f"case-{RealBench.saved}.safetensors")
            if self.rank == 0:
                save_file(tensors, path)
            dist.barrier()
            return path

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=60))
    outcome = {}
    for case in CASES[world]:
        torch.manual_seed(0)
        try:
            case(RealBench(address, folder, rank, world))
            outcome[case.__name__] = None
        except BaseException:
            outcome[case.__name__] = traceback.format_exc()
        with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
            json.dump(outcome, file)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
