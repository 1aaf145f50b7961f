"""The kernels that pack and cast: right, and beside a plain copy from device to device."""

import os
import re
import subprocess

import place
from gpu_record import Checks, NotShown

checks = Checks()
ROW = re.compile(r"^(.+?)\s+([0-9.]+) GB/s moved\s+([0-9.]+)\s+best ([0-9.]+) ms$", re.M)
# A row of 6 bytes moves in units of 2: nothing is promised of it.
NO_TARGET = ("plain copy", "rows of 6 bytes")


def figures(output):
    """(name, GB/s moved, share of the plain copy) of every line."""
    return [
        (name.strip(), float(rate), float(share)) for name, rate, share, _ in ROW.findall(output)
    ]


@checks("the kernels compute what their twins on the host compute, byte for byte")
def kernels(bench):
    # Many times what caches of GPUs hold; the twins on the host take their time.
    size = 1 if bench.fake else 512
    done = subprocess.run(
        [place.program("kernel_bench"), *filter(None, [bench.uuid]), str(size)],
        env={**os.environ, **bench.environment},
        capture_output=True,
        text=True,
        timeout=55,
    )
    if "built without nvcc" in done.stderr:
        raise NotShown("this build has no kernels")
    if "opening the CUDA driver" in done.stderr:
        raise NotShown(done.stderr.strip())
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    rows = figures(done.stdout)
    assert len(rows) > 5, done.stdout
    for name, rate, share in rows:
        pinned = name.endswith(", pinned")
        target = None if pinned or name in NO_TARGET else ">= 0.8"
        beside = "x a copy from the host" if pinned else "x a copy on the device"
        bench.figure(f"kernels: {name}", share, beside, target, f"{rate:.0f} GB/s moved")
    return {"MiB": size}
