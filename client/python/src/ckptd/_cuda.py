"""A slab in GPU memory, imported from the daemon's descriptor and mapped into this process.

Uses NVIDIA's cuda-bindings, imported when a daemon answers with such memory. All calls use
the device's primary context, as PyTorch, CuPy and the CUDA runtime do.
"""

import contextlib
import os
import sys
import time
import weakref
from typing import Optional

from . import _deferred_free
from ._cuda_driver import Context, ask, driver, find_device, has_rdma, reaches, visible_devices
from ._errors import DataLoss, DeadlineExceeded, Error, FailedPrecondition
from ._mapping import MAX_SLAB_BYTES


def _properties(ordinal: int):
    cu = driver()
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    return properties


class _Allocation:
    """One piece of device memory and its address. Every call needs the context current.

    free() releases all that exists, in the order that the driver requires. A second call does nothing.
    """

    def __init__(self, context: Context, nbytes: int):
        self._context, self.nbytes, self.address = context, nbytes, 0
        self._handle = None
        self._mapped = False

    def import_from(self, fd: int) -> None:
        """Imports the memory behind `fd`. The descriptor stays the caller's."""
        cu = driver()
        kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        result = cu.cuMemImportFromShareableHandle(fd, kind)
        self._handle = self._context.ask(result, "importing the daemon's memory")

    def create(self) -> None:
        properties = _properties(self._context.device.ordinal)
        # Like the daemon's memory: NCCL can register only such memory with a network card.
        if has_rdma(self._context.device):
            properties.allocFlags.gpuDirectRDMACapable = 1
        self._handle = self._context.ask(
            driver().cuMemCreate(self.nbytes, properties, 0), f"allocating {self.nbytes} bytes"
        )

    def map(self, writable: bool) -> None:
        cu, ask = driver(), self._context.ask
        doing = f"reserving {self.nbytes} bytes of addresses"
        self.address = int(ask(cu.cuMemAddressReserve(self.nbytes, 0, 0, 0), doing))
        doing = f"mapping {self.nbytes} bytes"
        ask(cu.cuMemMap(self.address, self.nbytes, 0, self._handle, 0), doing)
        self._mapped = True
        ask(self._allow(self._context.device.ordinal, writable), "making it accessible")

    def allow_peer_access(self, writable: bool) -> None:
        """Lets other GPUs access the memory, as they access PyTorch's own.

        Copies between GPUs and kernels use that. A GPU that cannot get access is left out.
        """
        for device in visible_devices():
            if device.ordinal != self._context.device.ordinal and reaches(
                device, self._context.device
            ):
                self._allow(device.ordinal, writable)

    def _allow(self, ordinal: int, writable: bool) -> tuple:
        cu = driver()
        access = cu.CUmemAccessDesc()
        # A variable keeps the struct alive: its member does not (cuda-bindings up to 13.3.1).
        properties = _properties(ordinal)
        access.location = properties.location
        flags = cu.CUmemAccess_flags
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        return cu.cuMemSetAccess(self.address, self.nbytes, [access], 1)

    def free(self) -> None:
        cu = driver()
        if self._mapped:
            cu.cuMemUnmap(self.address, self.nbytes)
        if self._handle is not None:
            cu.cuMemRelease(self._handle)
        if self.address:
            cu.cuMemAddressFree(self.address, self.nbytes)
        self._mapped, self._handle, self.address = False, None, 0


_PATIENCE = 10.0  # seconds; a GPU copies 100 GB of its memory in a tenth of a second
_POLL = 1e-4  # seconds

_kept = []  # memory that could not be freed, and leases: the end of the process frees them
_postponed = []  # _Held objects dropped while a CUDA graph was recorded
_RECORDED = range(900, 909)  # CUDA_ERROR_STREAM_CAPTURE_*: another thread or library records a graph


def _recording() -> bool:
    """Whether this thread records a CUDA graph with PyTorch. A wait for the GPU would invalidate it."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


def _free_postponed() -> None:
    for _ in range(len(_postponed)):  # each once, because some may be postponed again
        with contextlib.suppress(IndexError):  # another thread was quicker
            _postponed.pop(0).free()


def _drop_postponed() -> None:
    if _postponed and not _recording():
        _deferred_free.drop(_free_postponed)


class _HeldMemory:
    """Resources of a DeviceMemory, freed in order when nothing uses them any more."""

    def __init__(self, context: Context, allocation, needs_lease: bool):
        self.context, self.allocation, self.lease = context, allocation, None
        self.needs_lease = needs_lease
        self.pid = os.getpid()

    def free_later(self) -> None:
        """Frees the memory, from any thread, without a wait for the GPU.

        While the thread records a graph, the next mapping or drop frees it.
        """
        if os.getpid() != self.pid:
            return  # a forked child; the memory is the parent's
        if _recording():
            _postponed.append(self)
        else:
            _deferred_free.drop(self._free_after_postponed)

    def _free_after_postponed(self) -> None:
        _free_postponed()
        self.free()

    def free(self) -> None:
        """Waits for the GPU and frees. Ignores errors: a driver that fails here has freed the memory."""
        if os.getpid() != self.pid:
            return
        recorded, freed = False, False
        # Launched kernels may still use the memory, and unmapping does not wait for them.
        # If the context cannot be waited for, the end of the process frees the memory.
        with contextlib.suppress(Error), self.context:
            waited = driver().cuCtxSynchronize()
            recorded = int(waited[0]) in _RECORDED
            if not recorded:
                self.context.ask(waited, "waiting for its work")
                self.allocation.free()
                freed = True
        if recorded:
            _postponed.append(self)
            return
        self.context.release()
        if self.lease is not None and (freed or not self.needs_lease):
            self.lease.close()
        elif self.lease is not None:
            _kept.append(self.lease)


def check_sizes(allocation_bytes: int, slab_bytes: int) -> None:
    """Refuses sizes that cannot describe a slab, before they are used."""
    if allocation_bytes > MAX_SLAB_BYTES or allocation_bytes < slab_bytes:
        raise DataLoss(
            f"mapping a shard: an allocation of {allocation_bytes} bytes is announced for a slab "
            f"of {slab_bytes}; update the daemon and this client",
            "INVALID_REPLY",
        )


class DeviceMemory:
    """One slab in a GPU's memory, `mode` one of shared, private, exclusive.

    Call `add` with the descriptor. Afterwards the object only holds facts. The memory is freed
    when the object goes, so users of the address must hold the object. Private memory is a copy
    on the GPU, complete when `add` returns. Any thread may drop it. A forked child cannot use it.
    """

    def __init__(self, device_uuid: str, allocation_bytes: int, slab_bytes: int, mode: str):
        check_sizes(allocation_bytes, slab_bytes)
        self._device = find_device(device_uuid)
        self.mode = mode
        self.nbytes = slab_bytes
        self.writable = mode != "shared"
        self.copied_bytes = 0
        # Whether a copy has begun and may still run. Its memory is not freed then: that would
        # fault, or block for good.
        self.copying = False
        self._allocation_bytes = allocation_bytes
        self._held: Optional[_HeldMemory] = None
        self._pid = os.getpid()
        self._check_granularity()

    def _check_granularity(self) -> None:
        cu = driver()
        step = ask(
            cu.cuMemGetAllocationGranularity(
                _properties(self._device.ordinal),
                cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            ),
            "asking for the allocation granularity",
            self._device.uuid,
        )
        if self._allocation_bytes % step:
            raise DataLoss(
                f"mapping a shard: an allocation of {self._allocation_bytes} bytes is announced, "
                f"no whole number of the {step} in which {self._device.uuid} allocates; update "
                "the daemon and this client",
                "INVALID_REPLY",
            )

    @property
    def device(self) -> str:
        """UUID of the GPU."""
        return self._device.uuid

    @property
    def ordinal(self) -> int:
        """Its number in this process, as PyTorch counts."""
        return self._device.ordinal

    @property
    def address(self) -> int:
        if os.getpid() != self._pid:
            raise FailedPrecondition(
                "using a shard in GPU memory: this process was forked from the one that mapped "
                "it, and CUDA does not survive a fork; start the child by spawn, or acquire "
                "after the fork",
                "FORKED",
            )
        return self._held.allocation.address if self._held else 0

    @property
    def needs_lease(self) -> bool:
        """Whether the memory goes with the lease. The lease then lasts as long as the memory."""
        return False

    def add(self, source) -> None:
        """Imports and maps the slab from a descriptor, which stays the caller's."""
        if self._held is not None:
            raise DataLoss(
                "mapping a shard: more descriptors arrived than one allocation has",
                "INVALID_REPLY",
            )
        _deferred_free.start()
        _drop_postponed()
        context = Context(self._device)
        try:
            with context:
                allocation = self._attach(context, source)
        except BaseException:
            if not self.copying:
                context.release()
            raise
        self._held = _HeldMemory(context, allocation, self.needs_lease)
        # At exit other libraries may still use the memory; the driver frees it then.
        weakref.finalize(self, self._held.free_later).atexit = False

    def _import_memory(self, context: Context, source):
        lent = _Allocation(context, self._allocation_bytes)
        try:
            lent.import_from(source)
            lent.map(self.mode == "exclusive")
        except BaseException:
            lent.free()
            raise
        return lent

    def _new_memory(self, context: Context):
        return _Allocation(context, self._allocation_bytes)

    def _attach(self, context: Context, source):
        lent = self._import_memory(context, source)
        if self.mode != "private":
            lent.allow_peer_access(self.writable)
            return lent
        try:
            return self._copy_of(lent, context)
        finally:
            if not self.copying:
                lent.free()

    def _copy_of(self, lent, context: Context):
        """Copies into memory of this process, on a stream that does not wait for other streams."""
        cu, ask = driver(), context.ask
        own = self._new_memory(context)
        _deferred_free.drain(_PATIENCE)  # memory that this process has dropped may be the room for it
        try:
            own.create()
            own.map(True)
            flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            stream = ask(cu.cuStreamCreate(flags), "making a stream")
            try:
                doing = f"copying {self.nbytes} bytes"
                self.copying = True
                begun = cu.cuMemcpyDtoDAsync(own.address, lent.address, self.nbytes, stream)
                self.copying = int(begun[0]) == 0
                ask(begun, doing)
                self._await(stream, context, doing)
            finally:
                cu.cuStreamDestroy(stream)
            own.allow_peer_access(True)
        except BaseException:
            if self.copying:
                _kept.append(self)
            else:
                own.free()
            raise
        self.copied_bytes = self.nbytes
        return own

    def _await(self, stream, context: Context, doing: str) -> None:
        cu, began = driver(), time.monotonic()
        while int((state := cu.cuStreamQuery(stream))[0]) == int(cu.CUresult.CUDA_ERROR_NOT_READY):
            if time.monotonic() - began > _PATIENCE:
                raise DeadlineExceeded(
                    f"{doing} on {self.device}: not done after {_PATIENCE:g} s; look at the GPU "
                    "(nvidia-smi, dmesg for Xid), and start this process again",
                    "DEADLINE",
                    {"device": self.device},
                )
            time.sleep(_POLL)
        self.copying = False
        context.ask(state, doing)

    def complete(self) -> None:
        """Checks that the memory has arrived."""
        if self._held is None and self._allocation_bytes:
            raise DataLoss("mapping a shard: its descriptor did not arrive", "INVALID_REPLY")

    def hold(self, lease) -> None:
        """Closes `lease` once the memory is freed, unless it was closed before."""
        if self._held is not None:
            self._held.lease = lease
        else:
            weakref.finalize(self, lease.close).atexit = False
