"""A group of real daemons under `ckptd launch`, for tests. Everything it starts ends with it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin"
PATIENCE = 60
# Seconds in which a busy machine does what takes moments. Tests of what ends soon give the load, or
# whatever would end it otherwise, PATIENCE or more.
SOON = 30


def sanitized():
    """Whether the daemons report their own mistakes: slower, and with far more address space."""
    cache = BINARIES.parent / "CMakeCache.txt"
    return cache.exists() and "\nCKPTD_SANITIZE:STRING=address" in cache.read_text()


def wait_until(condition, what, seconds=PATIENCE):
    """The first true value of condition(); fails naming `what` after `seconds`."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < seconds:
        value = condition()
        if value:
            return value
        time.sleep(min(0.02 + waited / 20, 0.1))  # to ask costs what others could compute
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def clean_environment():
    foreign = ("CKPTD_", "SLURM_", "TORCHELASTIC_", "PET_", "LWS_", "JOBSET_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
             "MASTER_ADDR", "JOB_COMPLETION_INDEX")
    # Many daemons run at once here: none takes memory ahead, but where a test is about that (DEFAULT_ARENA).
    # A daemon that was killed comes back empty, but where a test is about that (KEPT).
    return {**{k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in names}, "CKPTD_ARENA": "0",
            "CKPTD_KEEPER": "none"}


DEFAULT_ARENA = {"CKPTD_ARENA": ""}  # as where nobody has said anything
KEPT = {"CKPTD_KEEPER": ""}


# Of daemons that are started one by one, as an operator would give it to them.
KEY = "9d0c1be75f3a4682d19b7ec0a35f826411f0a7c95e2d38b46c80f7139ae5b2d4"  # of groups that tests start rank by rank


def key_for(options):
    """The environment's part of it, unless `options` say how the daemons know each other."""
    own = any(str(option).startswith(("--peer-auth", "--tls", "--group-key")) for option in options)
    return {} if own else {"CKPTD_GROUP_KEY": KEY}


# What tests do to daemons; nothing else may end one that launch then restarts.
BY_TESTS = re.compile(r"signal (9|15) ")


def assert_ended_well(log, known=BY_TESTS):
    """Launch says of every daemon that it restarts, or that stops badly, how it ended."""
    ends = re.findall(r"rank \d+ (?:was told to stop and )?ended with .*", log)
    bad = [end for end in ends if not known.search(end)]
    assert not bad, f"{bad}:\n{log}"


def save(path, tensors):
    """Writes torch tensors to a safetensors file; its path as text."""
    from safetensors.torch import save_file
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path))
    return str(path)


def save_in_files(folder, tensors, count):
    """Writes torch tensors to so many safetensors files with an index; the folder as text."""
    names = sorted(tensors)
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in names[number::count]}
        save(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return str(folder)

# Protobuf writes 64-bit integers as strings, because many programs read numbers as doubles.
WIDE = re.compile(r"(.*_)?bytes(_total|_done)?|epoch|offset|tensor_count")


def parsed(text):
    """What ckptctl printed as JSON, with numbers to compute with."""
    def with_numbers(found):
        return {key: int(value) if isinstance(value, str) and WIDE.fullmatch(key) else value
                for key, value in found.items()}
    return json.loads(text, object_hook=with_numbers)


class Group:
    def __init__(self, folder, ranks, *options, job="job", command=(), wrapper=(), environment=None):
        """wrapper: a command that runs its arguments, such as prlimit."""
        self.ranks, self.job, self.run_dir = ranks, job, pathlib.Path(folder)
        # Launch passes the end of its command on.
        self.good_end = 128 + signal.SIGTERM if command else 0
        self.known_ends = BY_TESTS  # of daemons
        self.environment = {**clean_environment(), "CKPTD_RUN_DIR": str(self.run_dir), "CKPTD_JOB": job,
                            **(environment or {})}
        self.log_path = self.run_dir / f"{job}.log"
        arguments = [*self.verb(), "--segment-bytes", "2MiB", *map(str, options)]
        if command:
            arguments += ["--", *map(str, command)]
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen([*wrapper, BINARIES / "ckptd", *arguments], env=self.environment,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            text=True)

    def verb(self):
        return "launch", "--nproc", str(self.ranks)

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self.stop()
        else:
            self.end()  # how it ended matters less than why

    def close(self):
        self.stop()

    def stop(self):
        """Fails unless all of it ended well, but for what the test has ended itself."""
        running = self.process.poll() is None
        self.end()
        code = self.process.returncode
        assert not running or code == self.good_end, f"ended with {code}:\n{self.log()}"
        assert_ended_well(self.log(), self.known_ends)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE)

    def log(self):
        return self.log_path.read_text()

    def address(self, rank):
        return f"unix://{self.run_dir}/{self.job}/rank-{rank}.sock"

    def ctl(self, *arguments, rank=0):
        return subprocess.run([BINARIES / "ckptctl", "--output", "json", "--rank", str(rank), *map(str, arguments)],
                              env=self.environment, capture_output=True, text=True, timeout=PATIENCE)

    def json(self, *arguments, rank=0):
        answer = self.ctl(*arguments, rank=rank)
        assert answer.returncode == 0, answer.stderr
        return parsed(answer.stdout)

    def error(self, *arguments, rank=0):
        answer = self.ctl(*arguments, rank=rank)
        assert answer.returncode != 0, answer.stdout
        return json.loads(answer.stderr.strip().splitlines()[-1] if answer.stderr.count("\n") == 1
                          else answer.stderr)["error"]

    def unload(self, name, rank=0):
        """Once nobody leases it: what a client has closed, its daemon hears a moment later."""
        def unloaded():
            answer = self.ctl("unload", name, rank=rank)
            assert answer.returncode == 0 or '"LEASED"' in answer.stderr, answer.stderr
            return answer.returncode == 0
        wait_until(unloaded, f"{name} to be unloaded at rank {rank}")

    def info(self, rank=0):
        answer = self.ctl("info", rank=rank)
        return parsed(answer.stdout) if answer.returncode == 0 else None

    def ready(self):
        infos = [self.info(rank) for rank in range(self.ranks)]
        return all(infos) and all(i["state"] == "READY" for i in infos) and infos

    def wait_ready(self):
        def probe():
            assert self.process.poll() is None, f"launch ended early:\n{self.log()}"
            return self.ready()
        return wait_until(probe, f"a complete group:\n{self.log()}")

    def pid(self, rank):
        return self.info(rank)["pid"]

    def kill(self, rank, number=signal.SIGKILL):
        """Kills a daemon and waits until launch has brought another one into the group."""
        before = self.pid(rank)
        os.kill(before, number)
        wait_until(lambda: (lambda infos: infos and infos[rank]["pid"] != before)(self.ready()),
                   f"rank {rank} to be back:\n{self.log()}")


class Daemon(Group):
    """One rank's daemon without a supervisor; rank 0's is on any free port unless one is named."""

    def __init__(self, folder, *options, ranks=1, rank=0, rendezvous="127.0.0.1:0", **named):
        self.rank, self.rendezvous = rank, rendezvous
        named["environment"] = {**key_for(options), **named.get("environment", {})}
        super().__init__(folder, ranks, *options, **named)

    def verb(self):
        return ("run", "--rank", str(self.rank), "--world-size", str(self.ranks),
                "--rendezvous", self.rendezvous)

    def ready(self):
        info = self.info(self.rank)
        return info and [info]
