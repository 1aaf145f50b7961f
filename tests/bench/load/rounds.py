"""Runs samples: fresh processes each, contenders in another order each round, the first round dropped."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import contenders
import resuming

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 300
WARM_FLOOR, COLD_FLOOR = "floor: pread into faulted memory", "floor: raw O_DIRECT read"


def resident(daemons):
    return [c for c in daemons.json("list")["checkpoints"] if c["state"] == "STATE_ACTIVE"]


def forget(daemons, ranks):
    """Unloads everything and waits until the arenas are whole again."""
    for checkpoint in resident(daemons):
        for rank in range(ranks):
            daemons.ctl("--rank", str(rank), "unload", checkpoint["name"], "--force")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        memory = [daemons.info(rank)["memory"] for rank in range(ranks)]
        if all(m["arena_bytes"] >= m["arena_target_bytes"] and m["used_bytes"] == 0 for m in memory):
            return
        time.sleep(0.05)
    raise SystemExit(f"bench: the arenas were not whole again after {PATIENCE} s")


class Bench:
    """A checkpoint, the daemons of `ranks` ranks, and the samples taken with them."""

    def __init__(self, daemons, source, nbytes, ranks, apart=None, **others):
        """apart: the daemons of contenders.APART. others: folders of contenders.Job, where they are read."""
        self.daemons, self.apart = daemons, apart
        self.source, self.nbytes, self.ranks = source, nbytes, ranks
        folders = ("saved", "saved_elsewhere", "pickled", "training", "of_peer")
        self.others = {**dict.fromkeys(folders, source), **others}
        self.files = contenders.files_of(source)

    def floor(self, kind):
        answer = subprocess.run([sys.executable, str(HERE / "floors.py"), kind, *map(str, self.files)],
                                capture_output=True, text=True, timeout=PATIENCE, check=True)
        return {"seconds": float(answer.stdout)}

    def daemons_of(self, contender):
        return self.apart if contender in contenders.APART else self.daemons

    def sample(self, contender, check=False, cold=False):
        if contenders.is_ours(contender):
            forget(self.daemons_of(contender), self.ranks)
        if contender == "ckptd, re-attach":
            # Each function states its model in its own way: what another one left would be loaded anew.
            self.run_ranks("ckptd, digests on", False)
        if cold:
            contenders.drop_from_page_cache(self.files)
        return self.run_ranks(contender, check, [] if cold else self.read_by(contender))

    def read_by(self, contender):
        """The files that a loader reads."""
        what = contenders.READS.get(contender)
        return [path for path in self.others[what].rglob("*") if path.is_file()] if what else self.files

    def run_ranks(self, contender, check, warm=(), gate=None):
        """gate(): called when all ranks are about to load; the moment when they do, by time.monotonic()."""
        with tempfile.TemporaryDirectory() as folder:
            spec = pathlib.Path(folder, "spec.json")
            spec.write_text(json.dumps({
                "contender": contender, "ranks": self.ranks, "bytes": self.nbytes, "check": check,
                "folder": folder, "store": str(pathlib.Path(folder, "store")), "source": str(self.source),
                **{what: str(path) for what, path in self.others.items()},
                "gate": str(pathlib.Path(folder, "gate")) if gate else None,
                "warm": [str(path) for path in warm]}))
            processes = []
            try:
                for rank in range(self.ranks):
                    environment = {**self.daemons_of(contender).environment, "RANK": str(rank), "LOCAL_RANK": str(rank),
                                   "WORLD_SIZE": str(self.ranks), "OMP_NUM_THREADS": "1"}
                    with open(pathlib.Path(folder, f"log-{rank}"), "wb") as log:
                        processes.append(subprocess.Popen([sys.executable, str(HERE / "sample.py"), str(spec),
                                                           str(rank)], env=environment, stdin=subprocess.PIPE,
                                                          stdout=log, stderr=log))
                if gate:
                    self._await(folder, "gate-{}", contender, processes)
                    moment = pathlib.Path(folder, "moment")
                    moment.write_text(repr(gate()))
                    moment.rename(pathlib.Path(folder, "gate"))
                return self._results(folder, contender, processes)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()

    def _await(self, folder, name, contender, processes):
        """The files that ranks write, one each."""
        files = [pathlib.Path(folder, name.format(rank)) for rank in range(self.ranks)]
        deadline = time.monotonic() + PATIENCE
        while not all(file.exists() for file in files):
            for rank, process in enumerate(processes):
                if process.poll() is not None or time.monotonic() > deadline:
                    log = pathlib.Path(folder, f"log-{rank}").read_text()[-3000:]
                    raise SystemExit(f"bench: {contender}: rank {rank} did not finish:\n{log}")
            time.sleep(0.02)
        return files

    def _results(self, folder, contender, processes):
        files = self._await(folder, "rank-{}.json", contender, processes)
        # While all of them hold what they have loaded.
        daemons = daemon_memory(self.daemons_of(contender), self.ranks) if contenders.is_ours(contender) else None
        ranks = [json.loads(file.read_text()) for file in files]
        slowest = max(ranks, key=lambda r: r["touched"])
        return {
            "seconds": slowest["touched"],
            "loaded": max(r["loaded"] for r in ranks),
            "stages": slowest.get("stages"),
            "memory": [r["memory"] for r in ranks],
            "daemons": daemons,
            "checksums": [r.get("checksums") for r in ranks],
        }


def check_bytes(samples):
    """Every contender put the same bytes on every rank; what the slices of the files are."""
    checked = [sample["checksums"] for sample in samples.values() if sample.get("checksums")]
    expected = samples.get("safetensors get_slice + clone", {}).get("checksums", checked[0])
    for name, sample in samples.items():
        found = sample.get("checksums")
        if not found:
            continue
        wanted = expected
        if name == resuming.WEIGHTS:  # and no states
            wanted = [{k: v for k, v in sums.items() if k in mine} for sums, mine in zip(expected, found)]
        if found != wanted:
            rank = next(r for r, sums in enumerate(wanted) if found[r] != sums)
            wrong = [k for k, v in wanted[rank].items() if found[rank].get(k) != v]
            raise SystemExit(f"bench: {name} put other bytes on rank {rank}: {wrong[:3]}")


def run(bench, names, rounds, floor, cold, say):
    """name -> samples of `rounds` rounds, after one that is dropped but has its bytes compared."""
    found = {name: [] for name in (floor, *names)}
    for number in range(rounds + 1):
        first, order = {}, list(found)
        # What ran just before weighs on some: memory that was freed goes back to the host.
        random.Random(number).shuffle(order)
        for name in order:
            say(f"{f'round {number}/{rounds}' if number else 'warming up'}  {name}")
            if name == floor:
                if cold:
                    contenders.drop_from_page_cache(bench.files)
                sample = bench.floor("cold" if cold else "warm")
            else:
                sample = bench.sample(name, check=number == 0, cold=cold)
            if number == 0:
                first[name] = sample
            else:
                sample.pop("checksums", None)
                found[name].append(sample)
        if first:
            check_bytes(first)
    return found


def daemon_memory(daemons, ranks):
    """Proportional bytes of the daemons; None where this user may not look."""
    totals = {"shmem": 0, "anon": 0, "rss": 0}
    for rank in range(ranks):
        try:
            lines = open(f"/proc/{daemons.info(rank)['pid']}/smaps_rollup").read().splitlines()
        except OSError:
            return None
        for line in lines:
            for key, label in (("shmem", "Pss_Shmem:"), ("anon", "Pss_Anon:"), ("rss", "Rss:")):
                if line.startswith(label):
                    totals[key] += int(line.split()[1]) * 1024
    return totals


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
