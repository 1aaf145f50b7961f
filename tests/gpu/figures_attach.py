"""What handing over costs: time and memory, for one to a hundred gigabytes."""

import os
import subprocess
import threading
import time

import client
import files
from bench import MIB, unload
from gpu_record import Checks
from group import wait_until

checks = Checks()
TENSORS = 300


def sizes(bench):
    if bench.fake:
        return [8 * MIB, 32 * MIB]
    return [10**9, 4 * 10**9] if bench.quick else [10**9, 10**10, 4 * 10**10, 10**11]


def too_large(bench, folder, size):
    """Why not so much, or an empty text."""
    if size > bench.free() * 0.93:
        return "so much of the GPU's memory is not free"
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, timeout=10
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if kind.stdout.strip() == "tmpfs" and size > memory / 3:
        return "files lie in memory here, which has no room for it; use --directory"
    return ""


def allowed_ms(tensors: int) -> float:
    return 10 + 0.01 * tensors


def attach(bench, group, source, tensors, name):
    """Milliseconds of the first attach in a process that has the GPU open already."""
    holder = bench.client(group.address(0))
    client.ask(holder, "warm", uuid=bench.uuid)
    said = client.ask(holder, "load", source=source, layout="replicate:1", digest=False)
    assert "name" in said, said
    first = client.ask(holder, "acquire")
    assert first["tensors"] == tensors, first
    client.ask(holder, "drop")
    later = []
    for _ in range(5):
        later.append(client.ask(holder, "acquire")["seconds"] * 1e3)
        client.ask(holder, "drop")
    holder.process.communicate(timeout=30)
    bench.figure(
        f"attach, {name}, {tensors} tensors",
        first["seconds"] * 1e3,
        "ms",
        f"<= {allowed_ms(tensors):g}",
        f"later ones {min(later):.2f} to {max(later):.2f} ms",
    )
    return min(later), first["taken"]


@checks("attaching takes no memory of the GPU and no longer for more bytes")
def growing(bench):
    group = bench.group(1, "--memory-budget", "95%")
    folder = bench.path()
    times = {}
    for size in sizes(bench):
        name = f"{size / 1e9:.3g} GB"
        why_not = too_large(bench, folder, size)
        if why_not:
            bench.not_measured(f"attach, {name}", why_not)
            continue
        source = files.sparse(folder / f"{size}.safetensors", size, TENSORS)
        times[size], taken = attach(bench, group, source, TENSORS, name)
        # Page tables are the driver's; they are the only thing that may grow.
        bench.figure(
            f"the GPU's memory that attaching to {name} took, of the shard",
            round(max(0, taken) / size, 3),
            "x",
            "<= 0",
            f"{taken} bytes",
        )
        unload(group)
    least, most = min(times), max(times)
    bench.figure(
        f"attach, {most / 1e9:.3g} GB beside {least / 1e9:.3g} GB, later ones",
        times[most] / times[least],
        "x",
        "<= 2",
    )


@checks("attaching to many tensors takes microseconds each")
def many_tensors(bench):
    count = 2000 if bench.fake or bench.quick else 20000
    source = files.sparse(bench.path() / "m.safetensors", 16 * MIB if bench.fake else 10**9, count)
    group = bench.group(1)
    attach(bench, group, source, count, "1 GB")


class Lowest(threading.Thread):
    """The least free memory that was seen until it is stopped."""

    def __init__(self, bench):
        super().__init__(daemon=True)
        self.bench, self.over, self.value = bench, threading.Event(), None

    def run(self):
        import gpu

        device = gpu.Gpu(self.bench.uuid)
        self.value = device.free()
        while not self.over.wait(0.002):
            self.value = min(self.value, device.free())


@checks("an idle daemon's own memory on the GPU, before a load, in it and after it")
def footprint(bench):
    size = 16 * MIB if bench.fake else 2 * 10**9
    source = files.sparse(bench.path() / "m.safetensors", size, TENSORS)
    before = bench.free()
    group = bench.group(1)
    idle = bench.free()
    one = bench.client(group.address(0))
    lowest = Lowest(bench)
    lowest.start()
    wait_until(lambda: lowest.value is not None, "another thread to see what is free")
    begin = time.monotonic()
    said = client.ask(one, "load", source=source, layout="replicate:1", digest=False)
    assert "name" in said, said
    lowest.over.set()
    lowest.join(10)
    slab = int(group.info()["memory"]["used_bytes"])
    unload(group)
    after = bench.comes_back(idle, 256 * MIB)["missing bytes"]
    bench.figure("daemon's own memory on the GPU, idle", (before - idle) / 1e6, "MB")
    bench.figure("the same, most while it loads", (before - lowest.value - slab) / 1e6, "MB")
    bench.figure("the same, after load and unload", (before - idle + after) / 1e6, "MB")
    return {"load s": time.monotonic() - begin}
