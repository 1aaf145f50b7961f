"""Tests of others as clients of daemons: from their packages, unmodified, or, of torch's, in our words."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from group import BINARIES
from ranks import outcome_of
from torch_scenarios import SCENARIOS, WAYS, WORLD, case_name

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "foreign"))
import foreign  # noqa: E402

PASSED, FAILED = ("passed", ""), ("failed", "so and so\nmany lines")


@pytest.mark.parametrize("native,ours,loads,code", [
    ({"m.a": PASSED, "m.b": PASSED}, {"m.a": PASSED, "m.b": PASSED}, 1, 0),
    ({"m.a": FAILED, "m.c": PASSED}, {"m.a": FAILED, "m.c": PASSED}, 1, 0),
    ({"m.a": PASSED}, {"m.a": FAILED}, 1, 1),
    ({"m.a": PASSED}, {}, 1, 1),
    ({"m.a": PASSED, "m.b": PASSED}, {"m.a": PASSED, "m.b": FAILED}, 1, 1),
    ({"m.a": PASSED}, {"m.a": PASSED}, 0, 1),
    ({"m.a": FAILED}, {"m.a": FAILED}, 1, 1),
])
def test_what_is_lost_with_ckptd_or_was_never_tried_is_an_error(native, ours, loads, code):
    assert foreign.report(native, ours, loads) == code


# CKPTD_FOREIGN=all: those of all packages, which takes minutes.
PACKAGES = ["safetensors", "accelerate", "transformers"][:None if os.environ.get("CKPTD_FOREIGN") == "all" else 1]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_s_own_tests_pass_natively_they_pass_with_ckptd(package, record_property):
    pytest.importorskip(package)
    runner = ROOT / "tests" / "foreign" / f"run_{package}"
    done = subprocess.run([sys.executable, runner], env={**os.environ, "CKPTD_BUILD_DIR": str(BINARIES.parent)},
                          capture_output=True, text=True, timeout=1800)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    record_property("foreign", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_torch_does_natively_it_does_with_ckptd(tmp_path_factory, record_property):
    found = outcome_of(tmp_path_factory.mktemp, WORLD, "torch_scenarios")
    wrong, passed = [], dict.fromkeys(WAYS, 0)
    for scenario, way in ((scenario, way) for scenario in SCENARIOS for way in WAYS):
        failures = found.get(case_name(scenario, way), {})
        passed[way] += list(failures.values()) == [None] * WORLD
        wrong += [f"{case_name(scenario, way)}, rank {rank}:\n{failures.get(rank, 'it did not finish')}"
                  for rank in range(WORLD) if failures.get(rank, "") is not None]
    counts = "".join(f"{count:8}" for count in passed.values())
    record_property("foreign", f"torch {torch.__version__}: {len(SCENARIOS)} scenarios in our own words\n"
                               f"{'':10}{'native':>8}{'ckptd':>8}\n{'passed':10}{counts}\n")
    assert not wrong, "\n".join([*wrong, *found["stderr"].values(), found["log"][-3000:]])
