"""What checks say of themselves: passed, failed, not shown, and figures."""

import json
import time
import traceback
from typing import Callable, List, NamedTuple, Optional, Sequence

PASSED, FAILED, NOT_SHOWN = "passed", "failed", "not shown"
_FRAMES = 3  # of a traceback, in a reason


class NotShown(Exception):
    """Raised by a check that cannot be made here: why."""


class Check(NamedTuple):
    name: str  # a sentence about behaviour
    needs: Sequence[str]  # of NEEDS
    run: Callable


# What a check may need, and what is said where it is missing.
NEEDS = {
    "torch": "there is no PyTorch",
    "gpu": "there is no real GPU",
    "torch on a GPU": "PyTorch sees no GPU",
    "safetensors": "the package safetensors is missing",
    "numpy": "the package numpy is missing",
}


class Checks:
    """The checks of one module, in order; use it as a decorator."""

    def __init__(self):
        self.all: List[Check] = []

    def __call__(self, name: str, *needs: str):
        assert all(need in NEEDS for need in needs), needs

        def add(function):
            self.all.append(Check(name, needs, function))
            return function

        return add


class Record:
    """Appends what happened to a file, line by line, so that nothing is lost with the process."""

    def __init__(self, path, has: Sequence[str]):
        self._file, self._has = open(path, "a", buffering=1), set(has)

    def _write(self, **line) -> None:
        self._file.write(json.dumps(line) + "\n")

    def figure(
        self, name: str, value: float, unit: str, target: Optional[str] = None, beside: str = ""
    ) -> None:
        """target: such as ">= 0.95", in the same unit; beside: what it was measured against."""
        met = None
        if target is not None:
            sign, bound = target.split()
            met = value >= float(bound) if sign == ">=" else value <= float(bound)
        self._write(
            kind="figure", name=name, value=value, unit=unit, target=target, met=met, beside=beside
        )

    def not_measured(self, name: str, reason: str) -> None:
        self._write(kind="figure", name=name, value=None, reason=reason)

    def run(self, check: Check, bench) -> None:
        """Runs one check. A check returns nothing, or a dict of facts worth keeping."""
        self._write(kind="begin", name=check.name)
        begin = time.monotonic()
        result, reason, facts = PASSED, "", {}
        lacking = [need for need in check.needs if need not in self._has]
        try:
            if lacking:
                raise NotShown(NEEDS[lacking[0]])
            facts = check.run(bench) or {}
        except NotShown as why:
            result, reason = NOT_SHOWN, str(why)
        except Exception as error:  # one that fails does not stop the others
            result, reason = FAILED, _sentence(error)
            traceback.print_exc()
        seconds = time.monotonic() - begin
        self._write(
            kind="check",
            name=check.name,
            result=result,
            reason=reason,
            seconds=seconds,
            facts=facts,
        )


def _sentence(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    text = str(error).strip() or (frames[-1].line if frames else "") or ""
    return f"{type(error).__name__}: {text[-1500:]} ({where})"
