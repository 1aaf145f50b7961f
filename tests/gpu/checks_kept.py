"""What becomes of memory when no process has the GPU open: this step opens no driver itself."""

import json
import subprocess

from bench import MIB
from checks_driver import HOLDER
from gpu_record import Checks, NotShown

checks = Checks()


def smi(query, *more):
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits", *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotShown(f"nvidia-smi: {error}") from None
    if done.returncode != 0:
        raise NotShown(f"nvidia-smi: {done.stdout.strip() or done.stderr.strip()}")
    return done.stdout.strip()


@checks(
    "a descriptor alone keeps memory while nobody has the GPU open (either answer passes)",
    "gpu",
)
def nobody(bench):
    gpu = f"--id={bench.uuid}"
    mode = smi("gpu=persistence_mode", gpu)
    before = int(smi("gpu=memory.used", gpu))
    size = 1024 * MIB
    holder = bench.program(HOLDER, bench.uuid, size)
    assert json.loads(holder.hear())["held"]
    used = int(smi("gpu=memory.used", gpu)) - before
    processes = smi("compute-apps=pid", gpu)
    said = json.loads(holder.ask("read"))
    return {
        "kept": said.get("same") is True,
        "persistence mode": mode,
        "MiB more in use": used,
        "processes that nvidia-smi lists": processes.splitlines(),
    }
