"""A program of somebody else's finds and links the C++ client at an install prefix."""

import os
import pathlib
import subprocess

import pytest
from group import BINARIES, sanitized

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.skipif(sanitized(), reason="a sanitized library is for sanitized programs")
def test_a_foreign_cmake_project_builds_against_the_installed_package():
    script = HERE / "find_package" / "run.sh"
    answer = subprocess.run(["sh", str(script), str(BINARIES.parent)], stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, timeout=400, env={**os.environ, "LC_ALL": "C"})
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
