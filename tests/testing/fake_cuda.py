"""The fake CUDA driver (tests/fakes/cuda) for tests: its configuration, its environment, its trace."""

import fcntl
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "fakes" / "libcuda.so.1"
TWINS = LIBRARY.parent / "libckptd_twins.so"


def why_not():
    """None where the fake is built, else the reason in one line."""
    if not LIBRARY.exists():
        return f"{LIBRARY} is not built (it needs cuda.h)"
    return None


class FakeCuda:
    """Fake GPUs that every process with `environment()` shares.

    `options` are lines of the configuration (tests/fakes/cuda/README.md); dots are written as
    two underscores, and faults are given as text:

        FakeCuda(tmp_path, gpus=2, uuid__0="GPU-...", faults=["cuMemCreate nth=2 error=2"])
    """

    def __init__(self, folder, *, faults=(), **options):
        self.folder = pathlib.Path(folder) / "fake-cuda"
        self.folder.mkdir()
        self.config = self.folder / "config"
        self.trace_path = self.folder / "trace"
        # Fresh memory holds what somebody left there, as a GPU's may.
        found = {"state_dir": "state", "trace": "trace", "twins": TWINS, "fill": "0xcb"}
        self.options = {**found, **options}
        self.faults = list(faults)
        self._write()

    def _write(self):
        lines = [f"{key.replace('__', '.')} = {value}" for key, value in self.options.items()]
        # The number of GPUs first: the other lines are about those.
        lines.sort(key=lambda line: not line.startswith("gpus"))
        lines += [f"fault = {fault}" for fault in self.faults]
        self.config.write_text("\n".join(lines) + "\n")

    def script(self, *faults):
        """Other faults, for processes that start from now on."""
        self.faults = list(faults)
        self._write()

    def environment(self, role=None):
        """What a process needs to find the fake, over the environment of this one."""
        found = os.environ.get("LD_LIBRARY_PATH")
        path = f"{LIBRARY.parent}:{found}" if found else str(LIBRARY.parent)
        own = {"LD_LIBRARY_PATH": path, "CKPTD_FAKE_CUDA": str(self.config)}
        return {**own, "CKPTD_FAKE_CUDA_ROLE": role} if role else own

    def held_bytes(self):
        """Bytes of device memory that any process has by a handle, a mapping or a descriptor."""
        total, state = 0, self.folder / "state"
        if not (state / "lock").exists():
            return 0  # nobody has had any yet
        with open(state / "lock") as lock:
            # A process that makes a file, locks it or removes it has this lock.
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path in state.glob("*-*-*-*"):
                with open(path) as file:
                    try:
                        # Each holder has a shared lock, which the kernel drops with the last descriptor.
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        total += os.fstat(file.fileno()).st_size
        return total

    def trace(self, pid=None, having=""):
        """The lines so far that contain a text, of one process or of all, as dicts."""
        if not self.trace_path.exists():
            return []
        with open(self.trace_path) as file:
            lines = [json.loads(line) for line in file if having in line]
        return [line for line in lines if pid is None or line["pid"] == pid]

    def calls(self, name, pid=None, result=None):
        """The calls of a function, by its unsuffixed name."""
        found = [line for line in self.trace(pid, f'"{name}"') if line.get("call") == name]
        return [line for line in found if result is None or line["result"] == result]

    def violations(self, pid=None):
        """What no program may do, as texts."""
        lines = self.trace(pid, '"violation"')
        return [line["violation"] for line in lines if "violation" in line]

    def leaks(self, pid):
        """What a process still held when it ended; None if it was killed or runs still."""
        lines = self.trace(pid, '"atexit"')
        ends = [line for line in lines if line.get("event") == "atexit"]
        return ends[-1]["leaks"] if ends else None
