"""How loading, attaching and the daemons' memory grow with bytes, tensors, ranks and clients.

Each point has daemons of its own and an arena that fits. Its clients, without torch, start
together: once the files are loaded by their request, once what is resident is mapped anew.
"""

import contextlib
import dataclasses
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import fixed
import floors
import plot
import rounds

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = 3  # measured; one more is dropped
MB = 1_000_000
TARGET = 1.1  # exponents up to here count as linear


@dataclasses.dataclass
class Point:
    """What is measured: `count` tensors of `nbytes` in all, cut for `ranks`, for `clients` of each."""

    x: int
    count: int
    nbytes: int
    ranks: int = 2
    clients: int = 1


@dataclasses.dataclass
class Axis:
    name: str
    what: str
    why: str  # it bends where it does
    points: list
    unit: str = ""


AXES = (
    Axis("bytes", "bytes of a checkpoint of 200 tensors, 2 ranks",
         "below some 100 MB a load is mostly what any load costs: a request, a commit, an attach;\n  "
         "a re-attach maps huge pages, which costs next to nothing",
         [Point(n * MB, 200, n * MB) for n in (50, 100, 200, 400, 800, 1600)], "B"),
    Axis("tensors", "tensors of 4 KB, 2 ranks",
         "below some 1,000 tensors the fixed cost prevails; then each is planned, sent and listed,\n  "
         "and each daemon keeps under 1 KB of it",
         [Point(n, n, n * 4096) for n in (100, 300, 1000, 3000, 10_000, 20_000)]),
    Axis("ranks", "ranks that share 400 MB in 200 tensors",
         "the transfer does not grow; each rank adds the work of a daemon and of a client, and they share the cores",
         [Point(n, 200, 400 * MB, ranks=n) for n in (1, 2, 4, 8)]),
    Axis("clients", "clients at once of one daemon, 50 MB in 200 tensors",
         "an attach costs the same CPU time each, four fifths of it in the client; beyond the cores they wait in turn",
         [Point(n, 200, 50 * MB, ranks=1, clients=n) for n in (1, 2, 4, 8, 16, 32, 64)]),
)
TIMES = {"load": "load", "attach": "re-attach"}


class Crowd:
    """Client processes of crowd.py, some for each rank, that act at one moment."""

    def __init__(self, daemons, path, ranks, clients):
        self.processes = []
        for number in range(ranks * clients):
            environment = {**daemons.environment, "RANK": str(number % ranks), "WORLD_SIZE": str(ranks)}
            self.processes.append(subprocess.Popen(
                [sys.executable, str(HERE / "crowd.py"), str(path), f"fsdp:{ranks}", str(rounds.PATIENCE)],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def answers(self):
        """One line of each; a client that waits too long ends by itself."""
        lines = []
        for number, process in enumerate(self.processes):
            line = process.stdout.readline()
            if not line:
                code = process.wait(timeout=rounds.PATIENCE)
                why = f"it waited {rounds.PATIENCE} s" if code == -signal.SIGALRM else process.stderr.read()[-2000:]
                raise SystemExit(f"bench: client {number} of {len(self.processes)} ended with code {code}: {why}")
            lines.append(line)
        return lines

    def say(self, text):
        for process in self.processes:
            process.stdin.write(f"{text}\n")
            process.stdin.flush()

    def attach(self, resident):
        """Seconds from a common moment to the last client's mapped shard, and its load's stages."""
        self.say(time.monotonic() + 0.05 + 0.001 * len(self.processes))
        found = [json.loads(line) for line in self.answers()]
        if resident and not all(answer["resident"] for answer in found):
            raise SystemExit("bench: a client did not find what had just been loaded")
        slowest = max(found, key=lambda answer: answer["seconds"])
        return {"seconds": slowest["seconds"], "stages": slowest["stages"]}

    def leave(self):
        self.say("leave")
        self.answers()

    def close(self):
        for process in self.processes:
            process.kill()
            process.communicate()


def measure(start, folder, point):
    """One point: samples of loading and attaching, bytes of the daemons beside their arenas if they may be seen."""
    path = fixed.make(folder, point.count, point.nbytes)
    floors.touch_files([path])
    found = {"x": point.x, **{kind: [] for kind in TIMES}}
    arena = point.nbytes // point.ranks * 21 // 20 + (8 << 20)
    with start(point.ranks, arena) as daemons, \
            contextlib.closing(Crowd(daemons, path, point.ranks, point.clients)) as crowd:
        crowd.answers()
        for number in range(ROUNDS + 1):
            rounds.forget(daemons, point.ranks)
            for kind in TIMES:
                sample = crowd.attach(resident=kind == "attach")
                memory = rounds.daemon_memory(daemons, point.ranks)
                crowd.leave()
                if number > 0:
                    found[kind].append(sample)
        found["memory"] = memory and memory["anon"]
    return found


def run(start, folder, say):
    """Axis name -> its measured points."""
    found = {}
    for axis in AXES:
        found[axis.name] = []
        for point in axis.points:
            say(f"growth: {plot.si(point.x, axis.unit)} of {axis.what}")
            found[axis.name].append(measure(start, folder, point))
    return found


def curves(points):
    """(seconds, bytes): name of a curve -> [(x, y)]."""
    seconds = {name: [(p["x"], statistics.median(s["seconds"] for s in p[kind])) for p in points]
               for kind, name in TIMES.items()}
    memory = [(p["x"], p["memory"]) for p in points if p["memory"]]
    return seconds, {"daemons beside the arena": memory} if memory else {}


def draw(found, folder):
    """Writes the plots and returns their paths."""
    paths = []
    for axis in AXES:
        for suffix, unit, series in zip(("", "-memory"), ("s", "B"), curves(found[axis.name])):
            if series:
                paths.append(folder / f"growth-{axis.name}{suffix}.svg")
                what = "seconds" if unit == "s" else "memory"
                paths[-1].write_text(plot.svg(f"{what} against {axis.name}".capitalize(), axis.what, series,
                                              (axis.unit, unit)), encoding="utf-8")
    return paths


def text(found):
    """All points, a line each."""
    lines = []
    for axis in AXES:
        lines.append(f"\n{axis.what}\n  {axis.why}")
        for point in found[axis.name]:
            seconds = ", ".join(f"{kind} {plot.si(statistics.median(s['seconds'] for s in point[kind]), 's'):>7}"
                                for kind in TIMES)
            memory = f", daemons beside the arena {plot.si(point['memory'], 'B')}" if point["memory"] else ""
            lines.append(f"  {plot.si(point['x'], axis.unit):>7}  {seconds}{memory}")
    return "\n".join(lines)


def judge(table, found):
    """Exponents of the upper half of each curve beside linear."""
    for axis in AXES:
        for series in curves(found[axis.name]):
            for name, points in series.items():
                # Rounded as it is shown; + 0.0 for no -0.
                slope = round(plot.exponent(points), 2) + 0.0
                table.at_most(f"{name} against {axis.name}, exponent", slope, TARGET, "")
