"""How processes of a process group end that have imported ckptd.torch."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from worker_group import PYTHONPATH  # noqa: E402

RANK_0 = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
print(store.port, flush=True)
dist.init_process_group("gloo", store=store, rank=0, world_size=2)
dist.barrier()
import ckptd.torch
sys.stdin.read()
"""
RANK_1 = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, False)
dist.init_process_group("gloo", store=store, rank=1, world_size=2)
dist.barrier()
import ckptd.torch
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start():
    started = []

    def rank(code, *arguments):
        env = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(
            subprocess.Popen([sys.executable, "-c", code, *arguments], env=env, text=True, **pipes)
        )
        return started[-1]

    yield rank
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("first", [0, 1])
def test_whichever_ends_first_nobody_prints_anything(start, first):
    ranks = [start(RANK_0)]
    ranks.append(start(RANK_1, ranks[0].stdout.readline().strip()))
    assert ranks[1].stdout.readline() == "there\n"
    for rank in (first, 1 - first):
        _, said = ranks[rank].communicate(timeout=240)  # which ends its input
        assert ranks[rank].returncode == 0 and "c10d" not in said, said
