"""What this machine can do at best: reading the same files without any loader.

    python floors.py warm|cold FILE ...   prints seconds
"""

import concurrent.futures
import ctypes
import mmap
import os
import sys
import time

BLOCK = 16 << 20
DIRECT_BLOCK = 4 << 20
DIRECT_DEPTH = 4
HUGE_PAGE = 2 << 20


def blocks_of(paths, block):
    return [
        (path, offset, min(block, os.path.getsize(path) - offset))
        for path in paths
        for offset in range(0, os.path.getsize(path), block)
    ]


def timed(threads, work, items):
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0), range(threads)))  # threads exist beforehand
        start = time.monotonic()
        list(pool.map(work, items))
        return time.monotonic() - start


def touch_files(paths):
    """Reads them, so that the page cache holds them."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(BLOCK):
                pass


def warm(paths):
    """pread into faulted shared memory, with as many threads as cores."""
    total = sum(os.path.getsize(path) for path in paths)
    fd = os.memfd_create("floor")
    os.ftruncate(fd, total)
    target = mmap.mmap(fd, total, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    for at in range(0, total, 4096):
        target[at] = 1
    files, starts, at = {}, {}, 0
    for path in paths:
        files[path], starts[path] = os.open(path, os.O_RDONLY), at
        at += os.path.getsize(path)
    view = memoryview(target)
    touch_files(paths)

    def read(item):
        path, offset, size = item
        done = 0
        while done < size:
            begin = starts[path] + offset + done
            done += os.preadv(files[path], [view[begin:begin + size - done]], offset + done)

    return timed(len(os.sched_getaffinity(0)), read, blocks_of(paths, BLOCK))


def huge_buffers(count, nbytes):
    """Memory in huge pages, which storage fills in fewer requests: twice as fast on some machines."""
    pool = mmap.mmap(-1, count * nbytes + HUGE_PAGE, mmap.MAP_PRIVATE)
    pool.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(pool)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(pool)) % HUGE_PAGE
    for at in range(0, len(view), 4096):
        view[at] = 1
    return [view[start + i * nbytes:start + (i + 1) * nbytes] for i in range(count)]


def cold(paths):
    """O_DIRECT reads, several in flight, into buffers that are used again."""
    files = {path: os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths}
    free = huge_buffers(DIRECT_DEPTH, DIRECT_BLOCK)

    def read(item):
        path, offset, size = item
        buffer = free.pop()
        got = os.preadv(files[path], [buffer], offset)
        free.append(buffer)
        if got < size:
            raise OSError(f"{path}: {got} of {size} bytes at {offset}")

    return timed(DIRECT_DEPTH, read, blocks_of(paths, DIRECT_BLOCK))


if __name__ == "__main__":
    print({"warm": warm, "cold": cold}[sys.argv[1]](sys.argv[2:]))
