"""Loads beside other loaders and beside what this machine can do at best."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

import files
import place
from bench import MIB, unload
from figures_attach import allowed_ms
from gpu_record import Checks, NotShown

checks = Checks()
LINE = re.compile(r"^\w+ +(\d+) threads ([0-9.]+) s", re.M)
ENOUGH_SECONDS = 45  # for rounds, after which there is no further one
SAMPLE = "import sys, sample; sample.main(*sys.argv[1:])"
SAVE = "import sys, sample; sample.save_for_torch(sys.argv[1], sys.argv[2:])"


def nbytes(bench) -> int:
    return 8 * MIB if bench.fake else (10**9 if bench.quick else 8 * 10**9)


def floor(bench, mode, paths):
    """threads -> seconds of doing it without any loader."""
    done = subprocess.run(
        [place.program("copy_bench"), "--gpu", bench.uuid, mode, *paths],
        env={**os.environ, **bench.environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode != 0:
        raise NotShown(f"copy_bench {mode}: {done.stderr.strip()}")
    return {int(threads): float(seconds) for threads, seconds in LINE.findall(done.stdout)}


def best(rounds):
    """(seconds, threads) of the number of threads whose median is the least; the first round is
    dropped."""
    return min((median([one[n] for one in rounds[1:]]), n) for n in rounds[0])


def stages_ms(group):
    """stage -> milliseconds of the one load that is resident."""
    progress = group.json("list")["checkpoints"][0]["progress"]
    return {each["stage"].removeprefix("STAGE_"): round(float(each["duration"].rstrip("s")) * 1e3, 1)
            for each in progress["stages"]}


def make_source(bench):
    """(folder, its files): the same for all checks, for they take long to write."""
    folder = bench.folder / "model"
    if not folder.exists():
        room = shutil.disk_usage(bench.folder).free
        if room < 3 * nbytes(bench):
            raise NotShown(f"{bench.folder} has room for {room / 1e9:.1f} GB; use --directory")
        folder.mkdir()
        files.random_files(folder, nbytes(bench), 4, 1 * MIB if bench.fake else 32 * MIB)
    return folder, sorted(map(str, folder.glob("*.safetensors")))


def samples(bench, group, folder, paths):
    """loader -> the process that loads by it."""
    spec = {"files": paths, "folder": str(folder), "address": group.address(0)}
    made = {
        "ckptd, digests off": bench.program(SAMPLE, "ckptd", json.dumps({**spec, "digest": False})),
        "ckptd, digests on": bench.program(SAMPLE, "ckptd", json.dumps(spec)),
    }
    if "torch on a GPU" in bench.has and "safetensors" in bench.has:
        made["safetensors load_file"] = bench.program(SAMPLE, "safetensors", json.dumps(spec))
        spec["checkpoint"] = str(bench.path() / "model.pt")
        subprocess.run(
            [sys.executable, "-c", SAVE, spec["checkpoint"], *paths], check=True, timeout=100
        )
        made["torch.load, then to the GPU"] = bench.program(SAMPLE, "torch.load", json.dumps(spec))
    return made


def median(values):
    return statistics.median(values)


@checks(
    "a warm load beside the bare copy and other loaders, all with the same bytes", "torch", "numpy"
)
def warm(bench):
    folder, paths = make_source(bench)
    group = bench.group(1)
    made = samples(bench, group, folder, paths)
    total = sum(os.path.getsize(path) for path in paths)
    found, sums, stages = {name: [] for name in made}, {}, []
    floors = {"floor": [], "link": []}
    begin, rounds = time.monotonic(), 1 if bench.fake else (2 if bench.quick else 5)
    for number in range(rounds + 1):
        if number > 2 and time.monotonic() - begin > ENOUGH_SECONDS:
            break
        files.touch(paths)
        for name, program in made.items():
            unload(group)
            said = json.loads(program.ask("go check" if number == 0 else "go"))
            found[name].append(said["seconds"])
            if name == "ckptd, digests off":
                stages.append(stages_ms(group))
                parts = said["parts ms"]
            sums.setdefault(name, said.get("checksum"))
        unload(group)
        for way, mode in (("floor", "warm"), ("link", "link")):
            floors[way].append(floor(bench, mode, paths))
    assert len(set(sums.values())) == 1, f"the loaders differ: {sums}"
    times = {name: median(seconds[1:]) for name, seconds in found.items()}  # the first is dropped
    times |= {way: best(rounds)[0] for way, rounds in floors.items()}
    report_warm(bench, times, total)
    resident = report_resident(bench, made["ckptd, digests on"])
    return {
        "bytes": total,
        "stages ms": stages[-1],
        "client ms": parts,
        "client ms, resident": resident,
        "seconds": found,
        "threads": floors,
    }


def report_resident(bench, program):
    """What attaching costs PyTorch, the tensors included; what of it is the client's."""
    program.ask("go")  # whatever was unloaded is there again
    said = json.loads(program.ask("go"))
    bench.figure(
        f"load_file of what is resident, {said['tensors']} tensors",
        said["seconds"] * 1e3,
        "ms",
        f"<= {allowed_ms(said['tensors']):g}",
        "all tensors made in PyTorch",
    )
    return said["parts ms"]


def report_warm(bench, times, total):
    rate = {name: f"{total / seconds / 1e9:.1f} GB/s" for name, seconds in times.items()}
    off, on = times["ckptd, digests off"], times["ckptd, digests on"]
    beside = f"{rate['ckptd, digests off']}; the copy {rate['floor']}"
    bench.figure(
        "warm load, digests off, beside the bare pinned copy",
        times["floor"] / off,
        "x",
        ">= 0.95",
        beside,
    )
    bench.figure(
        "warm load, digests on, beside the bare pinned copy",
        times["floor"] / on,
        "x",
        None,
        rate["ckptd, digests on"],
    )
    bench.figure(
        "warm load, digests off, beside the link alone",
        times["link"] / off,
        "x",
        None,
        rate["link"],
    )
    for name, target in (("safetensors load_file", 3), ("torch.load, then to the GPU", 5)):
        what = f"warm load, digests off, faster than {name}"
        if name in times:
            bench.figure(what, times[name] / off, "x", f">= {target}", rate[name])
        else:
            bench.not_measured(what, "it takes PyTorch on a GPU and the package safetensors")


@checks("a cold load beside a raw read of the same storage", "torch", "numpy")
def cold(bench):
    paths = make_source(bench)[1][:1]  # storage may be slow, and each floor reads it several times
    group = bench.group(1)
    spec = {"files": paths, "address": group.address(0), "digest": False}
    program = bench.program(SAMPLE, "ckptd", json.dumps(spec))
    total = sum(os.path.getsize(path) for path in paths)
    found = {"ckptd": [], "floor": []}  # the first round is dropped
    begin, past = time.monotonic(), []
    for number in range(2 if bench.fake or bench.quick else 4):
        if number > 1 and time.monotonic() - begin > ENOUGH_SECONDS:
            break
        unload(group)
        files.drop_from_page_cache(paths)
        found["ckptd"].append(json.loads(program.ask("go"))["seconds"])
        progress = group.json("list")["checkpoints"][0]["progress"]
        past.append(int(progress["read"]["direct_bytes"]) / total)
        found["floor"].append(floor(bench, "direct", paths))
    if min(past) < 0.9 and not bench.fake:
        raise NotShown(f"the page cache could not be emptied: {min(past):.0%} came past it")
    ours, (read, threads) = median(found["ckptd"][1:]), best(found["floor"])
    bench.figure(
        "cold load, digests off, beside a raw O_DIRECT read",
        read / ours,
        "x",
        ">= 0.95",
        f"{total / ours / 1e9:.2f} GB/s; the read {total / read / 1e9:.2f} GB/s, {threads} threads",
    )
    return {"bytes": total, "past the page cache": past, "seconds": found}
