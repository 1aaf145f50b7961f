"""What the driver does with memory that is shared by descriptors: no daemon is involved."""

import os
import shutil
import subprocess

import rawmem
from bench import MIB, timed
from gpu_record import Checks, NotShown

checks = Checks()
HOLDER = "import rawmem, sys; rawmem.hold(sys.argv[1], int(sys.argv[2]))"
NOBODY = 65534


def size_of(bench) -> int:
    return 16 * MIB if bench.fake else 1024 * MIB


@checks("memory outlives its maker while a process that opened no driver holds the descriptor")
def kept_by_descriptor(bench):
    import json

    size = size_of(bench)
    before = bench.free()
    holder = bench.program(HOLDER, bench.uuid, size)
    assert json.loads(holder.hear())["held"]
    taken = before - bench.free()
    assert taken >= size * 0.99, f"{taken} of {size} bytes are still taken"
    said = json.loads(holder.ask("read"))
    assert said.get("same") is True, said
    holder.process.kill()
    holder.process.wait()
    return {"taken bytes": taken, **bench.comes_back(before)}


@checks("memory is imported by another user in another PID namespace")
def elsewhere(bench):
    if os.getuid() != 0 or shutil.which("unshare") is None:
        raise NotShown("it takes root and the program unshare")
    # With a /proc of its own, as containers have it: the driver looks itself up there.
    wrapper = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*wrapper, "true"], capture_output=True, timeout=30).returncode != 0:
        raise NotShown("this system does not let unshare make a PID namespace")
    size = size_of(bench)
    fd = rawmem.receive(bench.uuid, size)
    try:
        alone = rawmem.reading(bench.uuid, size, fd, wrapper=wrapper)
        assert alone.get("same") is True and alone["pid"] < 10, alone
        if bench.fake:
            raise NotShown("another PID namespace works; files of the fake driver are this user's")
        both = rawmem.reading(bench.uuid, size, fd, NOBODY, wrapper=wrapper)
    finally:
        os.close(fd)
    if "error" in both:
        last = both["error"].splitlines()[-1]
        raise NotShown(f"another PID namespace works; another user as well: {last}")
    assert both.get("same") is True and both["uid"] == NOBODY, both
    return {"pid there": both["pid"], "uid there": both["uid"]}


@checks("importing and mapping do not take longer for more bytes")
def import_times(bench):
    gpu = bench.gpu()
    steps = {"minimum": gpu.granularity(False), "recommended": gpu.granularity(True)}
    sizes = [8 * MIB, 64 * MIB] if bench.fake else [10**9, 10**10, 8 * 10**10]
    sizes = [s // (2 * MIB) * 2 * MIB for s in sizes[: 2 if bench.quick else None]]
    found = {}
    for size in sizes:
        if size > bench.free() * 0.9:
            bench.not_measured(f"import and map {size / 1e9:.0f} GB", "so much is not free")
            continue
        made, handle = timed(lambda: gpu.create(size))
        bench.figure(f"driver: allocate, {size / 1e9:.3g} GB", made * 1e3, "ms")
        fd = gpu.export(handle)
        seconds = []
        for _ in range(5):
            begin, taken = timed(lambda: gpu.take(fd))
            middle, address = timed(lambda: gpu.map(taken, size, True))
            seconds.append(begin + middle)
            gpu.drop(address, taken, size)
        os.close(fd)
        rawmem_release(handle)
        found[size] = sorted(seconds)[2]
        bench.figure(
            f"driver: import, map and allow access, {size / 1e9:.3g} GB", found[size] * 1e3, "ms"
        )
    assert found
    return {"granularity": steps}


def rawmem_release(handle):
    from gpu import ask, driver

    ask(driver().cuMemRelease(handle), "releasing")
