"""What a linter knows about Python without running it: each name that is used is defined, each import is used."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUFF = shutil.which("ruff", path=pathlib.Path(sys.executable).parent) or shutil.which("ruff")


def lint(*files, folder=ROOT):
    # F: pyflakes' rules. F401 of a package's own file is about a name it offers, not one it uses.
    return subprocess.run(
        [RUFF, "check", "--isolated", "--no-cache", "--select", "F", "--output-format", "concise",
         "--per-file-ignores", "__init__.py:F401", *files],
        cwd=folder, capture_output=True, text=True)


def python_files():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        with open(path, "rb") as file:
            first = file.readline(80)
        if name.endswith((".py", ".pyi")) or (first.startswith(b"#!") and b"python" in first):
            yield name


def test_each_name_is_defined_and_each_import_is_used():
    found = lint(*python_files())
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("text, rule", [
    ("def f():\n    raise Lost('x')\n", "F821"),
    ("import os\n", "F401"),
    ("def f():\n    x = 1\n", "F841"),
])
def test_a_file_that_breaks_a_rule_is_named(tmp_path, text, rule):
    (tmp_path / "bad.py").write_text(text)
    found = lint("bad.py", folder=tmp_path)
    assert found.returncode == 1 and "bad.py" in found.stdout and rule in found.stdout
