"""Maps a slab's segments back to back and keeps them mapped while anything uses them.

Python's mmap module cannot place a mapping (MAP_FIXED), so this calls libc. The memory is
exposed as one ctypes array that holds its Mapping. Users of the buffer (memoryview,
torch.frombuffer, numpy) hold the array, and the end of the last one unmaps. There is
deliberately no way to unmap earlier.
"""

import ctypes
import mmap
import os
import weakref
from typing import List

from ._errors import DataLoss, Internal, ResourceExhausted

_PAGE = mmap.PAGESIZE
# Huge pages need addresses congruent to the file's offset modulo this.
_ALIGNMENT = 2 << 20
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_READ = 22
_MAP_FAILED = ctypes.c_void_p(-1).value
# No machine maps more; a larger figure is a broken or hostile answer.
MAX_SLAB_BYTES = 1 << 46
MAX_SEGMENTS = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.restype = ctypes.c_int
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def check_segments(segment_bytes: List[int], slab_bytes: int) -> None:
    """Refuses sizes that cannot describe a slab, before they are used."""
    if slab_bytes > MAX_SLAB_BYTES or len(segment_bytes) > MAX_SEGMENTS:
        raise DataLoss(
            f"mapping a shard: {slab_bytes} bytes in {len(segment_bytes)} segments is more "
            "than any machine can map; update the daemon and this client",
            "INVALID_REPLY",
        )
    if sum(segment_bytes) != slab_bytes or any(size <= 0 for size in segment_bytes):
        raise DataLoss(
            f"mapping a shard: segments of {sum(segment_bytes)} bytes are announced for a "
            f"slab of {slab_bytes}; update the daemon and this client",
            "INVALID_REPLY",
        )
    if any(size % _PAGE for size in segment_bytes[:-1]):
        raise DataLoss(
            "mapping a shard: a segment inside the slab is no whole number of pages, so the "
            "next cannot follow it; update the daemon and this client",
            "INVALID_REPLY",
        )


class Mapping:
    """Address range of one slab, `mode` one of shared, private, exclusive.

    Call `add` for each segment in order, then `complete`. One thread builds it. Afterwards it
    only holds facts.
    """

    device = None  # host memory; a DeviceMemory has a UUID here
    needs_lease = False
    copying = False
    copied_bytes = 0

    def __init__(self, segment_bytes: List[int], mode: str):
        check_segments(segment_bytes, sum(segment_bytes))
        self.mode = mode
        self.nbytes = sum(segment_bytes)
        self.writable = mode != "shared"
        self.address = 0
        self._segments = list(segment_bytes)
        self._next = 0
        self._offset = 0
        if self.nbytes:
            self._reserve()

    def _reserve(self) -> None:
        reserved = _round_up(self.nbytes, _PAGE) + _ALIGNMENT
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        base = _libc.mmap(None, reserved, _PROT_NONE, flags, -1, 0)
        if base is None or base == _MAP_FAILED:
            raise _failed(f"reserving {reserved} bytes of address space")
        self.address = _round_up(base, _ALIGNMENT)
        finalizer = weakref.finalize(self, _libc.munmap, base, reserved)
        # At exit other libraries may still touch tensors; the kernel unmaps then.
        finalizer.atexit = False

    def add(self, fd: int) -> None:
        """Maps the next segment from `fd`, which stays the caller's."""
        if self._next >= len(self._segments):
            raise DataLoss(
                "mapping a shard: more descriptors arrived than segments were announced",
                "INVALID_REPLY",
            )
        size = self._segments[self._next]
        actual = os.fstat(fd).st_size
        if actual < size:
            # Touching pages beyond a file's end is SIGBUS.
            raise DataLoss(
                f"mapping a shard: segment {self._next} has {actual} bytes, {size} were "
                "announced; acquire the shard again",
                "INVALID_REPLY",
            )
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
        sharing = mmap.MAP_PRIVATE if self.mode == "private" else mmap.MAP_SHARED
        at = self.address + self._offset
        if _libc.mmap(at, size, protection, sharing | _MAP_FIXED, fd, 0) == _MAP_FAILED:
            raise _failed(f"mapping segment {self._next} of {size} bytes")
        self._next += 1
        self._offset += size

    def complete(self, populate: bool = True):
        """Checks that all segments came, fills the page tables, returns the memory.

        The memory is a ctypes array whose `owner` is this mapping; hold the array,
        or anything made from its buffer, and the memory stays.
        """
        if self._next != len(self._segments):
            raise DataLoss(
                f"mapping a shard: {self._next} of {len(self._segments)} segments arrived",
                "INVALID_REPLY",
            )
        if not self.nbytes:
            array = (ctypes.c_char * 0)()
        else:
            array = (ctypes.c_char * self.nbytes).from_address(self.address)
            if populate:
                # One call instead of a page fault per page. It is a hint, so errors are ignored.
                _libc.madvise(self.address, _round_up(self.nbytes, _PAGE), _MADV_POPULATE_READ)
        array.owner = self
        return array

    def hold(self, lease) -> None:
        """Closes `lease` when the memory is unmapped, unless it was closed before."""
        weakref.finalize(self, lease.close).atexit = False


def _failed(doing: str):
    code = ctypes.get_errno()
    text = f"mapping a shard: {doing}: {os.strerror(code)}"
    if code == 12:
        return ResourceExhausted(text + "; raise ulimit -v or vm.max_map_count", "NO_MEMORY")
    return Internal(text, "MAPPING_FAILED")
