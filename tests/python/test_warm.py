"""Programs that begin with modules imported already are like any others."""

import gc
import os
import pathlib
import signal
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import warm  # noqa: E402

MODULES = ("json", "decimal")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def spawn(code, *arguments, environment=ENVIRONMENT, **streams):
    return warm.spawn(["-c", code, *arguments], environment, MODULES, **streams)


def test_a_program_has_its_own_arguments_environment_and_main_and_the_modules():
    code = """
import pickle, sys, os
class Mine: pass
assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)
print(sys.argv, os.environ["OWN"], os.environ.get("OTHER"), "decimal" in sys.modules, __name__, os.getppid())
"""
    said = [spawn(code, "a", environment={**ENVIRONMENT, name: "x", "OWN": name}, stdout=warm.PIPE).communicate(60)[0]
            for name in ("OWN", "OTHER")]
    words = [line.split() for line in said]
    assert [line[:6] for line in words] == [["['-c',", "'a']", "OWN", "None", "True", "__main__"],
                                            ["['-c',", "'a']", "OTHER", "x", "True", "__main__"]]
    assert words[0][6] == words[1][6] != str(os.getpid()), "one server"


def test_lines_go_to_and_fro_and_descriptors_are_those_of_the_streams():
    code = """
import os, sys
print(sorted(map(int, os.listdir("/proc/self/fd")))[:-1], flush=True)
for line in sys.stdin: print(line.upper(), end="", flush=True)
"""
    process = spawn(code, stdin=warm.PIPE, stdout=warm.PIPE)
    assert process.stdout.readline() == "[0, 1, 2]\n"
    process.stdin.write("one\n")
    assert process.stdout.readline() == "ONE\n" and process.poll() is None
    assert process.communicate(60) == ("", None) and process.returncode == 0


@pytest.mark.parametrize("code, returncode, said", [
    ("import sys; sys.exit(7)", 7, ""), ("raise ValueError('so')", 1, "ValueError: so\n"),
    ("import atexit, sys; atexit.register(sys.stderr.write, 'end')", 0, "end")])
def test_the_end_is_that_of_an_interpreter(code, returncode, said):
    process = spawn(code, stderr=warm.PIPE)
    assert process.communicate(60)[1].endswith(said) and process.returncode == returncode


def test_a_program_that_is_killed_was_killed_and_who_waits_too_briefly_is_told():
    process = spawn("import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL and process.poll() == -signal.SIGKILL
    process.kill()  # of one that has ended: nothing


def test_a_file_is_run_as_a_file(tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'")
    program = tmp_path / "program.py"
    program.write_text("import beside, sys; print(beside.name, __file__ == sys.argv[0], sys.argv[1])")
    process = warm.spawn([program, 5], ENVIRONMENT, MODULES, stdout=warm.PIPE)
    assert process.communicate(60)[0] == "beside True 5\n"


def test_a_server_that_cannot_begin_leaves_nothing_and_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(warm, "_servers", warm._Servers())
    gc.collect()  # what earlier tests left
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises((AssertionError, OSError)):
            warm.spawn(["-c", ""], ENVIRONMENT, ("no_such_module",), stdin=warm.PIPE, stdout=warm.PIPE)
    gc.collect()  # the servers' ends
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not [kind for kind in warm._servers._servers if "no_such_module" in kind]


def test_processes_beside_each_other_have_their_servers_in_common():
    """Those of a process that shares; a server that cannot begin is one request's error."""
    shares = """
import os, subprocess, sys, warm
warm.share()
warm.share()
print(os.environ.pop("OTHER", ""), os.path.exists(os.environ[warm.VARIABLE]))
for _ in range(2):
    subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
    asks = """
import os, warm
try:
    warm.spawn(["-c", ""], dict(os.environ), ("no_such_module",))
except AssertionError:
    print("refused", flush=True)
process = warm.spawn(["-c", "import os; print(os.getppid())"], dict(os.environ), ("json",), stdout=warm.PIPE)
print(process.communicate(60)[0], end="", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", shares, asks], capture_output=True, text=True, timeout=120,
                          env={**ENVIRONMENT, "PYTHONPATH": os.path.dirname(warm.__file__)})
    where, *said = done.stdout.split("\n")
    assert where == " True", done.stdout + done.stderr
    assert said[0] == said[2] == "refused" and said[1] == said[3] != "", done.stdout + done.stderr
