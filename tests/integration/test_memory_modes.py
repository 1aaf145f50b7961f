"""Attach modes, leases, eviction: whose memory it is, and for how long."""

import ctypes
import os

import ckptd
import pytest
import torch
from group import save, wait_until


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "m.safetensors", {"w": torch.arange(4096.0)})


def words(shard):
    return memoryview(shard.tensors["w"].buffer).cast("B").cast("f")


def test_shared_readers_map_one_memory_that_none_can_write(start, path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")
        with client.acquire(checkpoint) as one, client.acquire(checkpoint) as two:
            assert list(words(one)[:3]) == list(words(two)[:3]) == [0, 1, 2]
            assert memoryview(one.tensors["w"].buffer).readonly
            assert group.json("list")["checkpoints"][0]["lease_count"] == 2


def test_a_private_client_writes_for_itself_alone(start, path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")
        with client.acquire(checkpoint, "private") as mine, client.acquire(checkpoint) as other:
            words(mine)[0] = 99.0
            assert words(mine)[0] == 99.0 and words(other)[0] == 0.0
        assert not client.verify(checkpoint).mismatched


def test_an_exclusive_client_takes_the_memory_and_the_next_load_reads_again(start, path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1", mode="exclusive")
        with client.acquire(checkpoint, "exclusive") as shard:
            words(shard)[0] = 5.0
            # The daemon notes it once it has handed the memory over.
            wait_until(lambda: client.get(checkpoint).state == "TAKEN", "the checkpoint to be taken")
            with pytest.raises(ckptd.Error) as caught:
                client.acquire(checkpoint)
            assert caught.value.reason == "TAKEN"
            again = client.load(path, layout="fsdp:1", mode="exclusive")
            assert not again.resident
            with client.acquire(again) as pristine:
                assert words(pristine)[0] == 0.0 and words(shard)[0] == 5.0
                # The first lease ends: the second one's count is not touched.
                shard.close()
                wait_until(lambda: len(group.json("leases")["leases"]) == 1, "the first lease to end")
                assert group.json("get", again.name)["lease_count"] == 1


def test_exclusive_on_memory_that_readers_had_says_that_it_needs_a_copy(start, path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")
        with pytest.raises(ckptd.Error) as caught:
            client.acquire(checkpoint, "exclusive")
        assert caught.value.reason == "EXCLUSIVE_NEEDS_COPY"


def test_the_least_recently_used_unleased_unpinned_checkpoint_is_evicted(start, tmp_path):
    group = start(1, "--memory-budget", "16MiB")
    paths = [save(tmp_path / f"{i}.safetensors", {"w": torch.full((1 << 20,), float(i))}) for i in range(4)]
    with ckptd.connect(group.address(0)) as client:
        pinned = client.load(paths[0], layout="fsdp:1")
        group.json("pin", pinned.name)
        leased = client.load(paths[1], layout="fsdp:1")
        with client.acquire(leased) as shard:
            idle = client.load(paths[2], layout="fsdp:1")

            def use(one):
                client.acquire(one).close()  # until then it would be kept for this client
                wait_until(lambda: len(group.json("leases")["leases"]) == 1, "its lease to end")

            for one in (idle, client.load(paths[3], layout="fsdp:1")):
                use(one)
            left = {c["name"] for c in group.json("list")["checkpoints"]}
            assert pinned.name in left and leased.name in left
            more = [save(tmp_path / f"more-{i}.safetensors", {"w": torch.zeros(1 << 20)}) for i in range(2)]
            for one in more:
                use(client.load(one, layout="fsdp:1"))
            left = {c["name"] for c in group.json("list")["checkpoints"]}
            assert idle.name not in left and pinned.name in left and leased.name in left
            assert words(shard)[0] == 1.0


def test_a_leased_checkpoint_is_not_unloaded_unless_forced_and_clients_keep_their_memory(start, path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")
        with client.acquire(checkpoint) as shard:
            assert group.error("unload", checkpoint.name)["reason"] == "LEASED"
            group.json("unload", checkpoint.name, "--force")
            # Another load may not touch what this client still maps.
            client.load(path, layout="replicate:1")
            assert list(words(shard)[:4]) == [0, 1, 2, 3]


def inode_at(address):
    """Of the memory that this process has mapped there."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return int(line.split()[4])
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_no_byte_of_one_checkpoint_shows_in_the_padding_of_the_next(start, tmp_path):
    group = start(1, "--memory-budget", "2MiB")  # one segment
    ones = save(tmp_path / "ones.safetensors", {"w": torch.full((1 << 18,), -1, dtype=torch.int32)})
    tiny = save(tmp_path / "tiny.safetensors", {"a": torch.zeros(1, dtype=torch.uint8),
                                                "b": torch.zeros(3, dtype=torch.uint8)})
    with ckptd.connect(group.address(0)) as client:
        first = client.load(ones, layout="fsdp:1")
        with client.acquire(first) as shard:
            memory = inode_at(shard.tensors["w"].pointer)
        del shard  # what is mapped is not used again
        group.unload(first.name)
        with client.acquire(client.load(tiny, layout="fsdp:1")) as shard:
            first, last = shard.tensors["a"], shard.tensors["b"]
            assert inode_at(first.pointer) == memory, "it is the same memory"
            slab = ctypes.string_at(first.pointer, last.pointer - first.pointer + 512)
            assert slab == bytes(len(slab))


def test_attach_and_release_leave_descriptors_and_leases_flat(start, path):
    group = start(1)
    pid = group.pid(0)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")

        def cycle(count):
            for _ in range(count):
                with client.acquire(checkpoint):
                    pass

        def descriptors():
            return len(os.listdir(f"/proc/{pid}/fd"))

        cycle(20)
        before = descriptors()
        cycle(200)
        wait_until(lambda: descriptors() <= before + 2, "no more descriptors than before")
    wait_until(lambda: group.json("leases")["leases"] == [], "all leases to end")
