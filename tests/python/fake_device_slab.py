"""The fake daemon's slabs in GPU memory: one CUDA allocation each, exported as a descriptor."""

import os
import uuid

from cuda.bindings import driver as cu
from fake_slab import Slab

POSIX = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else None


class DeviceSlab(Slab):
    """Laid out as on the host, then copied to GPU `ordinal`. A real descriptor keeps the memory."""

    def __init__(self, ordinal):
        super().__init__(1 << 40)
        self.ordinal = ordinal
        ok(cu.cuInit(0))
        raw = bytes(ok(cu.cuDeviceGetUuid(ok(cu.cuDeviceGet(ordinal)))).bytes)
        self.name = f"GPU-{uuid.UUID(bytes=raw)}"

    def finish(self, writable):
        memory = bytearray(self.size)
        for offset, data in self.parts:
            memory[offset : offset + len(data)] = data
        ok(cu.cuCtxPushCurrent(ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(self.ordinal))))))
        try:
            self._export(bytes(memory))
        finally:
            ok(cu.cuCtxPopCurrent())
            ok(cu.cuDevicePrimaryCtxRelease(self.ordinal))
        self.parts = []

    def _export(self, memory):
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.ordinal
        properties.requestedHandleTypes = POSIX
        bytes_ = -(-len(memory) // (2 << 20)) * (2 << 20)
        handle = ok(cu.cuMemCreate(bytes_, properties, 0))
        address = int(ok(cu.cuMemAddressReserve(bytes_, 0, 0, 0)))
        ok(cu.cuMemMap(address, bytes_, 0, handle, 0))
        access = cu.CUmemAccessDesc()
        access.location = properties.location
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ok(cu.cuMemSetAccess(address, bytes_, [access], 1))
        ok(cu.cuMemcpyHtoD(address, memory, len(memory)))
        ok(cu.cuCtxSynchronize())
        self.segments = [int(ok(cu.cuMemExportToShareableHandle(handle, POSIX, 0)))]
        self.sizes = [bytes_]
        ok(cu.cuMemUnmap(address, bytes_))
        ok(cu.cuMemRelease(handle))
        ok(cu.cuMemAddressFree(address, bytes_))

    def descriptors(self, writable):
        return [os.dup(fd) for fd in self.segments]

    def describe(self, reply, fd_socket, writable):
        reply.vmm_fd.fd_socket = fd_socket
        reply.vmm_fd.device_uuid = self.name
        reply.vmm_fd.allocation_bytes = sum(self.sizes)
        reply.vmm_fd.writable = writable
