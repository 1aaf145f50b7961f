"""The contract tests of memory and transfer, which CI runs on the fake driver, on this one."""

import os
import re
import subprocess

import place
from gpu_record import Checks

checks = Checks()
RAN = re.compile(r"\[==========\] (\d+) tests? from .* ran")
FAILED = re.compile(r"^\[  FAILED  \] (\S+)", re.M)


def run(bench, program, *patterns, seconds=120, **environment):
    """Runs the tests that the patterns name; how many."""
    chosen = {} if bench.fake else {"CUDA_VISIBLE_DEVICES": bench.uuid}
    done = subprocess.run(
        [place.program(program), "--gtest_brief=1", f"--gtest_filter={':'.join(patterns)}"],
        env={**os.environ, **bench.environment, **chosen, "CKPTD_TEST_GPU": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300 if bench.fake else seconds,
    )
    ran = RAN.search(done.stdout)
    failed = sorted(set(FAILED.findall(done.stdout)))
    assert done.returncode == 0 and not failed and ran, (
        f"{failed or done.returncode}: {done.stdout[-1200:]} {done.stderr[-300:]}"
    )
    assert int(ran[1]) > 0, "no test has such a name"
    return {"tests": int(ran[1])}


@checks("the contract of memory holds: slabs by descriptor, by name and at rest")
def memory(bench):
    return run(bench, "contract_cuda", "*MemoryContract.*/*")


@checks("slabs are cleared where asked, go with the last who has them, and refuse what is none")
def device_memory(bench):
    # The others look at the fake's trace, or need a GPU in slices.
    return run(
        bench,
        "contract_cuda",
        "CudaMemoryContract.*-*NotVisible*:*Slice*:*ReadOnlyClient*",
    )


@checks("the contract of transfers holds: imported slabs and frames, with kernels and without")
def transfer(bench):
    # All of it is too much for a fake whose link is slow so that others can hit a copy.
    names = ("CopySlabTest", "FrameReceiverOnGpu", "*Transfer", "*NarrowColumns")
    patterns = ["Forms/NarrowColumns.*"] if bench.fake else [f"{name}.*" for name in names]
    return run(bench, "contract_cuda", *patterns)
