"""Offers tensors of this process to the daemons, as a safetensors file in memory.

OfferedMemory describes where tensors are and copies nothing. If the daemon may not read this
process's memory, MemoryFile makes one copy, by write(), so that it never counts as memory
mapped by this process, and passes its descriptor to the daemon. Neither has a name, so both go when
they are closed or the process ends, however it ends. If CKPTD_STAGE_DIR names a folder, the copy is
a named file there. A later process removes files of killed ones.
"""

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import re
import socket
import stat
import struct
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import nn

from ... import _client, _dtypes
from ..._errors import Error, FailedPrecondition, ResourceExhausted, Unimplemented
from ..._rpc import Deadline
from ..compat import _torch_internals
from ..load import _memory

_BLOCK = 16 << 20  # bytes written, or copied into row-major order, at once
_SPARE = 64 << 20  # bytes of memory that must remain free
_FOLDER = "CKPTD_STAGE_DIR"
_LEFT_PREFIX = "ckptd-stage-"
_LEFT = re.compile(re.escape(_LEFT_PREFIX) + r"[a-z0-9_]{8}\.safetensors")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_MAGIC = b"CKPTDMEM"
_RANGE = struct.Struct("<QQ")  # address and bytes
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_ANYBODY, _NOBODY = -1, 0
_PATIENCE = 5.0  # seconds for a busy daemon to answer
_COPY_AFTER = (
    "SOURCE_UNREADABLE",
    "SOURCE_FORBIDDEN",
    "SOURCE_INVALID",
    "SOURCE_NOT_FOUND",
    "DEADLINE",
)
_LOG = logging.getLogger("ckptd")


class _Image(NamedTuple):
    """A safetensors file of tensors: header, then `nbytes` of data."""

    header: bytes
    places: List[Tuple[torch.Tensor, int]]  # (tensor, where it is in the data)
    nbytes: int


def _image(tensors: Dict[str, torch.Tensor]) -> _Image:
    """The file for `tensors`. Tensors with the same memory are in it once.

    Its metadata lists their further names, as safetensors' save_model does. Raises Unimplemented
    (DTYPE_UNSUPPORTED) and FailedPrecondition (NO_VALUES) for a tensor that cannot be offered.
    """
    kept, aliases = _without_repeats({n: _plain(n, t) for n, t in tensors.items()})
    # Wider dtypes first, so that each offset is a multiple of the element size.
    order = sorted(kept, key=lambda name: (-kept[name].element_size(), name))
    header, places, end = {"__metadata__": {"format": "pt", **aliases}}, [], 0
    for name in order:
        tensor = kept[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _dtypes.BY_NUMBER[_memory.number_of(tensor.dtype)].name,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        places.append((tensor, end))
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _Image(len(text).to_bytes(8, "little") + text, places, end)


def staged(
    tensors: Dict[str, torch.Tensor], own: _client.Client, deadline: Deadline
) -> Union["OfferedMemory", "MemoryFile"]:
    """A file from which the daemons of this host read `tensors` until close()."""
    image = _image(tensors)
    if os.environ.get(_FOLDER):
        return MemoryFile(image)
    offered = None if own._passing.foreign else _offered(image, own, deadline)
    if offered is not None:
        return offered
    copy = MemoryFile(image)
    try:
        copy.pass_to(own, deadline)
    except (OSError, Error) as error:  # a daemon may be an older one
        _LOG.info("the copy of the state dict is not passed to the daemon: %s", error)
    except BaseException:
        copy.close()
        raise
    return copy


def _offered(image: _Image, own: _client.Client, deadline: Deadline) -> Optional["OfferedMemory"]:
    """This process's memory, if the daemon can read it."""
    offered = OfferedMemory(image)
    try:
        own.check_readable(offered.path, min(_PATIENCE, deadline.for_call()))
        return offered
    except BaseException as error:
        offered.close()
        if not isinstance(error, Error) or error.reason not in _COPY_AFTER:
            raise
        _LOG.info("the state dict is copied for the daemon, which cannot read it here: %s", error)
        return None


class OfferedMemory:
    """Tensors that the daemons read from this process's memory, at `path`, until close().

    Tensors on the host in row-major order stay where they are. Others are copied. They must not
    change before close(). If Linux's Yama is in force, it is told to let other processes of this
    user read this one until close(). Not thread-safe. Raises ResourceExhausted (NO_MEMORY) if
    there is no room for the copies.

    The format is described in common/source/storage/process_memory.h.
    """

    def __init__(self, image: _Image):
        tensors = [tensor for tensor, _ in image.places if tensor.numel()]
        copied = sum(t.numel() * t.element_size() for t in tensors if not _is_host_contiguous(t))
        if copied:
            _check_room(copied)
        # Held here, because nothing else keeps the copies, and a caller might drop the originals.
        self._tensors = [t if _is_host_contiguous(t) else t.cpu().contiguous() for t in tensors]
        ranges = [(t.data_ptr(), t.numel() * t.element_size()) for t in self._tensors]
        start = _MAGIC + struct.pack("<Q", len(ranges)) + b"".join(_RANGE.pack(*r) for r in ranges)
        self._fd = os.memfd_create("ckptd-state-dict", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _write_all(self._fd, start + image.header, 0)
            os.ftruncate(self._fd, len(start) + len(image.header) + image.nbytes)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self._fd)
            raise
        _allow_ptrace(_ANYBODY)

    @property
    def path(self) -> str:
        """Path at which processes of the same user and process-id namespace open it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Ends the offer. A daemon that still reads gets an error, or later contents of the memory."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _allow_ptrace(_NOBODY)
            os.close(fd)
            self._tensors = []


def _is_host_contiguous(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _allow_ptrace(whom: int) -> None:
    """Tells Yama, if it is in force, which processes besides ancestors may read this one's memory."""
    try:
        with open(_YAMA) as file:
            if file.read().strip() != "1":
                return
    except OSError:  # a kernel without it
        return
    # If this fails, the daemon will report that it cannot read.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(whom & (2**64 - 1)), 0, 0, 0)


class MemoryFile:
    """A safetensors file over copies of tensors, readable at `path` until close().

    Tensors may be on any device and in any memory order. They must not change before close().
    Not thread-safe. Raises ResourceExhausted (NO_MEMORY), before it writes, if there is no room.
    """

    def __init__(self, image: _Image):
        self.nbytes = len(image.header) + image.nbytes
        if os.environ.get(_FOLDER):
            _remove_stale_files(os.environ[_FOLDER])  # before the room is checked
        _check_room(self.nbytes)
        self._named: Optional[str] = None
        self._passed: Optional[socket.socket] = None
        self._passed_as = ""
        self._fd = self._create()
        try:
            _write_all(self._fd, image.header, 0)
            os.ftruncate(self._fd, self.nbytes)
            self._fill(image.places, len(image.header))
        except BaseException:
            self.close()
            raise

    def _create(self) -> int:
        folder = os.environ.get(_FOLDER)
        if folder:
            fd, self._named = _create_locked(folder)
            return fd
        return os.memfd_create("ckptd-state-dict", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def _fill(self, places: List[Tuple[torch.Tensor, int]], base: int) -> None:
        jobs = ((block, base + at + offset) for t, at in places for block, offset in _blocks(t))
        # write() releases the interpreter lock, so several threads fill memory faster.
        with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
            waiting: list = []
            for block, at in jobs:
                waiting.append(pool.submit(_write_tensor, self._fd, block, at))
                if len(waiting) > 8:
                    waiting.pop(0).result()
            for each in waiting:
                each.result()
        if self._named is None:
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)

    def pass_to(self, own: _client.Client, deadline: Deadline) -> None:
        """Has the daemon read it from its descriptor, under a path that means nothing else."""
        name = f"/ckptd-state-dict-{uuid.uuid4().hex}.safetensors"
        self._passed = own._passing.descriptor(name, self._fd, deadline)
        self._passed_as = name

    @property
    def path(self) -> str:
        """Path at which the daemon opens it, or processes of the same user and PID namespace do."""
        return self._named or self._passed_as or f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Frees the memory once no reader has it open. Does not wait for that."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._passed is not None:
            self._passed.close()
        if self._named:
            with contextlib.suppress(FileNotFoundError):  # the folder was cleared meanwhile
                os.unlink(self._named)
        try:
            # In a thread, because the kernel takes a second for 10 GB.
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            os.close(fd)


def _create_locked(folder: str) -> Tuple[int, str]:
    """A new file that is locked as long as it is open here. It gets its final name only when locked."""
    fd, part = tempfile.mkstemp(".part", _LEFT_PREFIX, folder)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; nothing is removed there
            fcntl.flock(fd, fcntl.LOCK_EX)
        named = part[: -len(".part")] + ".safetensors"
        os.rename(part, named)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    return fd, named


def _remove_stale_files(folder: str) -> None:
    """Removes files of _create_locked that ended processes left behind."""
    names = []
    with contextlib.suppress(OSError):  # writing there will raise the error
        names = os.listdir(folder)
    for name in filter(_LEFT.fullmatch, names):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile
            # O_NONBLOCK, because another program may have put a pipe there.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                    os.unlink(path)
                    _LOG.info("removed %s, which a process that has ended left", path)
            finally:
                os.close(fd)


def not_visible_advice(path: str) -> str:
    """Advice for a daemon's error that it cannot open `path`."""
    return (
        f"the daemon of rank 0 must see {path}, which is memory of the trainer: run both as one "
        f"user and in one process-id namespace, or set {_FOLDER} in the trainer to a folder in "
        "memory that both have, such as a shared /dev/shm"
    )


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose bytes in memory are the value of `tensor`."""
    if _torch_internals.is_dtensor(tensor):
        if not all(placement.is_replicate() for placement in tensor.placements):
            raise FailedPrecondition(
                f"spreading {name}: it is sharded already ({tensor.placements}), and rank 0 has "
                "only its own part; pass full tensors, as get_model_state_dict gives them with "
                "full_state_dict=True",
                "NO_VALUES",
                {"tensor": name},
            )
        tensor = _torch_internals.local_of(tensor)
    require_values_in_memory(name, tensor)
    if tensor.is_meta:
        raise FailedPrecondition(
            f"spreading {name}: on rank 0 it is on meta and has no values; pass a state dict that "
            "was read, or the path of the checkpoint",
            "NO_VALUES",
            {"tensor": name},
        )
    if _memory.number_of(tensor.dtype) not in _dtypes.OF_SAFETENSORS:
        raise Unimplemented(
            f"spreading {name}: checkpoints hold no {tensor.dtype}; convert it before",
            "DTYPE_UNSUPPORTED",
            {"tensor": name},
        )
    return tensor.detach().resolve_conj().resolve_neg()


def require_values_in_memory(name: str, tensor: torch.Tensor) -> None:
    """Raises FailedPrecondition for a tensor whose values are not in its own memory."""
    kind, instead = type(tensor).__name__, "what it wraps as a plain tensor, such as .dequantize() gives"
    if nn.parameter.is_lazy(tensor):
        raise FailedPrecondition(
            f"spreading {name}: on rank 0 it is of type {kind}, which has neither shape nor values before the "
            "first forward; take the state dict after that, or pass the path of the checkpoint",
            "NO_VALUES",
            {"tensor": name},
        )
    if tensor.is_nested:
        kind, instead = "a nested tensor", "its parts under names of their own"
    elif tensor.layout is not torch.strided:
        kind, instead = f"of layout {tensor.layout}", "its .to_dense()"
    elif tensor.is_meta or _torch_internals.has_memory(tensor):
        return
    elif type(tensor) in (torch.Tensor, nn.Parameter):
        raise FailedPrecondition(
            f"spreading {name}: on rank 0 its memory has been freed, and its values with it; pass a state dict "
            "that has them, or the path of the checkpoint",
            "NO_VALUES",
            {"tensor": name},
        )
    else:
        kind = f"of type {kind}"
    raise FailedPrecondition(
        f"spreading {name}: on rank 0 it is {kind}, which does not hold its values one after the other in "
        f"memory, as files do; pass {instead}",
        "TENSOR_SUBCLASS",
        {"tensor": name},
    )


def _without_repeats(tensors: Dict[str, torch.Tensor]):
    """(tensors without repetition, further name -> name). Equal memory and layout count as repetition."""
    kept: Dict[str, torch.Tensor] = {}
    seen: Dict[tuple, str] = {}
    aliases: Dict[str, str] = {}
    for name, t in tensors.items():
        key = (t.device, t.data_ptr(), t.dtype, t.shape, t.stride())
        if t.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            kept[name] = t
    return kept, aliases


def _blocks(tensor: torch.Tensor) -> Iterator[Tuple[torch.Tensor, int]]:
    """Yields (row-major piece on the host of about _BLOCK bytes, its byte offset)."""
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        tensor = tensor.view(-1)
    elif tensor.dim() > 1 and tensor[0].numel() * tensor.element_size() > 2 * _BLOCK:
        step = tensor[0].numel() * tensor.element_size()
        for index in range(tensor.shape[0]):
            for block, offset in _blocks(tensor[index]):
                yield block, index * step + offset
        return
    row = tensor[0].numel() * tensor.element_size()
    count = max(1, _BLOCK // row)
    for begin in range(0, tensor.shape[0], count):
        yield tensor[begin : begin + count].cpu().contiguous(), begin * row


def _write_tensor(fd: int, block: torch.Tensor, at: int) -> None:
    size = block.numel() * block.element_size()
    _write_all(fd, (ctypes.c_char * size).from_address(block.data_ptr()), at)


def _write_all(fd: int, data, at: int) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def available_bytes() -> int:
    """Bytes of memory available in the system, within the cgroup's limit."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":", 1) for line in file)
    found = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        with open("/proc/self/cgroup") as file:
            own = next(line[3:].strip() for line in file if line.startswith("0::"))
        folder = "/sys/fs/cgroup" + own
        if not os.path.exists(folder + "/memory.max"):
            folder = "/sys/fs/cgroup"
        with open(folder + "/memory.stat") as file:
            cache = next(int(line.split()[1]) for line in file if line.startswith("inactive_file "))
        with open(folder + "/memory.max") as limit, open(folder + "/memory.current") as used:
            found = min(found, int(limit.read()) - int(used.read()) + cache)
    except (OSError, StopIteration, ValueError):  # no such limit: "max" is no number
        pass
    return found


def _check_room(nbytes: int) -> None:
    room = available_bytes()
    if nbytes + _SPARE > room:
        raise ResourceExhausted(
            f"spreading a state dict of {nbytes / 1e9:.3g} GB from rank 0's memory: the daemons "
            "read it from a second copy, and there is room for "
            f"{max(0, room - _SPARE) / 1e9:.3g} GB; save it to a file and pass the path, or free "
            "memory",
            "NO_MEMORY",
            {"bytes": str(nbytes), "available": str(room)},
        )
