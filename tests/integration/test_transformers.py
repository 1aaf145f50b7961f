"""from_pretrained natively and from the daemons: every tensor, report and result, to the last bit.

The same with the last transformers 4: tests/python/older_transformers.sh.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from group import Group

pytest.importorskip("transformers")
from transformers_cases import CASES  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
WORKER = HERE / "transformers_worker.py"
PATHS = [HERE.parents[1] / "client/python/src", HERE.parent / "python", HERE]


def run_ranks(group, world, *arguments, program=WORKER, timeout=300):
    """Runs `program` with `arguments` as each rank; what each said on stderr."""
    env = {**group.environment, "OMP_NUM_THREADS": "1", "CKPTD_TEST_ADDRESS": group.address("{rank}"),
           "PYTHONPATH": os.pathsep.join(map(str, PATHS)), "HF_HUB_OFFLINE": "1"}
    folder, workers = group.run_dir, []
    for rank in range(world):
        mine = {**env, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        with open(folder / f"stderr-{rank}", "wb") as stderr:
            workers.append(subprocess.Popen(
                [sys.executable, str(program), str(folder), str(rank), str(world), *arguments],
                env=mine, stdout=subprocess.DEVNULL, stderr=stderr))
    try:
        for worker in workers:
            worker.wait(timeout)
    except subprocess.TimeoutExpired:
        pass  # the cases that are missing then fail, each by name
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [(folder / f"stderr-{rank}").read_text()[-3000:] for rank in range(world)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """world -> case -> {rank: None or what differs}, each size of group run once."""
    cache = {}

    def get(world):
        if world not in cache:
            with Group(tmp_path_factory.mktemp("m"), world) as group:
                said = run_ranks(group, world)
                result = {"said": said}
                for rank in range(world):
                    file = group.run_dir / f"rank-{rank}.json"
                    for case, found in (json.loads(file.read_text()) if file.exists() else {}).items():
                        result.setdefault(case, {})[rank] = found
            cache[world] = result
        return cache[world]

    return get


@pytest.mark.parametrize("world,case", [(w, c.name) for w, cases in CASES.items() for c in cases])
def test_the_model_is_the_one_that_transformers_loads_natively(world, case, outcomes):
    result = outcomes(world)
    for rank in range(world):
        found = result.get(case, {}).get(rank, f"rank {rank} did not finish it:\n{result['said'][rank]}")
        assert found is None, f"rank {rank}:\n{found}"
