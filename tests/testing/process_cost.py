"""The cost of a running process until it has answered: time of its processor, and memory."""

import contextlib
import os
import pathlib
import types

MEBIBYTE = 1 << 20


def _memory(pid, field):
    """VmRSS or VmHWM, its peak, in bytes."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def cpu_seconds(pid):
    """CPU seconds of all its threads so far, also of those that have ended."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def cost_of(pid):
    """Afterwards what it gives has `seconds`, and `growth`, the most memory above that of before."""
    cost = types.SimpleNamespace(seconds=None, growth=None)
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    memory, seconds = _memory(pid, "VmRSS"), cpu_seconds(pid)
    yield cost
    cost.growth, cost.seconds = _memory(pid, "VmHWM") - memory, cpu_seconds(pid) - seconds
