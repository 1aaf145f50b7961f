"""What importing costs, and what the package offers."""

import gc
import importlib
import os
import subprocess
import sys
import weakref

import ckptd
import pytest
from ckptd import _proto


def run(program, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["torch", "grpc", "numpy", "google.protobuf"])
def test_importing_the_package_does_not_import(module):
    assert run(f"import sys, ckptd; print({module!r} in sys.modules)") == "False"


def test_importing_the_loading_functions_imports_no_library_they_stand_in_for():
    pytest.importorskip("torch")
    libraries = "{'accelerate', 'transformers', 'safetensors'}"
    program = f"import sys, ckptd.torch, ckptd.accelerate; print(sorted({libraries} & set(sys.modules)))"
    assert run(program) == "[]"


@pytest.mark.parametrize("module", ["torch", "accelerate"])
def test_every_loading_function_is_there_under_its_name(module):
    pytest.importorskip("torch")
    loaded = importlib.import_module(f"ckptd.{module}")
    assert [name for name in loaded.__all__ if not callable(getattr(loaded, name, None))] == []


def test_every_public_name_exists():
    assert [name for name in ckptd.__all__ if not hasattr(ckptd, name)] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        ckptd.laod


CHILD = (
    "child = os.fork()\n"
    "if child == 0:\n"
    "    signal.alarm(20)\n"
    "    try:\n"
    "        os._exit(len(ckptd.connect(sys.argv[1]).list()))\n"
    "    except ckptd.Error as error:\n"
    "        os._exit(7 if error.reason == 'FORKED' else 8)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
)


@pytest.mark.parametrize("before_the_fork", ["client.close()", "pass"])
def test_a_child_forked_after_a_call_is_told_that_it_cannot_call(daemon, source, before_the_fork):
    # In a process of its own: a fork beside a gRPC server is not what trainers do.
    program = (
        "import os, signal, sys, ckptd\n"
        "client = ckptd.connect(sys.argv[1])\n"
        "shard = client.acquire(client.load(sys.argv[2]))\n"
        f"{before_the_fork}\n{CHILD}"
    )
    assert run(program, daemon.path, source[0]) == "7"


def test_a_child_forked_before_any_call_works(daemon, client, source):
    client.load(source[0])
    assert run(f"import os, signal, sys, ckptd\n{CHILD}", daemon.path) == "1"


def test_a_process_that_ends_without_closing_ends_its_lease(daemon, source):
    run(
        "import sys, ckptd; keep = ckptd.connect(sys.argv[1]); s = "
        "keep.acquire(keep.load(sys.argv[2]))",
        daemon.path,
        source[0],
    )
    daemon.wait_for(lambda: daemon.leases == 0 and "AcquireShard" in daemon.calls)


def test_a_killed_process_ends_its_lease(daemon, source):
    program = (
        "import os, sys, ckptd; c = ckptd.connect(sys.argv[1]); s = c.acquire(c.load(sys.argv[2]));"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, daemon.path, source[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout.readline() == b"held\n"
    daemon.wait_for(lambda: daemon.leases == 1)
    holder.kill()
    holder.communicate(timeout=30)
    daemon.wait_for(lambda: daemon.leases == 0)


def test_the_class_of_a_part_of_a_message_outlives_its_messages():
    def part():
        return type(_proto.message("LoadCheckpointRequest")().layout.rank_layout)
    first = weakref.ref(part())
    gc.collect()
    assert first() is part()
