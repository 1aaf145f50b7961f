"""The program for machines with a GPU, on the fake driver: it runs, and kernels equal twins there."""

import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import fake_cuda  # noqa: E402

PROGRAM = fake_cuda.LIBRARY.parents[1] / "bin" / "kernel_bench"


def test_the_bench_of_the_kernels_runs_and_finds_them_right(tmp_path):
    if fake_cuda.why_not() or not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built (it needs cuda.h)")
    fake = fake_cuda.FakeCuda(tmp_path, twins=str(fake_cuda.LIBRARY.parent / "libckptd_twins.so"), lazy=1)
    done = subprocess.run([str(PROGRAM), "1"], env={**os.environ, **fake.environment()}, timeout=100,
                          capture_output=True, text=True)
    if "built without nvcc" in done.stderr:
        pytest.skip("the kernels are not built")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("GB/s") == 17
    assert not fake.violations()
