"""What the benchmark is asked for is checked before it builds or starts anything."""

import pathlib
import subprocess
import sys

import pytest

LOAD = pathlib.Path(__file__).resolve().parents[1] / "bench" / "load"

WRONG = [
    (["--rounds", "0"], "'0' is no number of 1 or more"),
    (["--ranks", "-1"], "'-1' is no number of 1 or more"),
    (["--bytes", "abc"], "'abc' is no size: write 300MB"),
    (["--bytes=-5MB"], "'-5MB' is no size"),
    (["--bytes", "infGB"], "'infGB' is no size"),
    (["--only", "nothing"], "no loader is called 'nothing'; there are: ckptd"),
    (["--directory", "/proc/nope"], "making /proc/nope"),
    (["--json", "/proc/nope.json"], "writing /proc/nope.json"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=lambda value: " ".join(value)[:20])
def test_a_wrong_argument_is_told_at_once(arguments, sentence):
    answer = subprocess.run([sys.executable, str(LOAD / "main.py"), *arguments], capture_output=True, text=True,
                            timeout=60)
    assert answer.returncode == 2
    assert sentence in answer.stderr
    assert "Traceback" not in answer.stderr


def test_arguments_can_be_checked_alone(tmp_path):
    folder = tmp_path / "made"
    answer = subprocess.run([sys.executable, str(LOAD / "main.py"), "--directory", str(folder), "--check-arguments"],
                            capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert list(folder.iterdir()) == []


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
