"""tests/gpu/run itself: what it makes of checks that fail, hang or cannot be made."""

import os
import pathlib
import sys
import time

import pytest
from process_state import runs

GPU = pathlib.Path(__file__).resolve().parents[1] / "gpu"
sys.path += [str(GPU), str(GPU.parent / "testing"), str(GPU.parent / "integration")]

import gpu_record as records  # noqa: E402
import gpu_report as report  # noqa: E402
import steps  # noqa: E402

MODULE = """
import os, subprocess, sys
from gpu_record import Checks, NotShown
checks = Checks()

@checks("this one passes")
def fine(bench):
    bench.figure("speed", 2.0, "x", ">= 3", "a floor")
    bench.figure("time", 1.0, "ms", "<= 1")
    return {"rows": 3}

@checks("this one fails")
def wrong(bench):
    assert 1 == 2, "one is not two"

@checks("this one needs what is not there", "torch on a GPU")
def lacking(bench):
    raise AssertionError("it was run")

@checks("this one finds that it cannot be made")
def cannot(bench):
    raise NotShown("the moon is missing")

@checks("this one does LAST")
def last(bench):
    WHAT

@checks("this one comes after")
def after(bench):
    pass
"""
HANG = """
    child = subprocess.Popen(["sleep", "600"])
    open(os.environ["CHILD"], "w").write(str(child.pid))
    child.wait()
"""


def run(tmp_path, monkeypatch, what, seconds=60.0, only=(), unusable=""):
    """The Runner after one step made of MODULE."""
    module = f"checks_{tmp_path.name}".replace("-", "_")
    text = MODULE.replace("WHAT", what.strip()).replace("LAST", "the rest")
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    spec = {
        "fake": False,
        "quick": True,
        "uuid": "GPU-1",
        "has": ["torch"],
        "environment": {"CHILD": str(tmp_path / "child")},
        "nccl": {},
        "only": list(only),
    }
    runner = steps.Runner(spec, tmp_path, time.monotonic() + 100, unusable)
    runner.run(steps.Step(module, seconds))
    return runner


def results(runner):
    return {check["name"][9:]: (check["result"], check["reason"]) for check in runner.checks}


def test_each_check_gets_its_own_result_and_none_stops_the_others(tmp_path, monkeypatch):
    runner = run(tmp_path, monkeypatch, "pass")
    found = results(runner)
    assert found["passes"] == ("passed", "") and runner.checks[0]["facts"] == {"rows": 3}
    assert found["fails"][0] == "failed" and "one is not two" in found["fails"][1]
    assert found["needs what is not there"] == ("not shown", "PyTorch sees no GPU")
    assert found["finds that it cannot be made"] == ("not shown", "the moon is missing")
    assert found["comes after"] == ("passed", "")


def test_figures_are_held_against_their_targets(tmp_path, monkeypatch):
    speed, milliseconds = run(tmp_path, monkeypatch, "pass").figures
    assert (speed["met"], milliseconds["met"]) == (False, True)
    assert report.figure_row(speed) == ["speed", "2.00 x", ">= 3 x: **missed**", "a floor"]


class UntilThereIs:
    """A clock that is past every deadline once something is written to a file."""

    sleep = staticmethod(time.sleep)

    def __init__(self, file):
        self.file = file

    def monotonic(self):
        there = self.file.exists() and self.file.stat().st_size > 0
        return time.monotonic() + (1000 if there else 0)


def test_a_step_that_hangs_is_ended_with_all_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "time", UntilThereIs(tmp_path / "child"))
    runner = run(tmp_path, monkeypatch, HANG)
    found = results(runner)
    assert found["does the rest"][0] == "failed" and "60 s" in found["does the rest"][1]
    assert found["comes after"] == ("not shown", "the step ended before it")
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 60
    while runs(child):
        assert time.monotonic() < deadline, f"process {child} lives on"


def test_a_step_that_crashes_says_how(tmp_path, monkeypatch):
    found = results(run(tmp_path, monkeypatch, "os._exit(7)"))
    assert found["does the rest"][0] == "failed" and "ended with 7" in found["does the rest"][1]
    assert found["comes after"][0] == "not shown"


def test_only_what_is_asked_for_is_run(tmp_path, monkeypatch):
    assert list(results(run(tmp_path, monkeypatch, "pass", only=["after"]))) == ["comes after"]


def test_where_nothing_can_be_run_every_check_says_why(tmp_path, monkeypatch):
    found = results(run(tmp_path, monkeypatch, "pass", unusable="there is no GPU"))
    assert len(found) == 6 and set(found.values()) == {("not shown", "there is no GPU")}


def test_names_are_read_without_running_a_module():
    names = [name for step in steps.STEPS for name in step.names()]
    assert len(names) == len(set(names)) > 25
    marks = sum(path.read_text().count("\n@checks(") for path in GPU.glob("[cf][hi]*s_*.py"))
    assert len(names) == marks


def test_what_only_hardware_can_show_is_shown_by_checks_that_exist():
    names = {name for step in steps.STEPS for name in step.names()}
    assert len(report.TWELVE) == 12
    assert {name for _, shown_by, _ in report.TWELVE for name in shown_by} <= names
    assert all(shown_by or note for _, shown_by, note in report.TWELVE)


@pytest.mark.parametrize(
    "first,second,outcome",
    [
        ("passed", "passed", "passed"),
        ("passed", "not shown", "passed in part"),
        ("failed", "passed", "failed"),
        ("not shown", "not shown", "not shown"),
    ],
)
def test_several_checks_that_show_one_thing_are_put_together(first, second, outcome):
    names = report.TWELVE[4][1]
    checks = [
        {"name": name, "result": result, "reason": ""}
        for name, result in zip(names, (first, second))
    ]
    assert report.twelve_rows(checks)[4][2] == outcome


def outcome(**more):
    machine = {
        "python": "3.12.3",
        "modules": {"grpc": "1.0", "torch": "2.11"},
        "kernel": "6.1",
        "processor": "P|Q",
        "cores": 16,
        "memory bytes": 2**37,
        "driver": {"cuda": "13.0", "gpus": [{"name": "G", "uuid": "GPU-1", "bytes": 2**37}]},
        "torch": {"sees a GPU": True, "built for CUDA": "13.0", "NCCL": "2.28.9"},
        "nccl": {"path": "/n/libnccl.so.2", "version": "2.30.7", "why not": ""},
        "nvidia-smi": {"driver_version": "580"},
    }
    check = {
        "name": "it | holds",
        "result": "failed",
        "reason": "a\nb",
        "seconds": 1.0,
        "facts": {},
    }
    figure = {"name": "f", "value": None, "reason": "too little memory"}
    return {
        "date": "2026-01-01",
        "commit": "abc",
        "quick": True,
        "only": [],
        "machine": machine,
        "seconds": 9.0,
        "checks": [check],
        "figures": [figure],
        "fake": False,
        **more,
    }


def test_the_page_says_what_failed_and_what_was_not_shown():
    page = report.page(outcome())
    assert "| **failed** | it \\| holds | 1.0 s | a b |" in page
    assert "| f | not shown |  | too little memory |" in page
    assert "0 passed, 1 failed, 0 not shown" in page and "commit abc" in page
    assert "G, GPU-1, 128 GiB" in page and "tests/gpu/run --quick`" in page


def test_a_fake_run_writes_no_report(tmp_path):
    report.conclude(outcome(fake=True), tmp_path / "out", None)
    assert not (tmp_path / "out").exists()
    report.conclude(outcome(), tmp_path / "out", None)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "gpu-report.json",
        "gpu-report.log",
        "gpu-report.md",
    ]


def test_a_need_that_nobody_knows_is_a_mistake():
    with pytest.raises(AssertionError):
        records.Checks()("a check", "a flying carpet")
