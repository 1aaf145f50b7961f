"""Shards in GPU memory, in processes that fork, end, or whose driver fails."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "testing"))
import fake_cuda  # noqa: E402

pytest.importorskip("cuda.bindings.driver")
WHY_NOT = fake_cuda.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

PRELUDE = """
import ctypes, gc, os, signal, sys, tempfile
import ckptd
from cuda.bindings import driver as cu
from fake_daemon import FakeDaemon

folder, source, mode = sys.argv[1:]
daemon = FakeDaemon(folder, gpu=0).__enter__()
client = ckptd.connect(daemon.path)
checkpoint = client.load(source, mode=mode)

def acquire():
    return client.acquire(checkpoint, mode)

def end():
    # What the fake daemon of this process holds is no leak of the client's.
    client.close()
    daemon.__exit__()
"""


@pytest.fixture
def run(tmp_path, source):
    """run(program, fault, ..., mode=) -> (what it printed, the fake, its pid)."""

    def start(program, *faults, mode="shared", **options):
        fake = fake_cuda.FakeCuda(tmp_path, faults=faults, **options)
        folder = tmp_path / "daemon"
        folder.mkdir()
        path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "client/python/src")])
        # gRPC has something to say about forks (this package refuses calls after one anyway) and,
        # now and then, about a server that ends.
        quiet = {"PYTHONPATH": path, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
        child = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + program, str(folder), source[0], mode],
            env={**os.environ, **fake.environment(), **quiet},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, errors = child.communicate(timeout=120)
        finally:
            child.kill()
            child.wait()
        assert child.returncode == 0 and errors == "", errors
        assert fake.violations() == []
        return printed.split(), fake, child.pid

    return start


REFUSED = """
try:
    acquire()
    print("acquired")
except ckptd.Error as error:
    print(error.code, error.reason, "CUDA_ERROR_" in error.message, error.facts.get("device", error.message)[:4])
gc.collect()
daemon.wait_for(lambda: daemon.leases == 0 and "ReleaseShard" in daemon.calls)
end()
"""


# The fake daemon's own slab takes the first call of each.
@pytest.mark.parametrize(
    "fault,mode,code,reason",
    [
        ("cuMemImportFromShareableHandle error=304", "shared", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuMemAddressReserve nth=2 error=2", "shared", "RESOURCE_EXHAUSTED", "NO_MEMORY"),
        ("cuMemMap nth=2 error=1", "exclusive", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuMemSetAccess nth=2 error=1", "shared", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuMemCreate nth=2 error=2", "private", "RESOURCE_EXHAUSTED", "NO_MEMORY"),
        ("cuMemMap nth=3 error=1", "private", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuStreamCreate error=2", "private", "RESOURCE_EXHAUSTED", "NO_MEMORY"),
        ("cuMemcpyDtoDAsync error=1", "private", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuStreamQuery error=1", "private", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuCtxPushCurrent nth=2 error=201", "shared", "UNAVAILABLE", "DEVICE_FAILED"),
        ("cuDevicePrimaryCtxRetain nth=2 error=2", "shared", "RESOURCE_EXHAUSTED", "NO_MEMORY"),
    ],
)
def test_a_driver_that_refuses_is_an_error_that_keeps_nothing(run, fault, mode, code, reason):
    printed, fake, pid = run(REFUSED, fault, mode=mode)
    assert printed == [code, reason, "True", "GPU-"]
    assert fake.leaks(pid) == 0
    retained = fake.calls("cuDevicePrimaryCtxRetain", pid, result=0)
    assert len(retained) == len(fake.calls("cuDevicePrimaryCtxRelease", pid, result=0))


# Ctrl-C comes while it is waited for.
INTERRUPTED = """
def interrupt(seconds):
    raise KeyboardInterrupt
_cuda.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=interrupt)
"""


@pytest.mark.parametrize(
    "how, printed",
    [
        ("_cuda._PATIENCE = 0.05", ["DEADLINE_EXCEEDED", "DEADLINE", "False", "GPU-"]),
        (INTERRUPTED, ["interrupted"]),
    ],
    ids=["deadline", "interrupted"],
)
def test_a_copy_that_stands_still_is_an_error_and_frees_nothing_that_it_may_reach(run, how, printed):
    caught = "except KeyboardInterrupt:\n    print('interrupted')\n"
    program = REFUSED.replace("except ckptd.Error", caught + "except ckptd.Error")
    begin = f"import time, types\nfrom ckptd import _cuda\n{how}\n"
    said, fake, pid = run(begin + program, "cuStreamQuery error=600", mode="private")
    assert said == printed
    assert len(fake.calls("cuStreamDestroy", pid, result=0)) == 1
    # But for the daemon's, which has its slab in this process: neither the source, nor the copy.
    held = len(fake.calls("cuMemMap", pid, result=0)) - len(fake.calls("cuMemUnmap", pid, result=0))
    assert held == 2


@pytest.mark.parametrize("mode,nth", [("shared", 3), ("private", 4)])
@pytest.mark.parametrize("way", [True, False])
def test_a_gpu_that_cannot_reach_the_memory_keeps_no_other_from_it(run, mode, nth, way):
    program = """
view = acquire().tensors["big"]
print(len(ctypes.string_at(view.pointer, view.nbytes)) == view.nbytes)
"""
    # After the fake daemon's own slab, the shard, and its copy.
    faults = [f"cuMemSetAccess nth={nth} error=2"] if way else []
    printed, fake, pid = run(program, *faults, mode=mode, gpus=2, peers=int(way))
    assert printed == ["True"]
    answers = [line["result"] for line in fake.calls("cuMemSetAccess", pid)]
    assert answers == [0] * (nth - 1) + ([2] if way else [])


def test_a_driver_that_does_not_start_is_an_error_that_says_what_is_needed(run):
    program = """
from ckptd import _cuda_driver
try:
    _cuda_driver.visible_devices()
except ckptd.FailedPrecondition as error:
    print(error.reason, "CUDA_ERROR_NO_DEVICE" in error.message, "nvidia-smi" in error.message)
end()
"""
    printed, _, _ = run(program, "cuInit nth=3 error=100")
    assert printed == ["NO_DEVICE", "True", "True"]


def test_writing_a_shared_shard_is_refused_by_the_driver(run):
    program = """
shard = acquire()
cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
print(int(cu.cuMemcpyHtoD(shard.tensors["big"].pointer, b"1234", 4)[0]) or int(cu.cuCtxSynchronize()[0]))
"""
    printed, _, _ = run(program)
    assert int(printed[0]) != 0


def test_memory_whose_context_broke_is_left_to_the_end_of_the_process(run):
    program = """
shard = acquire()
cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
cu.cuMemcpyHtoD(shard.tensors["big"].pointer, b"1234", 4)
del shard
gc.collect()
daemon.wait_for(lambda: daemon.leases == 0)
print("quiet")
"""
    printed, fake, pid = run(program)
    before = [line for line in fake.trace(pid) if line.get("call") == "cuMemUnmap"]
    assert printed == ["quiet"] and len(before) == 1  # the daemon's own


def test_memory_goes_later_where_another_thread_records_a_cuda_graph(run):
    program = """
one, two = acquire(), acquire()
del one
gc.collect()
print(daemon.leases)
del two
gc.collect()
daemon.wait_for(lambda: daemon.leases == 1)
three = acquire()
daemon.wait_for(lambda: daemon.leases == 1)
print("two")
del three
gc.collect()
daemon.wait_for(lambda: daemon.leases == 0)
end()
"""
    # The first is refused, and once more when the second is dropped, which alone goes then. The
    # fake daemon has waited once before, for its own slab.
    printed, fake, pid = run(program, "cuCtxSynchronize nth=2 error=900", "cuCtxSynchronize nth=3 error=900")
    assert printed == ["2", "two"]
    waits = [line["result"] for line in fake.trace(pid) if line.get("call") == "cuCtxSynchronize"]
    assert waits == [0, 900, 900, 0, 0, 0]
    assert fake.leaks(pid) == 0


# From now on the GPU waits for another rank, which is not heard of before the process ends.
OTHER_RANK = """
import threading
launched, wait = threading.Event(), cu.cuCtxSynchronize

def synchronize():
    launched.wait()
    return wait()

"""


@pytest.mark.parametrize("heard", [True, False])
def test_what_was_dropped_before_the_end_is_given_back_unless_the_gpu_stands_still(run, heard):
    program = OTHER_RANK + """
shard = acquire()
cu.cuCtxSynchronize = synchronize
del shard
gc.collect()
print(daemon.leases)
""" + ("import atexit; atexit.register(launched.set)" if heard else "")
    printed, fake, pid = run(program)
    assert printed == ["1"]
    assert len(fake.calls("cuMemUnmap", pid)) == 1 + heard  # the fake daemon unmaps its own


def test_memory_is_given_back_where_no_other_thread_s_cuda_graph_is_disturbed(run):
    printed, fake, pid = run("shard = acquire()\ndel shard\ngc.collect()\nend()")
    modes = fake.calls("cuThreadExchangeStreamCaptureMode", pid, result=0)
    assert [line["mode"] for line in modes] == [2]
    # The fake daemon has its own slab in this process, too.
    assert modes[0]["seq"] < fake.calls("cuMemUnmap", pid)[-1]["seq"]


def test_a_forked_child_is_told_so_and_touches_nothing(run):
    program = """
shard = acquire()
view = shard.tensors["big"]
content = ctypes.string_at(view.pointer, view.nbytes)
sys.stdout.flush()
child = os.fork()
if child == 0:
    signal.alarm(60)
    reasons = set()
    for reach in (lambda: view.pointer, lambda: view.__cuda_array_interface__,
                  lambda: view.__dlpack__(max_version=(1, 0))):
        try:
            reach()
        except ckptd.FailedPrecondition as error:
            reasons.add(error.reason)
    del view, shard
    gc.collect()
    ckptd._client._deferred_free.drain(120)  # has nothing to wait for
    os._exit(7 if reasons == {"FORKED"} else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), child)
print(ctypes.string_at(view.pointer, view.nbytes) == content, daemon.leases)
"""
    printed, fake, _ = run(program)
    assert printed[0] == "7" and printed[2:] == ["True", "1"]
    assert fake.trace(int(printed[1])) == []


@pytest.mark.parametrize("keep", ["view", "shard", "view.__dlpack__(max_version=(1, 0))"])
def test_a_process_that_ends_with_memory_mapped_ends_quietly(run, keep):
    printed, _, _ = run(
        f"shard = acquire(); view = shard.tensors['big']; ckptd.kept = {keep}\nprint('done')\n"
    )
    assert printed == ["done"]


def test_memory_outlives_the_daemon(run):
    program = """
shard = acquire()
view = shard.tensors["big"]
content = ctypes.string_at(view.pointer, view.nbytes)
end()
print(ctypes.string_at(view.pointer, view.nbytes) == content)
del view, shard
gc.collect()
"""
    printed, fake, pid = run(program)
    assert printed == ["True"] and fake.leaks(pid) == 0


def test_a_second_gpu_is_chosen_by_its_uuid_and_not_by_its_number(run):
    program = """
other = tempfile.mkdtemp()
with FakeDaemon(other, gpu=1) as second, ckptd.connect(second.path) as ask:
    shard = ask.acquire(ask.load(source))
    print(shard.tensors["big"].__dlpack_device__()[1], shard.device == second.slabs["checkpoints/1"].name)
    del shard
    gc.collect()
"""
    printed, _, _ = run(program, gpus=2)
    assert printed == ["1", "True"]


def test_a_host_shard_loads_nothing_of_cuda(daemon, client, source):
    client.load(source[0])
    program = (
        "import sys, ckptd; c = ckptd.connect(sys.argv[1]); s = c.acquire(c.load(sys.argv[2]));"
        "print('cuda.bindings' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.path, source[0]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_slice_of_a_gpu_is_named_as_nvidia_smi_names_it(run):
    # The daemon knows its bytes only.
    program = "print(acquire().device, client.device())\ngc.collect()\nend()"
    printed, *_ = run(program, name__0="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert printed[0][:4] == "MIG-" and printed[0][4:] == printed[1][4:]
