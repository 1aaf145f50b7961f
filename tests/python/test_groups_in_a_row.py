"""Process groups that one process has one after the other, as torchrun's addresses name them."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from ports import free_port  # noqa: E402
from worker_group import PYTHONPATH  # noqa: E402

RANK = """
import datetime, os, pathlib, sys, time
import torch.distributed as dist
from ckptd._rpc import Deadline
from ckptd.torch.agree import _agreement
ended = pathlib.Path(sys.argv[1])
for turn in range(3):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    with _agreement.agree("loading", Deadline(120)):
        pass
    dist.barrier()
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":  # whose store listens
        (ended / str(turn)).touch()
    while not (ended / str(turn)).exists():
        time.sleep(0.01)
"""


def test_a_group_begins_anew_when_the_one_before_has_agreed_on_loads(tmp_path):
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path)], env={**env, "RANK": str(rank)},
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=240)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
