"""Scripts answer --help and refuse wrong arguments before they install or build anything."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# These would install, configure or build.
TOOLS = ("apt-get", "dpkg-query", "sudo", "cmake", "ninja", "ctest", "pip", "buildah")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a script where each of these tools only leaves a note that it was called."""
    folder = tmp_path_factory.mktemp("tools")
    for tool in TOOLS:
        (folder / tool).write_text(f"#!/bin/sh\necho {tool} >>{folder}/called\nexit 1\n")
        (folder / tool).chmod(0o755)

    called = folder / "called"

    def run(line):
        called.unlink(missing_ok=True)
        script, *arguments = line.split()
        done = subprocess.run([ROOT / script, *arguments], capture_output=True, text=True, timeout=30,
                              env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        assert not called.exists(), f"{line} began with {called.read_text()}"
        return done

    return run


@pytest.mark.parametrize("script", ["deploy/quickstart", "deploy/setup", "deploy/package", "deploy/docker/build", "tests/run", "tests/fuzz/run"])
def test_help_is_given_at_once(run, script):
    done = run(f"{script} --help")
    assert done.returncode == 0 and script in done.stdout, done.stderr


@pytest.mark.parametrize("line,said", [
    ("deploy/quickstart --hel", "unrecognized arguments: --hel"),
    ("deploy/quickstart --ranks two", "'two' is no number from 1 to 1024"),
    ("deploy/quickstart --ranks 1025", "'1025' is no number"),
    ("deploy/setup --nosuch", "unknown option --nosuch"),
    ("deploy/setup --build --nosuch", "--nosuch is none"),
    ("deploy/setup --tests some", "--tests takes no argument some"),
    ("deploy/package --nosuch", "unknown option --nosuch"),
    ("deploy/package --jobs some", "--jobs some: say a number"),
    ("deploy/docker/build nosuch", "there is no image nosuch"),
    ("deploy/docker/build --package a --build b", "not allowed with argument"),
    ("tests/run nosuch", 'there is no part "nosuch"'),
    ("tests/run unit -k some", "unit takes no argument -k"),
    ("tests/run long some", "long takes no argument some"),
    ("tests/run sanitize some", 'not "some"'),
    ("tests/run fuzz some", "some: say for how many seconds"),
    ("tests/run fuzz 10 nosuch", "there is no fuzzer nosuch"),
])
def test_wrong_arguments_are_refused_at_once(run, line, said):
    done = run(line)
    assert done.returncode != 0 and said in done.stderr, done.stdout + done.stderr
