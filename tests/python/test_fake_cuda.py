"""The fake CUDA driver under NVIDIA's own Python bindings, in two processes."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import fake_cuda  # noqa: E402

pytest.importorskip("cuda.bindings.driver")
WHY_NOT = fake_cuda.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
PATIENCE = 60

COMMON = """
import ctypes, socket, sys
from cuda.bindings import driver as cu

def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]

SIZE = 4 << 20
POSIX = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(cu.cuInit(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(0))))))
prop = cu.CUmemAllocationProp()
prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
prop.requestedHandleTypes = POSIX

def mapped(handle, flags):
    address = ok(cu.cuMemAddressReserve(SIZE, 0, 0, 0))
    ok(cu.cuMemMap(address, SIZE, 0, handle, 0))
    access = cu.CUmemAccessDesc()
    access.location, access.flags = prop.location, flags
    ok(cu.cuMemSetAccess(address, SIZE, [access], 1))
    return int(address)

def unmapped(address, handle):
    ok(cu.cuMemUnmap(address, SIZE))
    ok(cu.cuMemRelease(handle))
    ok(cu.cuMemAddressFree(address, SIZE))

peer = socket.socket(fileno=int(sys.argv[1]))
peer.settimeout(60)
"""

EXPORTER = """
handle = ok(cu.cuMemCreate(SIZE, prop, 0))
address = mapped(handle, READ_WRITE)
ok(cu.cuMemcpyHtoD(address, b"twelve bytes", 12))
fd = ok(cu.cuMemExportToShareableHandle(handle, POSIX, 0))
socket.send_fds(peer, [b"!"], [fd])
peer.recv(1)
unmapped(address, handle)
"""

IMPORTER = """
_, (fd,), _, _ = socket.recv_fds(peer, 1, 1)
handle = ok(cu.cuMemImportFromShareableHandle(fd, POSIX))
address = mapped(handle, READ)
out = (ctypes.c_char * 12)()
ok(cu.cuMemcpyDtoH(out, address, 12))
assert out.raw == b"twelve bytes", out.raw
assert ctypes.string_at(address, 12) == out.raw
unmapped(address, handle)
peer.send(b"!")
"""


def start(code, fake, end, role):
    command = [sys.executable, "-c", COMMON + code, str(end.fileno())]
    environment = {**os.environ, **fake.environment(role)}
    return subprocess.Popen(command, env=environment, pass_fds=[end.fileno()], stderr=subprocess.PIPE, text=True)


def run_both(fake):
    """(process, what it wrote to stderr) of the exporter and of the importer."""
    ends = socket.socketpair()
    both = [start(EXPORTER, fake, ends[0], "exporter"), start(IMPORTER, fake, ends[1], "importer")]
    for end in ends:
        end.close()
    try:
        return [(process, process.communicate(timeout=PATIENCE)[1]) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_nvidias_bindings_share_memory_over_a_socket(tmp_path):
    fake = fake_cuda.FakeCuda(tmp_path, gpus=2)
    for process, errors in run_both(fake):
        assert process.returncode == 0, errors
        assert fake.leaks(process.pid) == 0
    assert len(fake.calls("cuMemExportToShareableHandle")) == 1
    assert len(fake.calls("cuMemRelease")) == 2
    assert fake.violations() == []


def test_a_fault_hits_one_of_two_processes(tmp_path):
    fake = fake_cuda.FakeCuda(tmp_path, faults=["cuMemImportFromShareableHandle error=304 role=importer"])
    (exporter, _), (importer, errors) = run_both(fake)
    assert importer.returncode == 1 and "CUDA_ERROR_OPERATING_SYSTEM" in errors
    assert exporter.returncode == 0
    assert len(fake.calls("cuMemImportFromShareableHandle", importer.pid, result=304)) == 1


def test_a_process_that_keeps_memory_is_counted_at_its_end(tmp_path):
    fake = fake_cuda.FakeCuda(tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = start("ok(cu.cuMemCreate(SIZE, prop, 0))", fake, theirs, "keeper")
        assert process.communicate(timeout=PATIENCE)[1] == ""
    assert fake.leaks(process.pid) == 1


def test_other_faults_hit_processes_that_start_later(tmp_path):
    fake = fake_cuda.FakeCuda(tmp_path, faults=["cuMemCreate error=2"])
    assert run_both(fake)[0][0].returncode == 1
    fake.script()
    assert [process.returncode for process, _ in run_both(fake)] == [0, 0]
