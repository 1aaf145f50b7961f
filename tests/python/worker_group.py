"""Processes of a process group, by fsdp_worker."""

import json
import pathlib
import subprocess

import warm

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE.parent / "cases"
PYTHONPATH = f"{HERE.parents[1] / 'client/python/src'}:{CASES}:{HERE}"


def run_group(folder, world, cases=(), timeout=900, module="fsdp_cases"):
    """case -> {rank: traceback or None}, of `cases` of a module, or all, by fsdp_worker on `world` ranks."""
    env = {
        "PYTHONPATH": PYTHONPATH,
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "CKPTD_TEST_CASES": module,
    }
    workers = []
    for rank in range(world):
        command = [CASES / "fsdp_worker.py", folder, rank, world, *cases]
        with open(folder / f"stderr-{rank}", "wb") as stderr:
            workers.append(warm.spawn(command, env, stdout=warm.DEVNULL, stderr=stderr))
    try:
        for worker in workers:
            worker.wait(timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    outcome = {}
    for rank in range(world):
        result = folder / f"rank-{rank}.json"
        for case, failure in (json.loads(result.read_text()) if result.exists() else {}).items():
            outcome.setdefault(case, {})[rank] = failure
        outcome.setdefault("stderr", {})[rank] = (folder / f"stderr-{rank}").read_text()[-3000:]
    return outcome
