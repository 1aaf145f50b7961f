"""Cases of tests/cases, run on every rank of a group of real daemons."""

import contextlib
import json
import os
import pathlib
import subprocess

import fake_cuda
import warm
from group import Group, wait_until

HERE = pathlib.Path(__file__).resolve().parent
COPIES = ("cuMemcpyDtoD", "cuMemcpyDtoDAsync", "cuMemcpyPeerAsync", "cuMemcpy", "cuMemcpyAsync", "cuMemcpy2DAsync")
CASES = HERE.parent / "cases"
PATHS = (HERE.parents[1] / "client/python/src", CASES, HERE.parent / "testing", HERE.parent / "python", HERE)


def run_ranks(group, folder, world, program, arguments=(), environment=None, patience=900, modules=warm.TORCH):
    """Runs a program as each rank of a job: its folder, rank, world and `arguments` are told to it.

    It begins with `modules` imported. What each said on stderr is in folder/stderr-{rank}. Who
    does not end in time is ended.
    """
    env = {**group.environment, "OMP_NUM_THREADS": "1", "CKPTD_TEST_ADDRESS": group.address("{rank}"),
           "PYTHONPATH": os.pathsep.join(map(str, PATHS)), **(environment or {})}
    workers = []
    for rank in range(world):
        mine = {**env, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                "PYTHONHASHSEED": str(rank % 2)}  # neighbours iterate over sets in different orders
        with open(folder / f"stderr-{rank}", "wb") as stderr:
            workers.append(warm.spawn([program, folder, rank, world, *arguments], mine, modules,
                                      stdout=warm.DEVNULL, stderr=stderr))
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


def run_workers(folder, group, world, cases=(), module="fsdp_cases", patience=900):
    """Runs `cases` of a module, or all for that size, on every rank."""
    run_ranks(group, folder, world, CASES / "fsdp_worker.py", cases,
              {"CKPTD_TEST_CASES": module}, patience)


def outcome_of(make_folder, world, module="fsdp_cases", memory="host"):
    """case -> {rank: traceback or None}, "stderr" -> {rank: text}, "log" -> the daemons', "gpus" -> used_wrongly's.

    memory: "host", or "cuda" for one fake GPU per rank, whose memory trainers see as the host's."""
    folder = make_folder("w")
    fake = fake_cuda.FakeCuda(folder, gpus=world) if memory == "cuda" else None
    own = {**fake.environment(), "CKPTD_TEST_HOST_VIEW": str(HERE.parent / "testing")} if fake else {}
    with Group(make_folder("m"), world, "--memory", memory, environment=own) as group:
        run_workers(folder, group, world, module=module)
        log = group.log()
        gpus = used_wrongly(fake, group) if fake else None
    if fake is not None:
        gpus.update(violations=fake.violations(), left=fake.held_bytes())
    return {**found_by_case(folder, world), "log": log, "stderr": said(folder, world), "gpus": gpus}


def used_wrongly(fake, group):
    """What should be zero after the trainers' end: copies that daemons made within GPUs and between them
    (these models look like the host's, so each trainer makes its one private copy), and bytes that are not
    the daemons'. After these have ended, too: broken rules of the driver, and bytes that are left."""
    def strays():
        return fake.held_bytes() - sum(int(group.info(rank)["memory"]["used_bytes"]) for rank in range(group.ranks))

    with contextlib.suppress(AssertionError):  # the caller's to say
        wait_until(lambda: strays() == 0, "only the daemons to hold memory")
    copies = [line for name in COPIES for rank in range(group.ranks) for line in fake.calls(name, group.pid(rank))]
    return {"copies": len(copies), "strays": strays()}


def assert_gpus_used_well(result):
    assert result["gpus"] == {"copies": 0, "strays": 0, "violations": [], "left": 0}, result["gpus"]


def assert_passed(result, case, world):
    for rank in range(world):
        failure = result.get(case, {}).get(
            rank, f"rank {rank} did not finish it:\n{result['stderr'][rank]}\n{result['log'][-3000:]}")
        assert failure is None, f"rank {rank}:\n{failure}"
