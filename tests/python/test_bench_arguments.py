"""What the benchmark is asked for is checked before it builds or starts anything."""

import os
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench"
LOAD = BENCH / "load"
sys.path.append(str(BENCH.parent / "testing"))
import warm  # noqa: E402

SHARED = [
    (["--rounds", "0"], "'0' is no number of 1 or more"),
    (["--ranks", "-1"], "'-1' is no number of 1 or more"),
    (["--bytes", "abc"], "'abc' is no size: write 300MB"),
    (["--bytes=-5MB"], "'-5MB' is no size"),
    (["--bytes", "infGB"], "'infGB' is no size"),
    (["--directory", "/proc/nope"], "making /proc/nope"),
    (["--json", "/proc/nope.json"], "writing /proc/nope.json"),
]
WRONG = [
    *(("main", *wrong) for wrong in SHARED),
    # The others take theirs from the same place.
    *((program, *SHARED[0]) for program in ("dcp", "first_load", "pretrained", "resume", "rivals", "sources", "tools")),
    ("main", ["--only", "nothing"], "no loader is called 'nothing'; there are: ckptd"),
    ("pretrained", ["--only", "nothing"], "no line is called 'nothing'; there are: plain float32"),
    ("planning", ["--ranks", "7"], "'7' is no number of 8 or more"),
    ("planning", ["--tensors", "many"], "'many' is no number of 1 or more"),
    ("planning", ["--json", "/proc/nope.json"], "writing /proc/nope.json"),
]


def shown(value):
    return (value if isinstance(value, str) else " ".join(value))[:20]


def run(program, *arguments):
    """(how it ended, what it said)."""
    process = warm.spawn([LOAD / f"{program}.py", *arguments], {**os.environ, "OMP_NUM_THREADS": "1"},
                         stdout=warm.PIPE, stderr=warm.PIPE)
    printed, errors = process.communicate(60)
    return process.returncode, printed + errors


@pytest.mark.parametrize(("program", "arguments", "sentence"), WRONG, ids=shown)
def test_a_wrong_argument_is_told_at_once(program, arguments, sentence):
    status, said = run(program, *arguments)
    assert status == 2
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize("program", ["main", "pretrained"])
def test_arguments_can_be_checked_alone(program, tmp_path):
    folder = tmp_path / "made"
    assert run(program, "--directory", folder, "--check-arguments") == (0, "")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("program", ["", "link", "first-load", "planning", "pretrained", "sources", "tools"])
def test_the_first_word_says_which_program_is_run(program):
    if not (BENCH.parents[1] / ".venv/bin/python").exists():
        pytest.skip("without .venv it would be made")
    answer = subprocess.run([str(BENCH / "run"), *program.split(), "--help"], capture_output=True, text=True,
                            timeout=60)
    assert answer.stdout.split("[")[0].split() == ["usage:", "tests/bench/run", *program.split()]


def test_being_told_to_stop_ends_it_as_ctrl_c_does():
    program = ("import os, signal, sys, arguments\n"
               "def main():\n"
               "    try:\n"
               "        os.kill(os.getpid(), signal.SIGTERM)\n"
               "        signal.pause()\n"
               "    finally:\n"
               "        print('stopped')\n"
               "arguments.run(main)\n")
    answer = subprocess.run([sys.executable, "-c", program], cwd=LOAD, capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stdout) == (130, "stopped\n")
    assert "everything it started has been stopped" in answer.stderr
