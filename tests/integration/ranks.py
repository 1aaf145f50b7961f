"""Cases of tests/python's case modules, run on every rank of a group of real daemons."""

import json
import os
import pathlib
import subprocess
import sys

import fake_cuda
from group import Group, wait_until

HERE = pathlib.Path(__file__).resolve().parent
PATHS = (HERE.parents[1] / "client/python/src", HERE.parent / "python", HERE)


def run_ranks(group, folder, world, program, arguments=(), environment=None, patience=240):
    """Runs a program as each rank of a job: its folder, rank, world and `arguments` are told to it.

    What each said on stderr is in folder/stderr-{rank}. Who does not end in time is ended.
    """
    env = {**group.environment, "OMP_NUM_THREADS": "1", "CKPTD_TEST_ADDRESS": group.address("{rank}"),
           "PYTHONPATH": os.pathsep.join(map(str, PATHS)), **(environment or {})}
    workers = []
    for rank in range(world):
        mine = {**env, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        with open(folder / f"stderr-{rank}", "wb") as stderr:
            workers.append(subprocess.Popen(
                [sys.executable, str(program), str(folder), str(rank), str(world), *arguments],
                env=mine, stdout=subprocess.DEVNULL, stderr=stderr))
    try:
        for worker in workers:
            worker.wait(patience)
    except subprocess.TimeoutExpired:
        pass  # the cases that are missing then fail, each by name
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def said(folder, world):
    """The last words of each rank on stderr."""
    return [(folder / f"stderr-{rank}").read_text()[-3000:] for rank in range(world)]


def found_by_case(folder, world):
    """case -> {rank: what the rank found}, of ranks that wrote them to rank-{rank}.json."""
    result = {}
    for rank in range(world):
        file = folder / f"rank-{rank}.json"
        for case, found in (json.loads(file.read_text()) if file.exists() else {}).items():
            result.setdefault(case, {})[rank] = found
    return result


def run_workers(folder, group, world, cases=(), module="fsdp_cases", patience=240):
    """Runs `cases` of a module, or all for that size, on every rank."""
    run_ranks(group, folder, world, HERE.parent / "python/fsdp_worker.py", cases,
              {"CKPTD_TEST_CASES": module}, patience)


def outcome_of(make_folder, world, module="fsdp_cases", options=(), patience=240, memory="host"):
    """case -> {rank: traceback or None}, "stderr" -> {rank: text}, "log" -> the daemons'.

    memory: "host", or "cuda" for one fake GPU per rank, whose memory trainers see as the host's."""
    folder = make_folder("w")
    fake = fake_cuda.FakeCuda(folder, gpus=world, fill=0xCB) if memory == "cuda" else None
    own = {**fake.environment(), "CKPTD_TEST_HOST_VIEW": str(HERE.parent / "testing")} if fake else {}
    with Group(make_folder("m"), world, "--memory", memory, *options, environment=own) as group:
        run_workers(folder, group, world, module=module, patience=patience)
        log = group.log()
    if fake is not None:
        assert fake.violations() == []
        wait_until(lambda: fake.held_bytes() == 0, f"memory to be free, not {fake.held_bytes()} bytes", 10)
    return {**found_by_case(folder, world), "log": log, "stderr": said(folder, world)}


def assert_passed(result, case, world):
    for rank in range(world):
        failure = result.get(case, {}).get(
            rank, f"rank {rank} did not finish it:\n{result['stderr'][rank]}\n{result['log'][-3000:]}")
        assert failure is None, f"rank {rank}:\n{failure}"
