"""By which way bytes come from storage: chosen by what is cached, forced by a setting, and shown."""

import ctypes
import json
import mmap
import os
import subprocess

import ckptd
import pytest
from group import BINARIES, Daemon, Group, save, wait_until


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """(path, tensors) of 24 MB in tensors of odd sizes."""
    import torch
    generator = torch.Generator().manual_seed(5)
    tensors = {f"w{i}": torch.randn(1001, 1009 + i, generator=generator) for i in range(6)}
    return save(tmp_path_factory.mktemp("s") / "m.safetensors", tensors), tensors


def cached_pages(fd):
    """How many pages of an open file the page cache has; touches none."""
    with mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) as mapping:
        pages = (ctypes.c_ubyte * -(-len(mapping) // mmap.PAGESIZE))()
        begin = ctypes.c_char.from_buffer(mapping)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(begin), ctypes.c_size_t(len(mapping)), pages)
        del begin  # it holds the mapping
        assert failed == 0
        return sum(page & 1 for page in pages)


def drop_from_page_cache(path):
    fd = os.open(path, os.O_RDONLY)

    def dropped():  # the kernel keeps a page while it works on it
        os.fsync(fd)  # only what is on disk can be dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return cached_pages(fd) == 0

    try:
        wait_until(dropped, f"{path} to leave the page cache")
    finally:
        os.close(fd)


def knows_o_direct(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def read(group, large, layout="replicate:1", local=lambda tensor, rank: tensor, **options):
    """(bytes mapped, direct, through buffers) of a load whose bytes are right: local(tensor, rank)."""
    import torch
    path, tensors = large
    for rank in range(group.ranks):
        with ckptd.connect(group.address(rank)) as client:
            if rank == 0:
                checkpoint = client.load(path, layout=layout, **options)
            with client.acquire(checkpoint) as shard:
                for name, tensor in tensors.items():
                    expected = local(tensor, rank).contiguous().view(torch.uint8)
                    assert bytes(shard.tensors[name].buffer) == expected.numpy().tobytes()
            progress = client.get(checkpoint).progress
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    assert progress.storage_bytes == total
    return progress.mapped_bytes, progress.direct_bytes, total - progress.mapped_bytes - progress.direct_bytes


def test_what_is_cached_is_mapped(tmp_path, large):
    with open(large[0], "rb") as file:
        total = len(file.read())
    with Daemon(tmp_path) as group:
        mapped, direct, buffered = read(group, large)
        assert mapped > 0.99 * total and direct == buffered == 0


def test_what_is_not_cached_is_read_past_the_page_cache(tmp_path, large):
    if not knows_o_direct(large[0]):
        pytest.skip(f"the file system of {large[0]} knows no O_DIRECT")
    with Daemon(tmp_path) as group:
        drop_from_page_cache(large[0])
        mapped, direct, buffered = read(group, large)
        assert direct > 0.9 * (mapped + direct + buffered)
        name = group.json("list")["checkpoints"][0]["name"]
        assert int(group.json("get", name)["progress"]["read"]["direct_bytes"]) == direct
        shown = subprocess.run([BINARIES / "ckptctl", "get", name], env=group.environment, capture_output=True,
                               text=True, timeout=60, check=True)
        assert "past the page cache" in shown.stdout, shown.stdout
        drop_from_page_cache(large[0])


COLUMNS = json.dumps({"mesh": {"shape": [2]}, "default": {"placements": ["shard(1)"]}})


def cast(tensor, rank):
    import torch
    return tensor.to(torch.bfloat16)


# What items are longer for than one direct read may be.
@pytest.mark.parametrize("way", ["auto", "direct"])
@pytest.mark.parametrize("layout, local, options", [
    ("replicate:2", cast, {"dtype": "bfloat16"}),
    (COLUMNS, lambda tensor, rank: tensor.chunk(2, 1)[rank], {}),
    (COLUMNS, lambda tensor, rank: cast(tensor.chunk(2, 1)[rank], rank), {"dtype": "bfloat16"}),
], ids=["cast", "columns", "columns cast"])
def test_what_is_cast_or_dealt_out_is_read_past_the_page_cache_too(tmp_path, large, layout, local, options, way):
    if not knows_o_direct(large[0]):
        pytest.skip(f"the file system of {large[0]} knows no O_DIRECT")
    with Group(tmp_path, 2, "--read", way) as group:
        drop_from_page_cache(large[0])
        mapped, direct, buffered = read(group, large, layout, local, **options)
        assert buffered == 0 and direct > 0.9 * (mapped + direct)
        assert way == "auto" or mapped == 0
        drop_from_page_cache(large[0])


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "not cached"])
@pytest.mark.parametrize("way", ["map", "buffer", "direct"])
def test_a_way_can_be_forced_and_brings_the_same_bytes(tmp_path, large, way, cached):
    if way == "direct" and not knows_o_direct(large[0]):
        pytest.skip(f"the file system of {large[0]} knows no O_DIRECT")
    with Daemon(tmp_path, "--read", way) as group:
        if cached:
            with open(large[0], "rb") as file:
                file.read()
        else:
            drop_from_page_cache(large[0])
        by = dict(zip(("map", "direct", "buffer"), read(group, large)))
        assert all((count > 0) == (name == way) for name, count in by.items()), by


def test_a_file_in_memory_is_read_whatever_was_asked_for(tmp_path, large, tmp_path_factory):
    """tmpfs knows no O_DIRECT on older kernels."""
    import shutil
    copy = f"/dev/shm/{tmp_path.name}-{os.getpid()}.safetensors"
    shutil.copy(large[0], copy)
    try:
        with Daemon(tmp_path, "--read", "direct") as group:
            assert sum(read(group, (copy, large[1]))) > 0
    finally:
        os.unlink(copy)
