"""Trainers that die or stand still in each step of attaching, and that outlive the daemons."""

import os
import signal
import time

import ckptd
import grpc
import pytest
from ckptd import _proto, _rpc
from faults import (
    MARK,
    Program,
    assert_loads,
    assert_nothing_is_left,
    client_environment,
    content,
    fd_socket_of,
    held_at,
    resources,
    sparse,
    stopped,
    ticket,
)
from group import Group, wait_until
from tiers import Tier, both

STEPS = ["token", "connected", "half a token", "asked", "received", "mapped"]
# Attaches by hand up to one step, says so, and waits there for its end.
ATTACHER = """
import array, mmap, os, socket, sys
path, token, last = sys.argv[1:]
def at(step):
    if step == last:
        print(step, flush=True)
        sys.stdin.read()
stream = socket.socket(socket.AF_UNIX)
at("token")
stream.connect(path)
at("connected")
stream.sendall(token[:16].encode())
at("half a token")
stream.sendall(token[16:].encode())
at("asked")
_, ancillary, *_ = stream.recvmsg(16, socket.CMSG_SPACE(128 * 4))
fds = array.array("i")
for _, _, payload in ancillary:
    fds.frombytes(payload)
at("received")
maps = [mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ) for fd in fds]
at("mapped")
"""
# Trains: each line it reads is one step, an addition in place to memory that the daemon lent it.
TRAINER = """
import ctypes, sys, ckptd
rank, address, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with ckptd.connect(address) as client:
    shard = client.acquire(client.load(path, layout="fsdp:2"), "private")
mark = shard.tensors["mark"]
weights = (ctypes.c_ubyte * mark.nbytes).from_address(mark.pointer)
print("attached", flush=True)
for line in sys.stdin:
    for i in range(len(weights)):
        weights[i] = (weights[i] + 1) % 256
    print(bytes(weights).hex(), flush=True)
"""
LOADER = """
import sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    print("loading", flush=True)
    client.load(sys.argv[2], layout="fsdp:1")
"""


def attach_seconds(client, checkpoint):
    began = time.monotonic()
    with client.acquire(checkpoint) as shard:
        assert content(shard.tensors["mark"]) == MARK
    return time.monotonic() - began


@pytest.fixture(scope="module", params=["host", "cuda"])
def one(request, tmp_path_factory):
    """(group of one, client, checkpoint of two segments), for tests that leave it as it was."""
    tier = Tier(request.getfixturevalue("fake_gpus") if request.param == "cuda" else None)
    folder, environment = tmp_path_factory.mktemp("o"), tier.environment
    with Group(folder, 1, *tier.options, environment=environment) as group:
        path = sparse(tmp_path_factory.mktemp("f") / "m.safetensors", 3 << 20)
        with ckptd.connect(group.address(0)) as client:
            yield group, client, client.load(path, layout="fsdp:1")
    tier.assert_clean()


@pytest.mark.parametrize("step", STEPS)
def test_a_client_killed_while_it_attaches_leaves_no_lease_of_its_own(one, record_property, step):
    group, client, checkpoint = one
    before = resources(group.pid(0))
    reply = ticket(client, checkpoint)
    with Program(ATTACHER, fd_socket_of(reply), reply.token, step) as attacher:
        assert attacher.hear() == step
        attacher.process.kill()
        attacher.process.wait()
        waited = attach_seconds(client, checkpoint)
        assert waited < 2
        record_property(
            "fault", (f"attach: {step}", "client", "killed", "(others) attached", waited)
        )

    def connected():
        return [lease for lease in group.json("leases")["leases"] if lease["connected"]]

    wait_until(lambda: connected() == [], "its lease to end", 5)
    # A token that was not shown is good for a while; released, it leaves nothing either.
    group_release(client, reply.lease)
    wait_until(
        lambda: resources(group.pid(0))["fds"] <= before["fds"], "its descriptors to be closed", 10
    )
    assert group.json("leases")["leases"] == []


def group_release(client, lease):
    try:
        client._connection.call(
            "ReleaseShard",
            _proto.message("ReleaseShardRequest")(lease=lease),
            "releasing",
            _rpc.Deadline(5),
        )
    except ckptd.NotFound:
        return  # it had ended with its connection


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_stands_still_while_it_attaches_delays_nobody(one, record_property, step):
    group, client, checkpoint = one
    reply = ticket(client, checkpoint)
    with Program(ATTACHER, fd_socket_of(reply), reply.token, step) as attacher:
        assert attacher.hear() == step
        with stopped(attacher.pid):
            waited = max(attach_seconds(client, checkpoint) for _ in range(5))
            assert waited < 2
            record_property(
                "fault", (f"attach: {step}", "client", "stopped", "(others) attached", waited)
            )
    group_release(client, reply.lease)
    wait_until(lambda: group.json("leases")["leases"] == [], "its lease to end with it", 5)


@both
def test_what_a_stopped_client_maps_is_neither_counted_on_nor_used_again(start, tmp_path):
    group = start(1)
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")
        reply = ticket(client, checkpoint)
        with Program(ATTACHER, fd_socket_of(reply), reply.token, "mapped") as attacher:
            assert attacher.hear() == "mapped"
            with stopped(attacher.pid):
                assert group.error("unload", checkpoint.name)["reason"] == "LEASED"
                group.json("unload", checkpoint.name, "--force")
                client.load(sparse(tmp_path / "n.safetensors", 3 << 20), layout="fsdp:1")
    assert_nothing_is_left(group)


def test_a_client_killed_while_it_loads_leaves_the_load_to_the_others(
    start, tmp_path, record_property
):
    group = start(1)
    with held_at(group, "TRANSFERRING", tmp_path) as (path, loads, _):
        # Its request waits in the socket of the daemon, which stands still.
        with Program(LOADER, group.address(0), path, environment=client_environment()) as loader:
            assert loader.hear() == "loading"
        since = time.monotonic()
    result = loads[0].outcome(10)
    record_property(
        "fault", ("TRANSFERRING", "client", "killed", result.state, loads[0].ended - since)
    )
    assert result.state == "ACTIVE"
    assert_nothing_is_left(group)


@both
def test_trainers_go_on_training_when_every_daemon_dies(start, memory, tmp_path, record_property):
    group = start(2, "--heartbeat-interval", "0.25", "--heartbeat-timeout", "1.5")
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    trainers = [
        Program(TRAINER, rank, group.address(rank), path, environment=memory.client_environment)
        for rank in range(2)
    ]
    with trainers[0], trainers[1]:
        for trainer in trainers:
            assert trainer.hear() == "attached"
        for pid in [group.pid(rank) for rank in range(2)]:
            os.kill(pid, signal.SIGKILL)
        since = time.monotonic()
        for step in range(1, 4):
            after = b"".join(bytes.fromhex(trainer.ask("step")) for trainer in trainers)
            assert after == bytes((byte + step) % 256 for byte in MARK)
        record_property(
            "fault",
            ("training", "all daemons", "killed", "went on training", time.monotonic() - since),
        )
        group.wait_ready()
        assert_loads(group, path)
        # What the new daemons read is pristine, what the trainers hold is theirs.
        after = b"".join(bytes.fromhex(trainer.ask("step")) for trainer in trainers)
        assert after == bytes((byte + 4) % 256 for byte in MARK)
    assert_nothing_is_left(group)


def flat(measure, cycle, warm_up, count):
    """What `measure` gives after `warm_up` cycles and after `count` more."""
    for _ in range(warm_up):
        cycle()
    before = measure()
    for _ in range(count):
        cycle()
    return before, measure()


@both
def test_a_thousand_attachments_leave_everything_flat(start, tmp_path):
    group = start(1)
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    pid = group.pid(0)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")

        def cycle():
            with client.acquire(checkpoint):
                pass

        def measure():
            wait_until(lambda: group.json("leases")["leases"] == [], "all leases to end", 5)
            return {**resources(pid), **group.info()["memory"]}

        before, after = flat(measure, cycle, 50, 1000)
    assert_flat(before, after)


def assert_flat(before, after):
    for key in ("used_bytes", "arena_bytes", "lingering_bytes", "memfds"):
        assert int(after[key]) == int(before[key]), (key, before, after)
    # gRPC keeps a few sockets and threads in reserve.
    assert after["fds"] <= before["fds"] + 4 and after["threads"] <= before["threads"] + 4, (
        before,
        after,
    )


@both
def test_loads_and_unloads_in_a_row_leave_everything_flat(start, memory, tmp_path):
    group = start(2)
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    pids = [group.pid(rank) for rank in range(2)]
    clients = [ckptd.connect(group.address(rank)) for rank in range(2)]

    def cycle():
        checkpoints = [client.load(path, layout="fsdp:2") for client in clients]
        for client, checkpoint in zip(clients, checkpoints):
            with client.acquire(checkpoint):
                pass
        for rank in range(2):
            wait_until(
                lambda: group.json("leases", rank=rank)["leases"] == [], "the lease to end", 5
            )
            group.json("unload", checkpoints[rank].name, rank=rank)

    def measure():
        sums = {}
        for rank in range(2):
            for key, value in {**resources(pids[rank]), **group.info(rank)["memory"]}.items():
                sums[key] = sums.get(key, 0) + (int(value) if key.endswith(("bytes", "s")) else 0)
        return sums

    before, after = flat(measure, cycle, 10, 100 if memory.name == "host" else 30)
    for client in clients:
        client.close()
    assert_flat(before, after)
    assert int(after["used_bytes"]) == 0


def test_a_shard_that_is_unloaded_the_moment_it_is_there_can_be_loaded_again(start, tmp_path):
    """The other ranks may still be publishing theirs."""
    group = start(3)
    path = sparse(tmp_path / "m.safetensors", 1 << 20)
    admin = f"unix:{group.run_dir}/{group.job}/rank-1.admin.sock"
    with ckptd.connect(group.address(1)) as client, grpc.insecure_channel(admin) as channel:
        unload = channel.unary_unary("/ckptd.v1.AdminService/UnloadCheckpoint")
        for _ in range(50):
            checkpoint = client.load(path, layout="fsdp:3", timeout=10)
            request = _proto.message("UnloadCheckpointRequest")(name=checkpoint.name)
            unload(request.SerializeToString(), timeout=10)
        client.load(path, layout="fsdp:3", timeout=10)
    assert_nothing_is_left(group)
