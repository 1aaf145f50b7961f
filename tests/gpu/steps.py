"""The steps, each a process of its own with a deadline, and what they wrote down."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import List, NamedTuple

import place
from gpu_record import FAILED, NOT_SHOWN

LEAST_SECONDS = 10  # with less left, a step is not begun
PATIENCE_WITH_FAKE = 5  # times as long: processors that do other things as well take the GPU's part
_LOG = 100_000  # characters of a step's log that are kept
_NAME = re.compile(r'^@checks\(\s*"(.+?)"', re.M)


class Step(NamedTuple):
    module: str
    seconds: float  # at most
    client: bool = True  # needs the Python client and its packages

    def names(self) -> List[str]:
        """Of its checks, without importing what they need."""
        return _NAME.findall(pathlib.Path(importlib.util.find_spec(self.module).origin).read_text())


# What matters most comes first; what provokes a fault of the GPU, last.
STEPS = (
    Step("checks_kernels", 60, client=False),
    Step("checks_bytes", 75),
    Step("checks_contract", 120),
    Step("checks_lifetimes", 80),
    Step("checks_training", 120),
    Step("figures_load", 140),
    Step("figures_attach", 80),
    Step("checks_nccl", 90),
    Step("checks_kills", 80),
    Step("checks_communicators", 90),
    Step("checks_kinds", 45),
    Step("checks_arrays", 60),
    Step("checks_driver", 45),
    Step("checks_kept", 30),
    Step("checks_fault", 45),
)


class Runner:
    """Runs steps one by one and gathers `checks` and `figures`, printing them as they come."""

    def __init__(self, spec: dict, folder: pathlib.Path, deadline: float, unusable: str):
        self._spec, self._folder = spec, folder
        self._deadline, self._unusable = deadline, unusable
        self._process = None
        self.checks: List[dict] = []
        self.figures: List[dict] = []

    def run(self, step: Step) -> None:
        only = self._spec["only"]
        wanted = [
            n for n in step.names() if not only or any(w in n or w in step.module for w in only)
        ]
        if not wanted:
            return
        left = self._deadline - time.monotonic()
        if step.client and self._unusable:
            return self._skip(step, wanted, self._unusable)
        if left < LEAST_SECONDS:
            return self._skip(step, wanted, "no time was left for it")
        print(f"\n{step.module}:", flush=True)
        results = self._folder / f"{step.module}.jsonl"
        log = self._folder / f"{step.module}.log"
        spec = {**self._spec, "folder": str(self._folder), "results": str(results), "only": wanted}
        spec_path = self._folder / f"{step.module}.json"
        spec_path.write_text(json.dumps(spec))
        results.touch()
        with open(log, "wb") as file:
            # A session of its own: whatever it starts can be ended with it.
            self._process = subprocess.Popen(
                [sys.executable, "-B", str(place.HERE / "step.py"), step.module, str(spec_path)],
                env={**os.environ, **spec["environment"]},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        seconds = min(step.seconds * (PATIENCE_WITH_FAKE if spec["fake"] else 1), left)
        begun, ended = self._follow(step, results, time.monotonic() + seconds)
        self._sort_out(step, wanted, begun, ended, seconds, log)

    def _follow(self, step, results, deadline):
        """Prints what comes. Answers (check that did not end or None, exit code or None)."""
        begun, at = None, 0
        while True:
            over = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            late = time.monotonic() > deadline
            with open(results) as file:
                file.seek(at)
                for line in iter(file.readline, ""):
                    if line.endswith("\n"):
                        begun = self._take(step, json.loads(line), begun)
                        at += len(line.encode())
            if over is not None or late:
                self.end()
                return begun, None if over is None else self._code
            time.sleep(0.05)

    def end(self) -> None:
        """Ends the step and all that it started. Twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still ours
        self._code = process.wait()

    def _take(self, step, line, begun):
        kind = line.pop("kind")
        if kind == "begin":
            return line["name"]
        if kind == "figure":
            if self._spec["fake"]:
                line = {"name": line["name"], "value": None, "reason": "the driver is a fake"}
            self.figures.append({**line, "step": step.module})
            return begun
        self._add(step, line)
        return None

    def logs(self) -> str:
        """The ends of what the steps, and what they started, said on their error streams."""
        found = sorted(self._folder.glob("*.log"))
        return "".join(f"== {p.stem}\n{p.read_text(errors='replace')[-_LOG:]}\n" for p in found)

    def _add(self, step, check) -> None:
        self.checks.append({**check, "step": step.module})
        why = f": {check['reason']}" if check["reason"] else ""
        print(f"  {check['result']:9} {check['seconds']:6.1f} s  {check['name']}{why}", flush=True)

    def _add_reason(self, step, name, result, reason, seconds=0.0) -> None:
        self._add(
            step,
            {"name": name, "result": result, "reason": reason, "seconds": seconds, "facts": {}},
        )

    def _skip(self, step, names, reason) -> None:
        print(f"\n{step.module}:")
        for name in names:
            self._add_reason(step, name, NOT_SHOWN, reason)

    def _sort_out(self, step, wanted, begun, code, seconds, log) -> None:
        """Says what became of checks that did not come to their end."""
        done = {check["name"] for check in self.checks}
        tail = log.read_text(errors="replace").strip()[-1500:]
        if begun is not None:
            how = (
                f"it was not done {seconds:.0f} s after the step began"
                if code is None
                else f"the process ended with {code}"
            )
            self._add_reason(step, begun, FAILED, f"{how}; its log ends: {tail}", seconds)
        elif code not in (0, None):
            self._add_reason(
                step, f"{step.module} ends well", FAILED, f"it ended with {code}: {tail}"
            )
        for name in wanted:
            if name not in done and name != begun:
                self._add_reason(step, name, NOT_SHOWN, "the step ended before it")
