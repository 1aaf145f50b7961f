"""Costs that do not come from bytes: attaching, planning, starting, standing by."""

import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
from safetensors.numpy import save_file

import rounds

HERE = pathlib.Path(__file__).resolve().parent


def make(folder, count, nbytes):
    """A file of `count` equal square float32 tensors, `nbytes` in all."""
    path = folder / f"{count}x{nbytes}.safetensors"
    if not path.exists():
        side = max(1, int((nbytes / count / 4) ** 0.5))
        value = np.arange(side * side, dtype=np.float32).reshape(side, side)
        save_file({f"{i}.weight": value for i in range(count)}, str(path))
    return path


def attach(daemons, what, path, count, processes):
    """Medians over fresh processes: (first call, later calls)."""
    first, later = [], []
    environment = {**daemons.environment, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                   "OMP_NUM_THREADS": "1"}
    for number in range(processes + 1):
        answer = subprocess.run([sys.executable, str(HERE / "attach.py"), what, str(path), str(count)],
                                env=environment, capture_output=True, text=True, timeout=rounds.PATIENCE)
        if answer.returncode != 0:
            raise SystemExit(f"bench: attaching {path}:\n{answer.stderr[-3000:]}")
        sample = json.loads(answer.stdout.splitlines()[-1])
        if number > 0:  # the first one loads
            first.append(sample["first"])
            later += sample["later"]
    return statistics.median(first), statistics.median(later)


def attach_all(start_daemons, folder, processes, say):
    small, large = make(folder, 300, 30 << 20), make(folder, 300, 1600 << 20)
    many, few = make(folder, 19_000, 19_000 * 4096), make(folder, 291, 291 * 4096)
    found = {}
    with start_daemons(1, 2_400 << 20) as daemons:
        for name, what, path, count in (
            ("attach, 300 tensors of 31 MB", "tensors", small, 300),
            ("attach, 300 tensors of 1.7 GB", "tensors", large, 300),
            ("attach, 19,000 tensors", "tensors", many, 19_000),
            ("load_into, 19,000 parameters", "into", many, 19_000),
            ("load_into, 291 parameters", "into", few, 291),
        ):
            say(name)
            found[name] = attach(daemons, what, path, count, processes)
    return found


def idle(start_daemons, seconds=5.0):
    """(bytes of a daemon without its arena, its share of a core) while nobody asks for anything."""
    with start_daemons(1, 64 << 20) as daemons:
        pid = daemons.info(0)["pid"]
        memory = rounds.daemon_memory(daemons, 1)
        before, start = rounds.cpu_seconds(pid), time.monotonic()
        time.sleep(seconds)  # the very thing that is measured
        share = (rounds.cpu_seconds(pid) - before) / (time.monotonic() - start)
    return (memory["rss"] - memory["shmem"] if memory else None), share


def seconds_of(arguments, times=5, **options):
    taken = []
    for _ in range(times):
        start = time.monotonic()
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, timeout=rounds.PATIENCE, **options)
        taken.append(time.monotonic() - start)
    return statistics.median(taken)


def start_up(binaries, start_daemons):
    """Seconds: import ckptd beyond an empty interpreter, ckptctl verbs, a daemon until it answers."""
    bare = seconds_of([sys.executable, "-c", "pass"])
    found = {"import ckptd": seconds_of([sys.executable, "-c", "import ckptd"]) - bare}
    found["ckptctl version"] = seconds_of([binaries / "ckptctl", "version"])
    start = time.monotonic()
    with start_daemons(1, 0) as daemons:
        found["daemon ready"] = time.monotonic() - start
        found["ckptctl info"] = seconds_of([binaries / "ckptctl", "info"], env=daemons.environment)
    return found


def plan(binaries, counts=(23_000, 46_000, 92_000)):
    """What plan_bench says for each number of tensors, one thread, a world of 1,024 ranks."""
    answers = (subprocess.run([binaries / "plan_bench", str(count), "1024"], capture_output=True,
                              text=True, timeout=rounds.PATIENCE, check=True) for count in counts)
    return [json.loads(answer.stdout) for answer in answers]
