"""Bytes that travel by NCCL, between daemons that share the one GPU (NCCL 2.30 and newer)."""

import hashlib
import os
import pathlib
import re
import signal
import statistics
import time

import client
import files
from bench import MIB, SLACK_AFTER_RESTART, timed, unload
from checks_kills import loads_again, start, start_hit
from gpu_record import Checks, NotShown
from group import wait_until

checks = Checks()
ask = client.ask
RANKS = 2
NAMED_WITHIN_SECONDS = 10


def group(bench, ranks=RANKS, *options):
    if bench.nccl["why not"]:
        raise NotShown(bench.nccl["why not"])
    return bench.group(ranks, "--comm", "nccl", "--nccl-library", bench.nccl["path"], *options)


def parts(bench):
    """(source, rank -> name -> digest of its rows under fsdp:RANKS, name -> digest of the whole)"""
    folder = bench.path()
    size = 8 * MIB if bench.fake else 512 * MIB
    paths = files.random_files(folder, size, 3, MIB if bench.fake else 16 * MIB)
    rows, whole = [{} for _ in range(RANKS)], {}
    for path in paths:
        for name, data in files.contents(path):
            whole[name] = hashlib.sha256(data).hexdigest()
            half = len(data) // RANKS
            for rank in range(RANKS):
                part = data[rank * half : (rank + 1) * half]
                rows[rank][name] = hashlib.sha256(part).hexdigest()
    return str(folder), rows, whole


def read_by(one):
    """Bytes that each daemon has read by system calls so far."""
    found = []
    for rank in range(RANKS):
        counted = pathlib.Path(f"/proc/{one.pid(rank)}/io").read_text()
        found.append(int(re.search(r"^rchar: (\d+)$", counted, re.M)[1]))
    return found


def shares(one, before, total):
    """Of the files' bytes, what each daemon has read since."""
    return [round((after - then) / total, 2) for then, after in zip(before, read_by(one))]


@checks("every rank has the file's bytes by NCCL, read by rank 0 or by all in parts", "numpy")
def same_bytes(bench):
    source, rows, whole = parts(bench)
    total = sum(path.stat().st_size for path in pathlib.Path(source).glob("*.safetensors"))
    shown = []
    for reader in ("rank0", "all") if bench.fake else ("rank0", "per_node", "all"):
        one = group(bench, RANKS, "--reader", reader)
        for layout, sums in ((f"fsdp:{RANKS}", rows), (f"replicate:{RANKS}", [whole] * RANKS)):
            before, ways = read_by(one), one.log().count("gets its bytes by NCCL")
            for rank in range(RANKS):
                holder = bench.client(one.address(rank))
                said = ask(holder, "load", source=source, layout=layout)
                assert "name" in said, f"{reader}, {layout}: {said}"
                ask(holder, "acquire")
                assert ask(holder, "digest") == sums[rank], f"{reader}, {layout}: rank {rank}"
                ask(holder, "drop")
                holder.process.communicate(timeout=30)
            assert one.log().count("gets its bytes by NCCL") > ways, one.log()[-2000:]
            read = shares(one, before, total)
            least, most = (0.3, 0.7) if reader == "all" else (0, 0.1)
            assert 0.95 <= sum(read) <= 1.2 and least <= read[1] <= most, f"{reader}: {read}"
            shown.append(f"{reader}, {layout}: the ranks read {read} of the files")
            unload(one)
        one.close()
    return {"loads": shown, "NCCL": bench.nccl["version"]}


@checks("a load whose slices travel by NCCL beside one through mapped memory")
def beside_mapped(bench):
    size = 16 * MIB if bench.fake else 10**9 if bench.quick else 4 * 10**9
    source = files.sparse(bench.path() / "m.safetensors", size, 100)
    files.touch([source])
    nccl, mapped = group(bench), bench.group(RANKS, "--comm", "host")
    before = bench.free()
    clients = {one: bench.client(one.address(0)) for one in (nccl, mapped)}
    found = {one: [] for one in clients}
    for _ in range(4):
        for one, loader in clients.items():
            seconds, said = timed(
                lambda: ask(loader, "load", source=source, layout=f"fsdp:{RANKS}", digest=False)
            )
            assert "name" in said, said
            found[one].append(seconds)
            unload(one)
    kept = before - bench.free()
    by_nccl, direct = (statistics.median(found[one][1:]) for one in (nccl, mapped))
    bench.figure("load of two ranks by NCCL, beside mapped memory", direct / by_nccl, "x", None,
                 f"{size / by_nccl / 1e9:.1f} GB/s; mapped {size / direct / 1e9:.1f} GB/s")  # fmt: skip
    bench.figure("the first load by NCCL, which makes the communicator", found[nccl][0], "s")
    bench.figure("kept on the GPU after loads, by both groups", kept / 1e6, "MB")
    return {"by NCCL s": found[nccl], "mapped s": found[mapped]}


@checks("a daemon that stands still during a transfer by NCCL is named, and the next load works")
def stands_still(bench):
    return hit(bench, signal.SIGSTOP)


@checks("a daemon that is killed during a transfer by NCCL is named, and the next load works")
def killed(bench):
    return hit(bench, signal.SIGKILL)


def hit(bench, number):
    """Sends a signal to the daemon of rank 1 while bytes move."""
    one, source, loader, before = start(bench, group(bench))
    start_hit(bench, one, loader, watched=0)
    victim = one.pid(1)
    begin = time.monotonic()
    os.kill(victim, number)
    try:
        said = client.hear(loader)
        heard = time.monotonic() - begin
    finally:
        if number == signal.SIGSTOP:
            os.kill(victim, signal.SIGCONT)
    if "name" in said:
        raise NotShown("the load was over before it could be hit")
    assert "rank 1" in said.get("message", ""), said
    assert heard <= NAMED_WITHIN_SECONDS, f"{heard:.1f} s: {said}"
    wait_until(one.ready, "the group to be complete again", 60)
    unload(one)
    facts = bench.comes_back(before, SLACK_AFTER_RESTART)
    loads_again(bench, one, source)
    return {"client heard": said["reason"], "after s": heard, **facts}
