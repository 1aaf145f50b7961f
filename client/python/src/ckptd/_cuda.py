"""A slab in GPU memory: imported from the daemon's descriptor and mapped into this process.

Uses NVIDIA's cuda-bindings (`pip install ckptd[cuda]`), imported when a daemon answers
with such memory. All of it happens in the device's primary context, the one that PyTorch,
CuPy and the CUDA runtime use.
"""

import contextlib
import functools
import importlib.util
import os
import uuid
import weakref
from typing import List, NamedTuple, Optional

from ._errors import DataLoss, Error, FailedPrecondition, ResourceExhausted, Unavailable
from ._mapping import MAX_SLAB_BYTES

_OUT_OF_MEMORY = 2  # CUresult


def importable() -> bool:
    """Whether cuda-bindings is installed; imports none of it."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except (ImportError, ValueError):  # no package "cuda", or one without a spec
        return False


@functools.lru_cache(maxsize=None)
def _driver():
    """NVIDIA's module, its driver initialised. Raises FailedPrecondition NO_DEVICE."""
    try:
        from cuda.bindings import driver

        (result,) = driver.cuInit(0)
        problem = None if int(result) == 0 else result.name
    except (ImportError, OSError, RuntimeError) as error:  # a library is missing or too old
        problem = str(error) or type(error).__name__
    if problem is None:
        return driver
    raise FailedPrecondition(
        f"opening the CUDA driver: {problem}; the daemon keeps shards in GPU memory, so this "
        "process needs NVIDIA's driver and the daemon's GPU: look at nvidia-smi, and at the "
        "GPUs this container was given",
        "NO_DEVICE",
    )


def _ask(result: tuple, doing: str, device: str):
    """The value of a driver call's answer (error, *values); raises for an error."""
    error, *values = result
    if int(error) == 0:
        return values[0] if values else None
    cu, facts = _driver(), {"device": device}
    sentence = cu.cuGetErrorString(error)[1]
    said = f"{error.name} ({sentence.decode() if sentence else 'no description'})"
    text = f"mapping a shard: {doing} on {device}: {said}"
    if int(error) == _OUT_OF_MEMORY:
        raise ResourceExhausted(
            f"{text}; end what else uses the GPU, or use mode 'shared' or 'exclusive', which "
            "need no memory of their own",
            "NO_MEMORY",
            facts,
        )
    raise Unavailable(
        f"{text}; look at nvidia-smi and at the kernel's log for Xid messages", "DEVICE_FAILED", facts
    )


class Device(NamedTuple):
    """A GPU that this process sees."""

    uuid: str
    ordinal: int  # counted as PyTorch counts, after CUDA_VISIBLE_DEVICES
    handle: object  # CUdevice


def visible_devices() -> List[Device]:
    cu = _driver()
    # Where a visible device is a slice of a GPU, version 2 answers with the slice's own.
    get_uuid = getattr(cu, "cuDeviceGetUuid_v2", cu.cuDeviceGetUuid)
    found = []
    for ordinal in range(_ask(cu.cuDeviceGetCount(), "counting GPUs", "this machine")):
        what = f"GPU {ordinal}"
        handle = _ask(cu.cuDeviceGet(ordinal), "opening it", what)
        raw = bytes(_ask(get_uuid(handle), "asking for its UUID", what).bytes)
        found.append(Device(f"GPU-{uuid.UUID(bytes=raw)}", ordinal, handle))
    return found


def _digits(name: str) -> str:
    return name[4:].lower() if name[:4] in ("GPU-", "MIG-") else name.lower()


def find_device(name: str) -> Device:
    """The visible device of that UUID. Raises FailedPrecondition NO_DEVICE."""
    devices = visible_devices()
    for device in devices:
        if _digits(device.uuid) == _digits(name):
            return device
    seen = ", ".join(device.uuid for device in devices) or "none"
    raise FailedPrecondition(
        f"mapping a shard that lies on {name}: this process sees only these GPUs: {seen}; give "
        "it the daemon's GPU (CUDA_VISIBLE_DEVICES, the container's devices), or ask the daemon "
        "of a GPU that it sees",
        "NO_DEVICE",
        {"device": name, "visible": seen},
    )


class _Context:
    """The primary context of a device, retained until release(). Current inside `with`."""

    def __init__(self, device: Device):
        self.device = device
        self._handle = _ask(
            _driver().cuDevicePrimaryCtxRetain(device.handle), "making a context", device.uuid
        )

    def __enter__(self) -> "_Context":
        _ask(_driver().cuCtxPushCurrent(self._handle), "entering its context", self.device.uuid)
        return self

    def __exit__(self, *_) -> None:
        _driver().cuCtxPopCurrent()

    def ask(self, result: tuple, doing: str):
        return _ask(result, doing, self.device.uuid)

    def release(self) -> None:
        _driver().cuDevicePrimaryCtxRelease(self.device.handle)


def _properties(device: Device):
    cu = _driver()
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.ordinal
    return properties


class _Allocation:
    """One piece of device memory and its address. Every call needs the context current.

    free() gives back what there is, in the order that the driver asks for; twice is fine.
    """

    def __init__(self, context: _Context, nbytes: int):
        self._context, self.nbytes, self.address = context, nbytes, 0
        self._handle = None
        self._mapped = False

    def import_from(self, fd: int) -> None:
        """Takes the memory that `fd` stands for; the descriptor stays the caller's."""
        cu = _driver()
        kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        result = cu.cuMemImportFromShareableHandle(fd, kind)
        self._handle = self._context.ask(result, "importing the daemon's memory")

    def create(self) -> None:
        properties = _properties(self._context.device)
        self._handle = self._context.ask(
            _driver().cuMemCreate(self.nbytes, properties, 0), f"allocating {self.nbytes} bytes"
        )

    def map(self, writable: bool) -> None:
        cu, ask = _driver(), self._context.ask
        doing = f"reserving {self.nbytes} bytes of addresses"
        self.address = int(ask(cu.cuMemAddressReserve(self.nbytes, 0, 0, 0), doing))
        ask(cu.cuMemMap(self.address, self.nbytes, 0, self._handle, 0), f"mapping {self.nbytes} bytes")
        self._mapped = True
        access = cu.CUmemAccessDesc()
        access.location = _properties(self._context.device).location
        flags = cu.CUmemAccess_flags
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        ask(cu.cuMemSetAccess(self.address, self.nbytes, [access], 1), "making it accessible")

    def free(self) -> None:
        cu = _driver()
        if self._mapped:
            cu.cuMemUnmap(self.address, self.nbytes)
        if self._handle is not None:
            cu.cuMemRelease(self._handle)
        if self.address:
            cu.cuMemAddressFree(self.address, self.nbytes)
        self._mapped, self._handle, self.address = False, None, 0


class _Held:
    """What a DeviceMemory has to give back, in order, when nothing uses it any more."""

    def __init__(self, context: _Context, allocation: _Allocation):
        self.context, self.allocation, self.lease = context, allocation, None
        self.pid = os.getpid()

    def give_back(self) -> None:
        """Runs in any thread. Errors stay quiet: a driver that fails here has let go already."""
        if os.getpid() != self.pid:
            return  # a forked child: all of it is the parent's
        # Kernels that were launched may still use the memory, and unmapping does not wait.
        # Where the context cannot even be waited for, the end of the process frees it.
        with contextlib.suppress(Error), self.context:
            self.context.ask(_driver().cuCtxSynchronize(), "waiting for its work")
            self.allocation.free()
        self.context.release()
        if self.lease is not None:
            self.lease.close()


def check_figures(allocation_bytes: int, slab_bytes: int) -> None:
    """Refuses figures that cannot describe a slab, before any of them is used."""
    if allocation_bytes > MAX_SLAB_BYTES or allocation_bytes < slab_bytes:
        raise DataLoss(
            f"mapping a shard: an allocation of {allocation_bytes} bytes is announced for a slab "
            f"of {slab_bytes}; update the daemon and this client",
            "INVALID_REPLY",
        )


class DeviceMemory:
    """One slab in a GPU's memory, `mode` one of shared, private, exclusive.

    Call `add` with the one descriptor; afterwards it only holds facts. The memory is given
    back when the object goes: whatever uses the address holds it. Private memory is a copy
    on the GPU, complete when `add` returns. Any thread may drop it; a forked child has none
    of it.
    """

    def __init__(self, device_uuid: str, allocation_bytes: int, slab_bytes: int, mode: str):
        check_figures(allocation_bytes, slab_bytes)
        self._device = find_device(device_uuid)
        self.mode = mode
        self.nbytes = slab_bytes
        self.writable = mode != "shared"
        self.copied_bytes = 0
        self._allocation_bytes = allocation_bytes
        self._held: Optional[_Held] = None
        self._pid = os.getpid()
        self._check_granularity()

    def _check_granularity(self) -> None:
        cu = _driver()
        step = _ask(
            cu.cuMemGetAllocationGranularity(
                _properties(self._device),
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

    def add(self, fd: int) -> None:
        """Imports and maps the slab from `fd`, which stays the caller's."""
        if self._held is not None:
            raise DataLoss(
                "mapping a shard: more descriptors arrived than one allocation has",
                "INVALID_REPLY",
            )
        context = _Context(self._device)
        try:
            with context:
                allocation = self._attach(context, fd)
        except BaseException:
            context.release()
            raise
        self._held = _Held(context, allocation)
        # At exit other libraries may still use the memory; the driver frees it then.
        weakref.finalize(self, self._held.give_back).atexit = False

    def _attach(self, context: _Context, fd: int) -> _Allocation:
        lent = _Allocation(context, self._allocation_bytes)
        try:
            lent.import_from(fd)
            lent.map(self.mode == "exclusive")
            if self.mode != "private":
                return lent
            own = self._copy_of(lent, context)
        except BaseException:
            lent.free()
            raise
        lent.free()
        return own

    def _copy_of(self, lent: _Allocation, context: _Context) -> _Allocation:
        """A copy in memory of this process, made on a stream that waits for nobody else's."""
        cu, ask = _driver(), context.ask
        own = _Allocation(context, lent.nbytes)
        try:
            own.create()
            own.map(True)
            flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            stream = ask(cu.cuStreamCreate(flags), "making a stream")
            try:
                doing = f"copying {self.nbytes} bytes"
                ask(cu.cuMemcpyDtoDAsync(own.address, lent.address, self.nbytes, stream), doing)
                ask(cu.cuStreamSynchronize(stream), doing)
            finally:
                cu.cuStreamDestroy(stream)
        except BaseException:
            own.free()
            raise
        self.copied_bytes = self.nbytes
        return own

    def complete(self) -> None:
        """Checks that the memory came."""
        if self._held is None and self._allocation_bytes:
            raise DataLoss("mapping a shard: its descriptor did not arrive", "INVALID_REPLY")

    def hold(self, lease) -> None:
        """Closes `lease` after the memory went, unless it was closed before."""
        if self._held is not None:
            self._held.lease = lease
        else:
            weakref.finalize(self, lease.close).atexit = False
