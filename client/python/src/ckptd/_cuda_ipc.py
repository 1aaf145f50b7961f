"""A slab in GPU memory that the daemon names by 64 bytes: legacy CUDA IPC, requested by the load.

The memory stays the daemon's. So the lease lasts as long as the mapping, in whatever order they
are closed, and the memory must not be used once the daemon has ended. The driver has no read-only
mapping of this kind: "shared" means that this process does not write.
"""

import ctypes
import threading
from typing import Dict

from ._cuda import DeviceMemory
from ._cuda_driver import Context, driver
from ._errors import DataLoss, FailedPrecondition

HANDLE_BYTES = 64
_INVALID_CONTEXT = 201  # CUresult: the driver does not know the exporting process from here


class _Entry:
    """One handle that this process has open, and its number of users. address 0: not open now."""

    def __init__(self) -> None:
        self.users, self.address, self.size = 0, 0, 0


# A finalizer may run in the middle of any of this, on the same thread.
_lock = threading.RLock()
_entries: Dict[bytes, _Entry] = {}


class _Opened:
    """One user of an open handle. Every call needs the context current."""

    def __init__(self, context: Context, handle: bytes, nbytes: int):
        self._context, self._handle, self.nbytes = context, handle, nbytes
        with _lock:
            self._entry = _entries.setdefault(handle, _Entry())
            self._entry.users += 1  # from now on no other user closes it
            try:
                if self._entry.address == 0:
                    self._open()
                if self._entry.size < nbytes:
                    raise DataLoss(
                        f"mapping a shard: {nbytes} bytes are announced, and its memory has "
                        f"{self._entry.size}; update the daemon and this client",
                        "INVALID_REPLY",
                    )
            except BaseException:
                self.free()
                raise

    @property
    def address(self) -> int:
        return self._entry.address

    def _open(self) -> None:
        cu, doing = driver(), "opening the daemon's memory"
        handle = cu.CUipcMemHandle()
        # Its bytes have no name in some releases of cuda-bindings.
        ctypes.memmove(int(handle.getPtr()), self._handle, HANDLE_BYTES)
        flags = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        result = cu.cuIpcOpenMemHandle(handle, flags)
        if int(result[0]) == _INVALID_CONTEXT:
            raise FailedPrecondition(
                f"mapping a shard: {doing} on {self._context.device.uuid}: {result[0].name}; "
                "memory handed out as CUDA_IPC needs the daemon in another process of the same "
                "PID namespace (shareProcessNamespace); else load it with handle='vmm_fd'",
                "HANDLE_KIND",
                {"device": self._context.device.uuid},
            )
        address = int(self._context.ask(result, doing))
        self._entry.address = address
        _entries[self._handle] = self._entry
        error, base, size = cu.cuMemGetAddressRange(address)
        self._context.ask((error,), "asking how large it is")
        self._entry.size = int(size) if int(base) == address else 0

    def allow_peer_access(self, writable: bool) -> None:
        """Does nothing: the driver gives access where peer access is enabled."""

    def free(self) -> None:
        """Releases the handle. The last user closes it. A second call does nothing."""
        with _lock:
            entry, self._entry = self._entry, _Entry()
            if entry.users == 0:
                return
            entry.users -= 1
            if entry.users:
                return
            if entry.address:
                driver().cuIpcCloseMemHandle(entry.address)
            entry.address = 0
            if _entries.get(self._handle) is entry:
                del _entries[self._handle]


class _Plain:
    """Memory of this process, as cudaMalloc makes it: some GPUs with CUDA IPC have no other kind.

    Every call needs the context current.
    """

    def __init__(self, context: Context, nbytes: int):
        self._context, self.nbytes, self.address = context, nbytes, 0

    def create(self) -> None:
        doing = f"allocating {self.nbytes} bytes"
        self.address = int(self._context.ask(driver().cuMemAlloc(self.nbytes), doing))

    def map(self, writable: bool) -> None:
        """Does nothing: the memory is mapped already."""

    def allow_peer_access(self, writable: bool) -> None:
        """Does nothing: the driver gives access where peer access is enabled."""

    def free(self) -> None:
        address, self.address = self.address, 0
        if address:
            driver().cuMemFree(address)


class OpenedMemory(DeviceMemory):
    """A DeviceMemory whose slab arrives as a handle instead of a descriptor.

    `complete` opens it, once the token was shown: from then on the lease keeps the slab.
    """

    def __init__(
        self, handle: bytes, device_uuid: str, allocation_bytes: int, slab_bytes: int, mode: str
    ):
        if mode == "exclusive" or len(handle) != (HANDLE_BYTES if allocation_bytes else 0):
            raise DataLoss(
                f"mapping a shard: a CUDA_IPC handle of {len(handle)} bytes came for mode "
                f"{mode!r}; update the daemon and this client",
                "INVALID_REPLY",
            )
        super().__init__(device_uuid, allocation_bytes, slab_bytes, mode)
        self._handle = handle
        self._lease = None

    def _check_granularity(self) -> None:
        """Does nothing: the driver tells the size once the handle is open."""

    def _import_memory(self, context: Context, source: bytes):
        return _Opened(context, source, self._allocation_bytes)

    def _new_memory(self, context: Context) -> _Plain:
        return _Plain(context, self._allocation_bytes)

    @property
    def needs_lease(self) -> bool:
        return self.mode != "private"

    def complete(self) -> None:
        if self._allocation_bytes and self._held is None:
            self.add(self._handle)
            self._held.lease = self._lease

    def hold(self, lease) -> None:
        self._lease = lease
        if not self._allocation_bytes:
            super().hold(lease)
