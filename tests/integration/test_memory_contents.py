"""Whose bytes a client can see: never another checkpoint's, and never another client's."""

import json
import mmap
import os
import select

import ckptd
import pytest
from ckptd import _proto, _rpc
from faults import (
    Program,
    assert_nothing_is_left,
    content,
    fd_socket_of,
    reply_header,
    ticket,
)
from group import wait_until
from noise import knock
from tiers import both

pytestmark = both

MIB = 1 << 20


def load(client, path, **options):
    return client.load(path, layout="replicate:1", **options)


def whole_segments(client, checkpoint):
    """All bytes of all memory that the daemon hands out for that shard, also those past its end."""
    return handed_out(client, checkpoint)[0]


def handed_out(client, checkpoint):
    """(its bytes, the inodes of what it is)"""
    reply = ticket(client, checkpoint)
    with knock(fd_socket_of(reply)) as stream:
        stream.sendall(reply.token.encode())
        status, fds, to_come = reply_header(stream)
        assert status == 0 and to_come == 0
        contents, inodes = [], {os.fstat(fd).st_ino for fd in fds}
        for fd in fds:
            with mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ) as segment:
                contents.append(segment[:])
            os.close(fd)
        return b"".join(contents), inodes


def filled(path, byte, size):
    """A safetensors file of one tensor "w" of `size` equal bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([byte]) * size)
    return str(path)


def test_no_byte_of_one_checkpoint_shows_past_the_end_of_the_next(start, memory, tmp_path):
    group = start(1, "--memory-budget", "4MiB")  # no room for both
    with ckptd.connect(group.address(0)) as client:
        first = load(client, filled(tmp_path / "a.safetensors", 0xAA, 3 * MIB))
        seen, before = handed_out(client, first)
        assert seen.count(0xAA) == 3 * MIB
        group.unload(first.name)
        second = load(client, filled(tmp_path / "b.safetensors", 0xBB, MIB + 7))
        seen, after = handed_out(client, second)
        if memory.name == "host":  # a driver's fresh memory is no cleaner
            assert after <= before, "it is the same memory"
        assert set(seen) == {0, 0xBB} and seen.count(0xBB) == MIB + 7


# Keeps its mapping, without a lease, and tells what it sees each time it is asked.
KEEPER = """
import ctypes, sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    shard = client.acquire(client.load(sys.argv[2], layout="replicate:1"))
w = shard.tensors["w"]
shard.close()
print("kept", flush=True)
for line in sys.stdin:
    print(sorted(set(ctypes.string_at(w.pointer, w.nbytes))), flush=True)
"""


def test_a_client_that_dropped_its_lease_but_keeps_its_mapping_never_sees_other_bytes(
    start, memory, tmp_path
):
    group = start(1, "--memory-budget", "16MiB")
    path = filled(tmp_path / "kept.safetensors", 0xAA, 3 * MIB)
    with ckptd.connect(group.address(0)) as client:
        with Program(KEEPER, group.address(0), path, environment=memory.client_environment) as keeper:
            assert keeper.hear() == "kept"
            wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
            for i in range(6):
                # More than the budget in all: what can be used again is.
                client.acquire(load(client, filled(tmp_path / f"{i}.safetensors", i + 1, 5 * MIB))).close()
                assert keeper.ask("look") == str([0xAA])
                assert group.ctl("get", client.list()[0].name).returncode == 0
        assert attaches_filled(
            client, load(client, filled(tmp_path / "last.safetensors", 9, 5 * MIB)), 9
        )
    assert_nothing_is_left(group)


def attaches_filled(client, checkpoint, byte):
    with client.acquire(checkpoint) as shard:
        return set(content(shard.tensors["w"])) == {byte}


# Takes the memory itself, writes to it, says so, and waits for its end.
TAKER = """
import ctypes, sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    taken = client.load(sys.argv[2], layout="replicate:1", mode="exclusive")
    shard = client.acquire(taken, "exclusive")
w = shard.tensors["w"]
ctypes.memset(w.pointer, 0xEE, w.nbytes)
print("dirty", flush=True)
sys.stdin.read()
"""


def test_memory_that_a_killed_exclusive_client_wrote_to_is_never_served_again(
    start, memory, tmp_path
):
    group = start(1, "--memory-budget", "16MiB")
    path = filled(tmp_path / "w.safetensors", 0xAA, 3 * MIB)
    with ckptd.connect(group.address(0)) as client:
        for _ in range(4 if memory.name == "host" else 2):
            with Program(TAKER, group.address(0), path, environment=memory.client_environment) as taker:
                assert taker.hear() == "dirty"
                # The daemon notes it once it has handed the memory over.
                wait_until(lambda: client.list()[0].state == "TAKEN", "the checkpoint to be taken")
                taken = client.list()[0]
            wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
            with pytest.raises(ckptd.Error) as caught:
                client.acquire(taken)
            assert caught.value.reason == "TAKEN"
            again = load(client, path)
            assert again.name != taken.name and attaches_filled(client, again, 0xAA)
            assert set(whole_segments(client, again)) == {0, 0xAA}
            group.unload(again.name)
    assert_nothing_is_left(group)


def test_memory_whose_exclusive_handover_broke_is_not_served_again(start, tmp_path):
    """The client died with the descriptors on their way: it may have had them."""
    group = start(1)
    path = filled(tmp_path / "w.safetensors", 0xAA, 3 * MIB)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = load(client, path, mode="exclusive")
        reply = ticket(client, checkpoint, "exclusive")
        with knock(fd_socket_of(reply)) as stream:
            stream.sendall(reply.token.encode())
            assert select.select([stream], [], [], 60)[0], "nothing was sent"
        wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
        assert client.get(checkpoint).state == "TAKEN"
        assert attaches_filled(client, load(client, path), 0xAA)
    assert_nothing_is_left(group)


def test_an_exclusive_lease_that_was_never_fetched_leaves_the_memory_to_others(start, tmp_path):
    group = start(1)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = load(
            client, filled(tmp_path / "w.safetensors", 0xAA, 3 * MIB), mode="exclusive"
        )
        reply = ticket(client, checkpoint, "exclusive")
        with pytest.raises(ckptd.Error) as caught:
            client.acquire(checkpoint)
        assert caught.value.reason == "LEASED"
        client._connection.call(
            "ReleaseShard",
            _proto.message("ReleaseShardRequest")(lease=reply.lease),
            "releasing",
            _rpc.Deadline(60),
        )
        assert attaches_filled(client, checkpoint, 0xAA)
