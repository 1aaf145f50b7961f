"""The fd socket: tokens work once, strangers get nothing, nobody makes others wait."""

import socket
import struct
import time

import ckptd
import pytest
import torch
from faults import content
from group import PATIENCE, save, wait_until
from tiers import both

pytestmark = both


@pytest.fixture
def loaded(start, tmp_path):
    """(group, client, checkpoint, path of the fd socket)."""
    group = start(1)
    path = save(tmp_path / "m.safetensors", {"w": torch.arange(64.0)})
    with ckptd.connect(group.address(0)) as client:
        yield group, client, client.load(path, layout="fsdp:1"), str(group.run_dir / group.job / "rank-0.fd.sock")


def connect(path):
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(PATIENCE)
    stream.connect(path)
    return stream


def read_exactly(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            break
        data += more
    return data


def assert_works(client, checkpoint):
    began = time.monotonic()
    with client.acquire(checkpoint) as shard:
        assert content(shard.tensors["w"]) == torch.arange(64.0).numpy().tobytes()
    assert time.monotonic() - began < 4.5, "a connection that shows no token is heard for 5 s"


def test_an_unknown_token_gets_a_sentence_and_no_descriptor(loaded):
    _, client, checkpoint, path = loaded
    with connect(path) as stream:
        stream.sendall(b"0" * 32)
        magic, status, here, to_come = struct.unpack("<4sIII", read_exactly(stream, 16))
        assert (magic, here, to_come) == (b"CKP1", 0, 0)
        assert status == 16  # UNAUTHENTICATED
        length = struct.unpack("<I", read_exactly(stream, 4))[0]
        assert "token" in read_exactly(stream, length).decode()
        assert stream.recv(1) == b""
    assert_works(client, checkpoint)


def test_garbage_and_half_a_token_hurt_nobody(loaded):
    _, client, checkpoint, path = loaded
    with connect(path) as noise, connect(path) as half:
        noise.sendall(bytes(range(256)) * 64)
        half.sendall(b"abc")
        assert_works(client, checkpoint)


def test_a_client_attaches_in_its_usual_time_beside_two_hundred_mute_connections(loaded):
    _, client, checkpoint, path = loaded
    mute = [connect(path) for _ in range(200)]
    try:
        for _ in range(5):
            assert_works(client, checkpoint)
    finally:
        for stream in mute:
            stream.close()


def test_a_mute_connection_is_closed_after_its_patience(loaded):
    *_, path = loaded
    with connect(path) as stream:
        assert stream.recv(1) == b""


def test_leases_that_nobody_fetches_do_not_block_an_unload_for_ever(loaded):
    group, client, checkpoint, _ = loaded
    with client.acquire(checkpoint):
        assert group.error("unload", checkpoint.name)["reason"] == "LEASED"
    wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
    group.json("unload", checkpoint.name)
