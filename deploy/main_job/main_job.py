"""The main job, end to end: checkpoint, daemons, trainers, SIGKILL, re-attach, proof.

    python main_job.py --bytes 500MB --ranks 2
"""

import argparse
import contextlib
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import make_checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 600  # seconds for any one thing


class Failure(Exception):
    """A sentence for people: what went wrong and what to try."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class Daemons:
    """`ckptd launch`, in a run directory of its own."""

    def __init__(self, binaries, run_dir, ranks, arena):
        self.binaries, self.run_dir = binaries, run_dir
        # A job of its own: daemons that an earlier run kept are left alone.
        job = f"main-{os.getpid()}"
        self.log = run_dir / f"{job}.log"
        self.folder = run_dir / job
        self.environment = {**os.environ, "CKPTD_RUN_DIR": str(run_dir), "CKPTD_JOB": job,
                            "CKPTD_ADDRESS": f"unix://{run_dir}/{job}/rank-{{rank}}.sock"}
        arguments = ["launch", "--nproc", str(ranks), "--job", job, "--run-dir", str(run_dir),
                     "--memory", "host", "--arena", str(arena)]
        self.process = subprocess.Popen([binaries / "ckptd", *arguments], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=open(self.log, "w"),
                                        start_new_session=True)
        try:
            self.wait(ranks)
        except BaseException:
            self.stop()
            raise

    def wait(self, ranks):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failure(f"the daemons ended at once; their log:\n{self.log.read_text()}")
            infos = [self.info(rank) for rank in range(ranks)]
            # The arena is faulted in the background, and is worth waiting for.
            if all(i and i["state"] == "READY" and
                   i["memory"]["arena_bytes"] >= i["memory"]["arena_target_bytes"] for i in infos):
                return
            time.sleep(0.05)
        raise Failure(f"the daemons were not ready within 2 minutes; their log:\n{self.log.read_text()}")

    def ctl(self, *arguments):
        return subprocess.run([self.binaries / "ckptctl", "--output", "json", *arguments], env=self.environment,
                              capture_output=True, text=True, timeout=PATIENCE)

    def info(self, rank):
        answer = self.ctl("--rank", str(rank), "info")
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def json(self, *arguments):
        answer = self.ctl(*arguments)
        if answer.returncode != 0:
            raise Failure(f"ckptctl {' '.join(arguments)}: {answer.stderr.strip()}")
        return json.loads(answer.stdout)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class Trainers:
    """One trainer process per rank; their JSON lines arrive in one queue."""

    def __init__(self, daemons, source, nbytes, ranks, *options):
        port = free_port()
        self.lines, self.processes, self.said = queue.Queue(), [], []
        for rank in range(ranks):
            environment = {**daemons.environment, "RANK": str(rank), "LOCAL_RANK": str(rank),
                           "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "deploy/main_job/train.py"), str(source), "--bytes", str(nbytes), *options],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.processes.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process):
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                self.lines.put(json.loads(line))
        error = process.stderr.read()
        self.lines.put({"event": "ended", "code": process.wait(), "error": error})

    def wait(self, event, count, step=None):
        """The `event` lines of `count` ranks."""
        found, deadline = {}, time.monotonic() + PATIENCE
        while len(found) < count:
            try:
                line = self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"the trainers did not come to \"{event}\" within {PATIENCE} s") from None
            if line["event"] == "ended" and line["code"] != 0:
                raise Failure(f"a trainer ended with code {line['code']}:\n{line['error'].strip()[-2000:]}")
            if line["event"] == event and (step is None or line["step"] == step):
                found[line["rank"]] = line
        return [found[rank] for rank in sorted(found)]

    def kill(self, rank):
        self.processes[rank].send_signal(signal.SIGKILL)
        return self.processes[rank].wait(timeout=30)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=30)


def slowest(lines):
    return max(line["seconds"] for line in lines)


def report_load(daemons, loaded, nbytes, ranks):
    checkpoint = daemons.json("get", loaded[0]["checkpoint"])
    progress = checkpoint["progress"]
    transfer = next((s["seconds"] for s in progress["stages"] if s["stage"].upper() == "TRANSFERRING"), 0)
    read, sent = int(progress["storage_bytes"]), int(progress["sent_bytes"])
    rate = f", placed at {nbytes / transfer / 1e9:.1f} GB/s" if transfer else ""
    print(f"  load            {slowest(loaded):8.3f} s    slowest of {ranks} ranks, call to usable parameters{rate}")
    print(f"  storage read    {read / nbytes:8.3f} x    the checkpoint's {gigabytes(nbytes)}, by rank 0 alone")
    print(f"  sent to others  {sent / nbytes:8.3f} x    only what each rank keeps")
    copied = sum(line["copied"] for line in loaded)
    print(f"  copied          {copied:8d}      tensors whose memory is not the daemon's")
    if copied or read != nbytes:
        raise Failure("bytes were copied, or read more than once; see the lines above")


def compare_all(trainers, ranks, nbytes):
    compared = sum(line["bytes"] for line in trainers.wait("compared", ranks))
    if compared != nbytes:
        raise Failure(f"{compared} bytes were compared, the checkpoint has {nbytes}")
    return compared


def run(arguments):
    source = arguments.directory / f"llama-{arguments.bytes}"
    begin = time.perf_counter()
    nbytes = make_checkpoint.make(source, arguments.bytes)
    print(f"checkpoint: {source}, {gigabytes(nbytes)} in bf16 ({time.perf_counter() - begin:.1f} s)")
    run_dir = arguments.directory / "run"
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    per_rank = nbytes // arguments.ranks * 21 // 20 + (4 << 20)
    daemons = Daemons(arguments.binaries, run_dir, arguments.ranks, per_rank)
    trainers = None
    try:
        print(f"daemons: {arguments.ranks}, ready; log: {daemons.log}")
        common = (daemons, source, arguments.bytes, arguments.ranks)
        trainers = Trainers(*common, "--hold")
        loaded = trainers.wait("loaded", arguments.ranks)
        report_load(daemons, loaded, nbytes, arguments.ranks)
        compare_all(trainers, arguments.ranks, nbytes)
        last = trainers.wait("step", arguments.ranks, arguments.steps)
        print(f"  trained         {arguments.steps:8d}      steps in place, loss {last[0]['loss']:.3f}")
        victim = arguments.ranks - 1
        trainers.kill(victim)
        trainers.end()
        print(f"  killed                   trainer {victim} with SIGKILL; the job starts again")

        trainers = Trainers(*common, "--steps", "1")
        again = trainers.wait("loaded", arguments.ranks)
        if not all(line["resident"] for line in again):
            raise Failure("a restarted trainer was not given the resident shard")
        print(f"  re-attached     {slowest(again) * 1e3:8.1f} ms   slowest rank, call to usable parameters")
        late = max(again, key=lambda line: line["seconds"])["stages"]
        stages = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in late.items() if name != "total")
        print(f"                           {stages}")
        compared = compare_all(trainers, arguments.ranks, nbytes)
        trainers.wait("step", arguments.ranks, 1)
        for rank in range(arguments.ranks):
            check = daemons.json("--rank", str(rank), "verify", again[0]["checkpoint"])
            if check.get("mismatched"):
                raise Failure(f"rank {rank}: digests differ: {check['mismatched'][:3]}")
        print(f"  compared        {gigabytes(compared):>11}   on the ranks with the files, byte for byte; digests right")
        if arguments.keep:
            print(f"daemons kept: export CKPTD_ADDRESS='{daemons.environment['CKPTD_ADDRESS']}'; "
                  f"stop them with: kill {daemons.process.pid}")
    finally:
        if trainers is not None:
            trainers.end()
        if not arguments.keep or sys.exc_info()[0] is not None:
            daemons.stop()
    print(f"kept for the next run: {source} ({gigabytes(nbytes)}); remove it with rm -r {arguments.directory}")
    print("verified")


def main():
    parser = argparse.ArgumentParser(prog="deploy/quickstart", description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", "--size", dest="bytes", type=make_checkpoint.parse_bytes, default=300_000_000,
                        help="size of the checkpoint, e.g. 300MB (default) or 4GB")
    parser.add_argument("--ranks", type=int, default=2, help="daemons and trainers (default 2)")
    parser.add_argument("--steps", type=int, default=2, help="training steps before the kill (default 2)")
    parser.add_argument("--keep", action="store_true", help="leave the daemons running")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "main-job",
                        help="where the checkpoint and the sockets go")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "bin", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.directory = arguments.directory.resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        run(arguments)
    except Failure as failure:
        sys.exit(f"quickstart: {failure}")
    except KeyboardInterrupt:
        print("quickstart: interrupted; everything it started has been stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
