"""The wrapping cases of load_into, with real daemons: every rank states its tensors."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from fsdp_cases import CASES
from group import Group

HERE = pathlib.Path(__file__).resolve().parent


def run_workers(folder, group, world, cases=()):
    """Runs `cases` of fsdp_cases, or all for that size, on every rank."""
    env = {**group.environment, "OMP_NUM_THREADS": "1", "CKPTD_TEST_ADDRESS": group.address("{rank}"),
           "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "client/python/src"), str(HERE.parent / "python")])}
    workers = []
    for rank in range(world):
        mine = {**env, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        with open(folder / f"stderr-{rank}", "wb") as stderr:
            workers.append(subprocess.Popen(
                [sys.executable, str(HERE.parent / "python/fsdp_worker.py"), str(folder), str(rank), str(world),
                 *cases],
                env=mine, stdout=subprocess.DEVNULL, stderr=stderr))
    try:
        for worker in workers:
            worker.wait(240)
    except subprocess.TimeoutExpired:
        pass  # the cases that are missing then fail, each by name
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """world -> case -> {rank: traceback or None}, each size of group run once."""
    cache = {}

    def get(world):
        if world not in cache:
            folder = tmp_path_factory.mktemp("w")
            with Group(tmp_path_factory.mktemp("m"), world) as group:
                run_workers(folder, group, world)
                log = group.log()
            result = {"log": log}
            for rank in range(world):
                file = folder / f"rank-{rank}.json"
                for case, failure in (json.loads(file.read_text()) if file.exists() else {}).items():
                    result.setdefault(case, {})[rank] = failure
                result.setdefault("stderr", {})[rank] = (folder / f"stderr-{rank}").read_text()[-3000:]
            cache[world] = result
        return cache[world]

    return get


@pytest.mark.parametrize("world,case", [(w, c.__name__) for w, cases in CASES.items() for c in cases])
def test_the_model_is_filled_in_place_and_trains_as_with_torch_s_own_loader(world, case, outcomes):
    result = outcomes(world)
    for rank in range(world):
        failure = result.get(case, {}).get(
            rank, f"rank {rank} did not finish it:\n{result['stderr'][rank]}\n{result['log'][-3000:]}")
        assert failure is None, f"rank {rank}:\n{failure}"
