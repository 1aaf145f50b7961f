"""safetensors' own tests, unmodified, as clients of daemons."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tests" / "foreign" / "run_safetensors"


def test_what_safetensors_tests_pass_natively_they_pass_with_ckptd():
    done = subprocess.run([sys.executable, RUNNER], capture_output=True, text=True, timeout=1800)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
