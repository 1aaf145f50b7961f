"""What the main job runs: daemons by `ckptd launch`, and one trainer per rank."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

PATIENCE = 600  # seconds for any one thing
# Becomes another program, which is asked to end when the main job is killed: prctl(PR_SET_PDEATHSIG).
UNTIL_WE_END = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def until_we_end(*command) -> list:
    """The command line of a program that does not outlive the thread that starts it, however that ends."""
    return [sys.executable, "-c", UNTIL_WE_END, str(os.getpid()), *map(str, command)]


class Failure(Exception):
    """A sentence for people: what went wrong and what to try."""


_held = []  # sockets of free_port


def free_port() -> int:
    """A port for a server that sets SO_REUSEADDR, as torch's store does.

    It stays bound here until this process ends, so that the system gives it to nobody else.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return held.getsockname()[1]


def own_job() -> str:
    return f"main-{os.getpid()}"


def environment_of(run_dir, job) -> dict:
    """Of a trainer of that job."""
    return {**os.environ, "CKPTD_RUN_DIR": str(run_dir), "CKPTD_JOB": job,
            "CKPTD_ADDRESS": f"unix://{run_dir}/{job}/rank-{{rank}}.sock"}


def parsed(text) -> dict:
    """What ckptctl printed as JSON. There 64-bit integers are strings, because many programs read numbers as doubles."""
    wide = re.compile(r"(.*_)?bytes(_total|_done)?")
    return json.loads(text, object_hook=lambda found: {
        key: int(value) if isinstance(value, str) and wide.fullmatch(key) else value for key, value in found.items()})


class Daemons:
    """`ckptd launch` with these options, in a run directory of its own. With `keep` they may outlive this process."""

    def __init__(self, binaries, run_dir, ranks, *options, keep=False):
        self.binaries, self.run_dir = binaries, run_dir
        # A job of its own: daemons that an earlier run kept are left alone.
        job = own_job()
        self.log = run_dir / f"{job}.log"
        self.folder = run_dir / job
        self.environment = environment_of(run_dir, job)
        arguments = ["launch", "--nproc", str(ranks), "--job", job, "--run-dir", str(run_dir), *options]
        command = [binaries / "ckptd", *arguments]
        self.process = subprocess.Popen(command if keep else until_we_end(*command), stdin=subprocess.DEVNULL,
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
            if all(info and self.ready(info) for info in infos):
                return
            time.sleep(0.05)
        raise Failure(f"the daemons were not ready within 2 minutes; their log:\n{self.log.read_text()}")

    def ready(self, info):
        # The arena is faulted in the background, and is worth waiting for.
        memory = info["memory"]
        return info["state"] == "READY" and memory["arena_bytes"] >= memory["arena_target_bytes"]

    def ctl(self, *arguments):
        return subprocess.run([self.binaries / "ckptctl", "--output", "json", *arguments], env=self.environment,
                              capture_output=True, text=True, timeout=PATIENCE)

    def info(self, rank):
        answer = self.ctl("--rank", str(rank), "info")
        return parsed(answer.stdout) if answer.returncode == 0 else None

    def json(self, *arguments):
        answer = self.ctl(*arguments)
        if answer.returncode != 0:
            raise Failure(f"ckptctl {' '.join(arguments)}: {answer.stderr.strip()}")
        return parsed(answer.stdout)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class Trainers:
    """One process of a program per rank, and all JSON lines that they have printed."""

    def __init__(self, program: pathlib.Path, environment: dict, ranks: int, *arguments):
        port = free_port()
        self.lines, self.processes = [], []
        self.changed = threading.Condition()
        for rank in range(ranks):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = subprocess.Popen(until_we_end(sys.executable, program, *arguments),
                                       env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.processes.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process):
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                self._add(json.loads(line))
        error = process.stderr.read()
        self._add({"event": "ended", "code": process.wait(), "error": error})

    def _add(self, line):
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()

    def wait(self, event, step=None):
        """The `event` lines of all ranks, in their order. One may be far ahead of another."""
        with self.changed:
            if not self.changed.wait_for(lambda: self._failed() or self._found(event, step), PATIENCE):
                raise Failure(f"the trainers did not come to \"{event}\" within {PATIENCE} s")
            failed = self._failed()
            if failed:
                raise Failure(f"a trainer ended with code {failed['code']}:\n{failed['error'].strip()[-2000:]}")
            return self._found(event, step)

    def _failed(self):
        ended = (line for line in self.lines if line["event"] == "ended")
        return next((line for line in ended if line["code"] != 0), None)

    def _found(self, event, step):
        """None until all have said it."""
        found = {line["rank"]: line for line in self.lines
                 if line["event"] == event and (step is None or line["step"] == step)}
        return [found[rank] for rank in sorted(found)] if len(found) == len(self.processes) else None

    def kill(self, rank):
        self.processes[rank].send_signal(signal.SIGKILL)
        return self.processes[rank].wait(timeout=30)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=30)
