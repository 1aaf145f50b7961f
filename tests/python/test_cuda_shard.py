"""Shards in GPU memory: a fake daemon and a client over the fake CUDA driver, in this process.

The driver runs queued work only when somebody waits for it, so what was not waited for is
missing. Tests that need another process, because the driver is told to fail in it or because
it ends or forks, are in test_cuda_process.py; when memory goes is in test_cuda_drops.py.
"""

import ctypes
import gc
import os
import types

import ckptd
import numpy as np
import pytest
from fake_daemon import FakeDaemon

@pytest.fixture
def daemon(tmp_path, gpus):
    with FakeDaemon(str(tmp_path), gpu=1) as running:
        yield running


@pytest.fixture
def shard(client, source):
    with client.acquire(client.load(source[0])) as acquired:
        yield acquired


def content(view):
    """Its bytes: an address on a fake GPU is one of this process."""
    return ctypes.string_at(view.pointer, view.nbytes)


def overwrite(view, data):
    """The driver's answer to a copy onto the tensor."""
    from cuda.bindings import driver as cu

    context = cu.cuDevicePrimaryCtxRetain(1)[1]
    cu.cuCtxPushCurrent(context)
    try:
        return int(cu.cuMemcpyHtoD(view.pointer, data, len(data))[0]) or int(cu.cuCtxSynchronize()[0])
    finally:
        cu.cuCtxPopCurrent()
        cu.cuDevicePrimaryCtxRelease(1)


def on_the_host(capsule):
    """Tells the capsule that its memory is the host's, so that a library here takes it."""
    from ckptd import _dlpack

    device = (ctypes.c_int32 * 2).from_address(_dlpack._tensor_at(capsule) + 8)
    assert list(device) == [2, 1]
    device[:] = (1, 0)

    class Exporter:
        def __dlpack__(self, **_):
            return capsule

        def __dlpack_device__(self):
            return (1, 0)

    return Exporter()


@pytest.mark.parametrize("mode", ["shared", "private", "exclusive"])
def test_every_tensor_has_the_bytes_of_the_file(client, source, calls, mode):
    with client.acquire(client.load(source[0], mode=mode), mode) as shard:
        for name, array in source[1].items():
            assert content(shard.tensors[name]) == array.tobytes(), name
        assert shard.mode == mode and shard.closed is False


def test_shared_memory_is_mapped_without_a_copy_and_for_reading_alone(client, source, gpus, calls):
    checkpoint = client.load(source[0])
    start = len(gpus.trace())
    with client.acquire(checkpoint) as shard:
        access = [line["access"] for line in gpus.trace()[start:] if "access" in line]
        assert set(access) == {1} and not [name for name in calls() if name.startswith("cuMemcpyDtoD")]
        assert shard.copied_bytes == 0 and not shard.tensors["big"].writable


def access_of(gpu, view):
    """What that GPU may do with it: 1 read, 3 write too."""
    from cuda.bindings import driver as cu

    location = cu.CUmemLocation()
    location.type, location.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, gpu
    return int(cu.cuMemGetAccess(location, view.pointer - view.offset)[1])


@pytest.mark.parametrize("mode,access", [("shared", 1), ("private", 3), ("exclusive", 3)])
def test_other_gpus_of_the_process_reach_the_memory_as_its_own_gpu_does(client, source, calls, mode, access):
    with client.acquire(client.load(source[0], mode=mode), mode) as shard:
        assert [access_of(gpu, shard.tensors["big"]) for gpu in (0, 1)] == [access, access]


def test_private_memory_is_a_copy_that_is_reported(client, source, calls):
    checkpoint = client.load(source[0])
    with client.acquire(checkpoint, "private") as mine, client.acquire(checkpoint) as other:
        assert mine.copied_bytes == mine.slab_bytes and other.copied_bytes == 0
        assert calls().count("cuMemcpyDtoDAsync") == 1
        assert overwrite(mine.tensors["big"], b"1234") == 0
        assert content(mine.tensors["big"])[:4] == b"1234"
        assert content(other.tensors["big"]) == source[1]["big"].tobytes()


def test_nothing_is_read_from_a_driver_s_struct_that_has_gone(client, source, calls, monkeypatch):
    from cuda.bindings import driver as cu

    class Properties(cu.CUmemAllocationProp):
        """As cuda-bindings up to 13.3: its member does not keep it. What has gone, something overwrites."""

        def __init__(self):
            """Not that of newer bindings, which ties the two together."""

        @property
        def location(self):
            return cu.CUmemLocation(int(self.getPtr()) + 8)

        @property
        def allocFlags(self):
            return types.SimpleNamespace()

        def __del__(self):
            self.location.id = -1

    checkpoint = client.load(source[0])
    monkeypatch.setattr(cu, "CUmemAllocationProp", Properties)
    with client.acquire(checkpoint, "private") as shard:
        assert content(shard.tensors["big"]) == source[1]["big"].tobytes()


def test_exclusive_memory_is_the_daemon_s_own(client, source, calls):
    checkpoint = client.load(source[0], mode="exclusive")
    with client.acquire(checkpoint, "exclusive") as one, client.acquire(checkpoint, "exclusive") as two:
        assert overwrite(one.tensors["big"], b"1234") == 0
        assert content(two.tensors["big"])[:4] == b"1234"
        assert one.copied_bytes == 0 and "cuMemcpyDtoDAsync" not in calls()


def test_closing_ends_the_lease_and_leaves_the_memory(daemon, client, source):
    shard = client.acquire(client.load(source[0]))
    shard.close()
    daemon.wait_for(lambda: daemon.leases == 0)
    assert content(shard.tensors["big"]) == source[1]["big"].tobytes()


def test_the_context_of_the_calling_thread_stays_as_it_is(client, source):
    from cuda.bindings import driver as cu

    other = cu.cuDevicePrimaryCtxRetain(0)[1]
    cu.cuCtxPushCurrent(other)
    try:
        with client.acquire(client.load(source[0]), "private"):
            assert int(cu.cuCtxGetCurrent()[1]) == int(other)
    finally:
        cu.cuCtxPopCurrent()
        cu.cuDevicePrimaryCtxRelease(0)


# -- what other libraries see -------------------------------------------------


def test_the_cuda_array_interface_says_what_and_where(shard):
    view = shard.tensors["big"]
    assert view.__cuda_array_interface__ == {
        "version": 3,
        "shape": (300, 400),
        "typestr": "<f4",
        "data": (view.pointer, True),
        "strides": None,
        "stream": None,
    }


def test_an_empty_tensor_has_no_address_in_the_cuda_array_interface(shard):
    assert shard.tensors["empty"].__cuda_array_interface__["data"] == (0, True)


def test_a_view_knows_its_gpu(shard, daemon):
    view = shard.tensors["big"]
    assert view.device == shard.device and view.device.endswith("-000000000002")
    assert view.__dlpack_device__() == (2, 1)
    assert shard.device in repr(shard)


def test_the_client_knows_where_the_daemon_keeps_shards(client, shard):
    assert client.device() == shard.device


DTYPES = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
          "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "C64"]  # fmt: skip


@pytest.fixture
def typed(tmp_path, client):
    """A shard with one tensor of every element type, named after it."""
    import json
    import struct

    from ckptd import _dtypes

    header, data = {}, b""
    for name in DTYPES:
        size = 6 * _dtypes.BY_NAME[name].bits // 8
        offsets = [len(data), len(data) + size]
        header[name] = {"dtype": name, "shape": [2, 3], "data_offsets": offsets}
        data += bytes(range(1, size + 1)) if name != "BOOL" else b"\1\0" * 3
    text = json.dumps(header).encode()
    path = tmp_path / "typed.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    with client.acquire(client.load(str(path))) as acquired:
        yield acquired


@pytest.mark.parametrize("name", DTYPES)
def test_dlpack_carries_type_shape_address_and_device(typed, name):
    import torch
    from ckptd import _dlpack, _dtypes

    view, row = typed.tensors[name], _dtypes.BY_NAME[name]
    capsule = view.__dlpack__(max_version=(1, 0))
    at = _dlpack._tensor_at(capsule)
    assert ctypes.c_uint64.from_address(at).value == view.pointer
    assert ctypes.c_uint8.from_address(at + 20).value == row.dlpack
    assert ctypes.c_uint8.from_address(at + 21).value == row.bits
    # And a consumer finds the values that the host would have shown.
    plain = _dlpack.device_capsule(view._mapping, view.offset, row, view.shape, read_only=False)
    tensor = torch.utils.dlpack.from_dlpack(on_the_host(plain).__dlpack__())
    assert tensor.dtype == getattr(torch, row.torch) and tuple(tensor.shape) == (2, 3)
    assert bytes(tensor.view(torch.uint8).flatten().tolist()) == content(view)


@pytest.mark.parametrize("name", DTYPES)
def test_torch_s_tensors_need_no_type_code_that_pytorch_2_6_does_not_know(typed, name, monkeypatch):
    import torch
    from ckptd import _dlpack, _dtypes
    from ckptd.torch.load import _memory

    take = torch.utils.dlpack.from_dlpack

    def as_pytorch_2_6_takes_it(capsule):
        code = ctypes.c_uint8.from_address(_dlpack._tensor_at(capsule) + 20).value
        if code > 6:  # the boolean; floats of 8 bits follow
            raise RuntimeError(f"Unsupported code {code}")
        return take(on_the_host(capsule).__dlpack__())

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", as_pytorch_2_6_takes_it)
    view, dtype = typed.tensors[name], getattr(torch, _dtypes.BY_NAME[name].torch)
    tensor = _memory.over_device(view._mapping, dtype, 6, view.offset)
    assert tensor.dtype == dtype and tensor.shape == (6,) and tensor.data_ptr() == view.pointer
    assert bytes(tensor.view(torch.uint8).tolist()) == content(view)
    none = _memory.over_device(view._mapping, dtype, 0, view.offset)
    assert none.dtype == dtype and none.shape == (0,)


@pytest.mark.parametrize("name", ["BF16", "F8_E4M3"])
def test_types_without_a_type_string_have_no_array_interface(typed, name):
    assert not hasattr(typed.tensors[name], "__cuda_array_interface__")


def test_read_only_memory_is_refused_to_a_consumer_that_cannot_be_told(shard):
    with pytest.raises(BufferError):
        shard.tensors["big"].__dlpack__()


def test_dlpack_says_that_shared_memory_is_read_only(shard):
    from ckptd import _dlpack

    at = _dlpack._tensor_at(shard.tensors["big"].__dlpack__(max_version=(1, 0)))
    assert ctypes.c_uint64.from_address(at - 8).value & 1 == 1


def test_dlpack_says_that_exclusive_memory_may_be_written(client, source):
    from ckptd import _dlpack

    with client.acquire(client.load(source[0], mode="exclusive"), "exclusive") as shard:
        at = _dlpack._tensor_at(shard.tensors["big"].__dlpack__(max_version=(1, 0)))
        assert ctypes.c_uint64.from_address(at - 8).value & 1 == 0


@pytest.mark.parametrize("options", [{"dl_device": (1, 0)}, {"copy": True}, {"dl_device": (2, 0)}])
def test_dlpack_neither_moves_nor_copies(shard, options):
    with pytest.raises(BufferError):
        shard.tensors["big"].__dlpack__(max_version=(1, 0), **options)


def test_a_consumer_s_tensor_keeps_the_memory_alone(
        daemon, client, source, calls, collect):
    shard = client.acquire(client.load(source[0]), "private")
    array = np.from_dlpack(on_the_host(shard.tensors["big"].__dlpack__()))
    before = len(calls())
    del shard
    gc.collect()
    assert np.array_equal(array, source[1]["big"]) and "cuMemUnmap" not in calls()[before:]
    del array
    collect()
    assert "cuMemUnmap" in calls()[before:]
    daemon.wait_for(lambda: daemon.leases == 0)


def test_a_capsule_that_nobody_takes_holds_nothing(client, source, calls, collect):
    shard = client.acquire(client.load(source[0]), "private")
    capsule = shard.tensors["big"].__dlpack__()
    before = len(calls())
    del shard
    gc.collect()
    assert "cuMemUnmap" not in calls()[before:]
    del capsule
    collect()
    assert "cuMemUnmap" in calls()[before:]


@pytest.mark.parametrize("reach", ["view.buffer", "view.padded_buffer", "view.numpy()", "np.asarray(view)"])
def test_the_host_s_ways_to_the_bytes_are_refused_with_what_to_do(shard, reach):
    with pytest.raises(TypeError, match="from_dlpack"):
        eval(reach, {"view": shard.tensors["big"], "np": np})


# -- what is refused ----------------------------------------------------------


def bent(daemon, client, source, bend):
    """The error when the daemon's answer is bent so."""
    checkpoint = client.load(source[0])
    daemon.bend_acquire = bend
    with pytest.raises(ckptd.Error) as caught:
        client.acquire(checkpoint)
    # The daemon is told at once, and nothing was asked from the fd socket.
    assert "ReleaseShard" in daemon.calls and daemon.leases == 0 and len(daemon.tokens) == 1
    return caught.value


def test_a_gpu_that_this_process_does_not_see_is_named_with_those_it_sees(daemon, client, source):
    def bend(reply):
        reply.vmm_fd.device_uuid = "GPU-00000000-1111-2222-3333-444444444444"

    error = bent(daemon, client, source, bend)
    assert error.code == "FAILED_PRECONDITION" and error.reason == "NO_DEVICE"
    assert "GPU-00000000-1111" in error.message and error.message.count("-0000-4000-8000-") == 2
    assert "CUDA_VISIBLE_DEVICES" in error.message


@pytest.mark.parametrize("allocation", [512, (2 << 20) + 4096, 1 << 62, 0])
def test_an_allocation_that_cannot_hold_the_slab_is_refused(daemon, client, source, allocation):
    def bend(reply):
        reply.vmm_fd.allocation_bytes = allocation

    assert bent(daemon, client, source, bend).reason == "INVALID_REPLY"


def test_a_tensor_outside_the_slab_is_refused(daemon, client, source):
    def bend(reply):
        reply.slab_bytes = 4096

    assert bent(daemon, client, source, bend).reason == "INVALID_REPLY"


def test_a_larger_allocation_than_was_sent_is_an_error_that_keeps_nothing(daemon, client, source, calls):
    checkpoint = client.load(source[0])

    def bend(reply):
        reply.vmm_fd.allocation_bytes = 64 << 20

    daemon.bend_acquire = bend
    with pytest.raises(ckptd.Unavailable, match="mapping") as caught:
        client.acquire(checkpoint)
    assert caught.value.reason == "DEVICE_FAILED" and caught.value.facts["device"].startswith("GPU-")
    assert calls().count("cuMemImportFromShareableHandle") == 1
    assert calls().count("cuMemAddressReserve") == calls().count("cuMemAddressFree")
    daemon.wait_for(lambda: daemon.leases == 0)


def test_more_descriptors_than_one_are_refused(daemon, client, source):
    checkpoint = client.load(source[0])
    daemon.bend_segments = lambda fds: [*fds, os.dup(fds[0])]
    with pytest.raises(ckptd.DataLoss):
        client.acquire(checkpoint)
    daemon.wait_for(lambda: daemon.leases == 0)


@pytest.mark.parametrize("installed,kinds", [(True, [1, 2, 3]), (False, [1])])
def test_gpu_memory_is_accepted_where_nvidia_s_bindings_are_installed(
    daemon, client, source, monkeypatch, installed, kinds
):
    from ckptd import _cuda_driver

    monkeypatch.setattr(_cuda_driver, "importable", lambda: installed)
    client.acquire(client.load(source[0])).close()
    assert daemon.accepted_kinds == kinds
