"""A shard: one rank's tensors as memory mapped into this process."""

import collections.abc
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple, Union

from . import _cuda, _cuda_driver, _fds, _proto, _types
from ._errors import DataLoss, FailedPrecondition
from ._mapping import Mapping, check_segments
from ._rpc import Connection, Deadline
from ._table import Table

if TYPE_CHECKING:
    from numpy import ndarray


class TensorView:
    """One tensor in a shard's host memory. Immutable, thread-safe; keeps the memory mapped.

    name, dtype (header name such as "BF16"), shape (local), offset and nbytes in the slab,
    padded_nbytes (with the zero padding that FSDP2 needs), digest (XXH3, or None), writable.
    Memory of a shared shard is read-only. Buffers and arrays are marked so, but torch tensors
    cannot be: a write through one ends the process with SIGSEGV.
    """

    __slots__ = (
        "name",
        "shape",
        "offset",
        "nbytes",
        "padded_nbytes",
        "digest",
        "writable",
        "_dtype",
        "_mapping",
        "_array",
        "__weakref__",
    )

    def __init__(self, shard: "Shard", index: int) -> None:
        table = shard.table
        self.name: str = table.names[index]
        self.shape: Tuple[int, ...] = table.shapes[index]
        self.offset: int = table.offsets[index]
        self.nbytes: int = table.nbytes[index]
        self.padded_nbytes: int = table.padded_nbytes[index]
        self.digest: Optional[int] = table.digests[index] if table.digests else None
        self.writable: bool = shard.mapping.writable
        self._dtype = table.dtypes[index]
        self._mapping = shard.mapping
        self._array = shard.array

    def __repr__(self) -> str:
        return f"<ckptd.TensorView {self.name} {self.dtype}{list(self.shape)}>"

    @property
    def dtype(self) -> str:
        """As in a safetensors header, such as "BF16"."""
        return self._dtype.name

    @property
    def device(self) -> Optional[str]:
        """UUID of the GPU in whose memory it lies; None for host memory."""
        return self._mapping.device

    @property
    def pointer(self) -> int:
        """Address of the first byte in this process. For GPU memory it is the GPU's address."""
        return self._mapping.address + self.offset

    @property
    def buffer(self) -> memoryview:
        """The bytes, without padding. Read-only where the memory is."""
        view = memoryview(self._array).cast("B")[self.offset : self.offset + self.nbytes]
        return view if self.writable else view.toreadonly()

    @property
    def padded_buffer(self) -> memoryview:
        """The bytes and their zero padding, `padded_nbytes` in all."""
        view = memoryview(self._array).cast("B")[self.offset : self.offset + self.padded_nbytes]
        return view if self.writable else view.toreadonly()

    def _typed(self) -> "ndarray":
        import numpy

        if self._dtype.numpy is None:
            raise TypeError(
                f"{self.name} is {self.dtype}, elements smaller than a byte; use .buffer"
            )
        return numpy.frombuffer(self.buffer, dtype=self._dtype.numpy).reshape(self.shape)

    def numpy(self) -> "ndarray":
        """A NumPy array over the memory. Raises TypeError for types NumPy has not (BF16, FP8)."""
        if not self._dtype.exact:
            raise TypeError(
                f"{self.name} is {self.dtype}, which NumPy has not; use .buffer, "
                "torch.from_dlpack or ml_dtypes over numpy.frombuffer(view.buffer)"
            )
        return self._typed()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if not self._dtype.exact:
            # An AttributeError makes NumPy try other interfaces instead of misreading the bytes.
            raise AttributeError(f"{self.dtype} has no NumPy type")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._dtype.numpy,
            "data": self.buffer if self.nbytes else (0, not self.writable),
            "strides": None,
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule; read-only memory needs a consumer that can be told so."""
        from . import _dlpack

        return _dlpack.capsule(self._typed(), self._dtype, options)


class _Tensors(collections.abc.Mapping):
    """Name -> view, further names of tied tensors last."""

    def __init__(self, shard: "Shard") -> None:
        self._shard = shard

    def __getitem__(self, name: str) -> TensorView:
        return self._shard.view(self._shard.table.index[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard.table.index)

    def __len__(self) -> int:
        return len(self._shard.table.index)

    def __contains__(self, name: object) -> bool:
        return name in self._shard.table.index


class Shard:
    """This rank's part of a checkpoint, mapped. A context manager.

    tensors maps each name and alias to a TensorView. The lease lasts until close(), or until
    the last view of the memory is gone. Memory stays valid as long as anything uses it, also
    after close() and without the daemon. Only memory of handle "cuda_ipc" is the daemon's: then
    the lease ends with the last view, even after close(). handle: how the memory was handed
    over. mapping and array: a Mapping of host memory and its bytes, or a DeviceMemory and None.
    copied_bytes: bytes that mode "private" had to copy on a GPU.
    """

    def __init__(
        self,
        reply: Any,
        checkpoint: str,
        table: Table,
        mapping: Union[Mapping, _cuda.DeviceMemory],
        lease: _fds.Lease,
    ) -> None:
        self.checkpoint = checkpoint
        self.lease_name: str = reply.lease
        self.mode: str = mapping.mode
        self.handle: str = reply.WhichOneof("handle")
        self.slab_bytes: int = reply.slab_bytes
        self.table = table
        self.mapping = mapping
        self.array: Any = mapping.complete()
        self.device: Optional[str] = mapping.device
        self.copied_bytes: int = mapping.copied_bytes
        self._lease = lease

    def __enter__(self) -> "Shard":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "leased" if self._lease.open else "closed"
        count = len(self.table.names)
        where = f" on {self.device}" if self.device else ""
        return f"<ckptd.Shard of {self.checkpoint}, {count} tensors, {self.mode}{where}, {state}>"

    @property
    def tensors(self) -> "collections.abc.Mapping[str, TensorView]":
        """Name -> view, in the table's order, then further names of tied tensors."""
        return _Tensors(self)

    def view(self, index: int) -> TensorView:
        """The tensor in row `index` of the table. For GPU memory it is a DeviceTensorView."""
        if self.device is None:
            return TensorView(self, index)
        from ._cuda_view import DeviceTensorView

        return DeviceTensorView(self, index)

    @property
    def aliases(self) -> Dict[str, str]:
        """Further name -> name of the same tensor."""
        return {alias: self.table.names[i] for alias, i in self.table.aliases.items()}

    @property
    def closed(self) -> bool:
        """Whether the lease has ended."""
        return not self._lease.open

    def close(self) -> None:
        """Ends the lease. Views stay valid; the daemon may drop its own copy from now on."""
        if not self.mapping.needs_lease:
            self._lease.close()


def _read_table(connection: Connection, name: str, reply, deadline: Deadline) -> Table:
    table = Table(f"the tensor table of {name}", reply.slab_bytes)
    table.add_page(reply.tensors)
    token = reply.next_page_token
    while token:
        page = connection.call(
            "ListShardTensors",
            _proto.message("ListShardTensorsRequest")(name=name, page_token=token),
            f"reading the tensor table of {name}",
            deadline,
        )
        table.add_page(page.tensors)
        token = page.next_page_token
    table.finish(reply.tensor_count)
    return table


def _release(connection: Connection, lease: str) -> None:
    """Returns a lease that got no connection. The daemon would end it by a timeout anyway."""
    try:
        connection.call(
            "ReleaseShard",
            _proto.message("ReleaseShardRequest")(lease=lease),
            "releasing a shard",
            Deadline(1.0),
            retry=False,
        )
    except Exception:  # the original error matters more
        return


def _accepted_kinds() -> list:
    names = _types.HANDLES if _cuda_driver.importable() else ("memfd",)
    return [_types.HANDLES[name] for name in names]


def _memory_for(name: str, reply):
    """(object for the shard's memory, fd socket, number of descriptors)."""
    mode = _types.MODE_NAMES[reply.mode]
    kind = reply.WhichOneof("handle")
    if kind == "memfd":
        segments = list(reply.memfd.segment_bytes)
        check_segments(segments, reply.slab_bytes)
        return Mapping(segments, mode), reply.memfd.fd_socket, len(segments)
    if kind == "vmm_fd":
        vmm = reply.vmm_fd
        memory = _cuda.DeviceMemory(vmm.device_uuid, vmm.allocation_bytes, reply.slab_bytes, mode)
        return memory, vmm.fd_socket, 1 if vmm.allocation_bytes else 0
    if kind == "cuda_ipc":
        from ._cuda_ipc import OpenedMemory

        ipc = reply.cuda_ipc
        figures = (ipc.device_uuid, ipc.allocation_bytes, reply.slab_bytes, mode)
        return OpenedMemory(ipc.handle, *figures), ipc.fd_socket, 0
    raise FailedPrecondition(
        f"acquiring {name}: the daemon offers memory of a kind this client "
        "cannot map; update the Python package",
        "HANDLE_KIND",
    )


def acquire(
    connection: Connection, name: str, mode: int, deadline: Deadline, load_id: Optional[str] = None
) -> Shard:
    """Acquires a shard. load_id: request id of the load for which the daemon keeps the shard."""
    request = _proto.message("AcquireShardRequest")(
        name=name, mode=mode, accepted_kinds=_accepted_kinds(), load_request_id=load_id
    )
    # No retry for EXCLUSIVE: a lost answer may have handed the memory over.
    reply = connection.call(
        "AcquireShard",
        request,
        f"acquiring {name}",
        deadline,
        retry=mode != _types.MODES["exclusive"],
    )
    try:
        # A lease has the name of its checkpoint. Another name means other memory.
        if not reply.lease.startswith(f"{name}/leases/"):
            raise DataLoss(
                f"acquiring {name}: the daemon leases {reply.lease}; update the daemon and this client",
                "INVALID_REPLY",
            )
        if reply.mode != mode:
            lent = _types.MODE_NAMES.get(reply.mode, "in a mode unknown here")
            raise DataLoss(
                f"acquiring {name}: the daemon lends it {lent}, not {_types.MODE_NAMES[mode]}; "
                "update the daemon and this client",
                "INVALID_REPLY",
            )
        mapping, fd_socket, count = _memory_for(name, reply)
        table = _read_table(connection, name, reply, deadline)
        fd_socket = _fds.here(fd_socket, connection.address.path)
        lease = _fds.receive(fd_socket, reply.token, count, deadline, mapping.add)
    except BaseException:
        _release(connection, reply.lease)
        raise
    mapping.hold(lease)
    try:
        return Shard(reply, name, table, mapping, lease)
    except BaseException:
        if not mapping.copying:
            lease.close()
        raise
