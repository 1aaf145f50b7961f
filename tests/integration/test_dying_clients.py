"""Trainers that die or stand still in each step of attaching, and that outlive the daemons."""

import contextlib
import os
import signal
import time

import ckptd
import grpc
import pytest
from ckptd import _fds, _proto, _rpc
from faults import (
    MARK,
    Loading,
    Program,
    assert_loads,
    assert_no_more_than,
    assert_nothing_is_left,
    client_environment,
    content,
    fd_socket_of,
    footprint,
    footprints,
    load_everywhere,
    sparse,
    stopped,
    ticket,
)
from group import PATIENCE, Group, wait_until
from holds import HEARTBEATS, LIMIT, Hold, assert_heals
from tiers import Tier, both

HEARD = 4.5  # seconds; a connection that shows no token is heard for 5
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
client = ckptd.connect(address)
shard = client.acquire(client.load(path, layout="fsdp:2"), "private")
mark = shard.tensors["mark"]
weights = (ctypes.c_ubyte * mark.nbytes).from_address(mark.pointer)
print("attached", flush=True)
for line in sys.stdin:
    for i in range(len(weights)):
        weights[i] = (weights[i] + 1) % 256
    print(bytes(weights).hex(), flush=True)
shard.close()
client.close()
"""
LOADER = """
import sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    print(client.load(sys.argv[2], layout=sys.argv[3]).state, flush=True)
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
            checkpoint = client.load(path, layout="fsdp:1")
            attach_seconds(client, checkpoint)
            yield group, client, checkpoint
    tier.assert_clean()


@pytest.mark.parametrize("step", STEPS)
def test_a_client_killed_while_it_attaches_leaves_no_lease_of_its_own(one, record_property, step):
    group, client, checkpoint = one
    before = [footprint(group.info())]
    reply = ticket(client, checkpoint)
    with Program(ATTACHER, fd_socket_of(reply), reply.token, step) as attacher:
        assert attacher.hear() == step
        attacher.process.kill()
        attacher.process.wait()
        waited = attach_seconds(client, checkpoint)
        assert waited < HEARD
        record_property(
            "fault", (f"attach: {step}", "client", "killed", "(others) attached", waited)
        )

    def connected():
        return [lease for lease in group.json("leases")["leases"] if lease["connected"]]

    wait_until(lambda: connected() == [], "its lease to end")
    # A token that was not shown is good for a while; released, it leaves nothing either.
    group_release(client, reply.lease)
    wait_until(lambda: group.json("leases")["leases"] == [], "the last lease to end")
    assert_no_more_than(before, group)


def group_release(client, lease):
    try:
        client._connection.call(
            "ReleaseShard",
            _proto.message("ReleaseShardRequest")(lease=lease),
            "releasing",
            _rpc.Deadline(PATIENCE),
        )
    except ckptd.FailedPrecondition as error:
        assert error.reason == "LEASED"  # by its connection, with which it ends


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_stands_still_while_it_attaches_delays_nobody(one, record_property, step):
    group, client, checkpoint = one
    before = [footprint(group.info())]
    reply = ticket(client, checkpoint)
    with Program(ATTACHER, fd_socket_of(reply), reply.token, step) as attacher:
        assert attacher.hear() == step
        with stopped(attacher.pid):
            waited = max(attach_seconds(client, checkpoint) for _ in range(5))
            assert waited < HEARD
            record_property(
                "fault", (f"attach: {step}", "client", "stopped", "(others) attached", waited)
            )
    group_release(client, reply.lease)
    wait_until(lambda: group.json("leases")["leases"] == [], "its lease to end with it")
    assert_no_more_than(before, group)


def test_a_daemon_that_stands_still_before_it_hands_memory_over_is_given_up(
    one, monkeypatch, record_property
):
    group, client, checkpoint = one
    before = [footprint(group.info())]
    reply = ticket(client, checkpoint)
    assert _fds.GONE_SECONDS < 10
    monkeypatch.setattr(_fds, "GONE_SECONDS", 1)
    with stopped(group.pid(0)):
        since = time.monotonic()
        with pytest.raises(ckptd.Unavailable, match="has not answered") as caught:
            _fds.receive(fd_socket_of(reply), reply.token, 1, _rpc.Deadline(30), os.fstat)
        waited = time.monotonic() - since
    assert waited < 20
    row = ("attach: asked", "its daemon", "stopped", caught.value.reason, waited)
    record_property("fault", row)
    group_release(client, reply.lease)
    wait_until(lambda: group.json("leases")["leases"] == [], "the lease to end")
    attach_seconds(client, checkpoint)
    assert_no_more_than(before, group)


@both
def test_what_a_stopped_client_maps_is_neither_counted_on_nor_used_again(start, tmp_path):
    group = start(1)
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    before = footprints(group, path)
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout="fsdp:1")
        reply = ticket(client, checkpoint)
        with Program(ATTACHER, fd_socket_of(reply), reply.token, "mapped") as attacher:
            assert attacher.hear() == "mapped"
            with stopped(attacher.pid):
                assert group.error("unload", checkpoint.name)["reason"] == "LEASED"
                group.json("unload", checkpoint.name, "--force")
                client.load(sparse(tmp_path / "n.safetensors", 3 << 20), layout="fsdp:1")
    assert_heals(group, path, before)


@pytest.fixture
def alone(start, tmp_path):
    """alone(ranks) -> (group, what it held before, a Hold, the one program that asked for it)."""
    with contextlib.ExitStack() as stack:

        def make(ranks):
            group, programs = start(ranks), []
            before = footprints(group, sparse(tmp_path / "warm.safetensors", 1 << 20))

            def begin(_, path):
                environment = client_environment()
                program = Program(
                    LOADER, group.address(ranks - 1), path, f"fsdp:{ranks}", environment=environment
                )
                programs.append(stack.enter_context(program))
                return []

            held = stack.enter_context(Hold(group, "TRANSFERRING", tmp_path, begin=begin))
            return group, before, held, programs[-1]

        yield make


def test_a_load_goes_on_for_others_when_the_only_client_that_wanted_it_is_killed(alone, outcome):
    group, before, held, loader = alone(2)
    loader.process.kill()
    loader.process.wait()
    since = time.monotonic()
    held.go_on()
    others = load_everywhere(group, held.path)
    results = outcome("TRANSFERRING", "its client", "killed", others, since)
    assert [result.state for result in results] == ["ACTIVE"] * 2
    assert_heals(group, held.path, before)


def test_a_client_that_stands_still_while_it_loads_delays_no_other_rank(alone, outcome):
    group, before, held, loader = alone(2)
    with stopped(loader.pid):
        since = time.monotonic()
        held.go_on()
        others = [Loading(group, 0, held.path, "fsdp:2")]
        (result,) = outcome("TRANSFERRING", "its client", "stopped", others, since)
        assert result.state == "ACTIVE"
    assert loader.hear() == "ACTIVE"
    assert loader.finish() == 0
    assert_heals(group, held.path, before)


@pytest.fixture
def training(start, memory, tmp_path):
    """training() -> (group of two, what it held before, path, a trainer of each rank)."""
    with contextlib.ExitStack() as stack:

        def make():
            group = start(2, *HEARTBEATS)
            path = sparse(tmp_path / "m.safetensors", 3 << 20)
            before = footprints(group, path)
            trainers = [
                Program(TRAINER, r, group.address(r), path, environment=memory.client_environment)
                for r in range(2)
            ]
            for trainer in map(stack.enter_context, trainers):
                assert trainer.hear() == "attached"
            return group, before, path, trainers

        yield make


def after_steps(trainers, step):
    """Each trainer does its step number `step`; fails unless each has added as often to its own."""
    weights = b"".join(bytes.fromhex(trainer.ask("step")) for trainer in trainers)
    assert weights == bytes((byte + step) % 256 for byte in MARK)


@both
def test_trainers_go_on_training_when_every_daemon_dies(training, record_property):
    group, before, path, trainers = training()
    for pid in [group.pid(rank) for rank in range(2)]:
        os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    for step in range(1, 4):
        after_steps(trainers, step)
    record_property(
        "fault", ("training", "all daemons", "killed", "went on training", time.monotonic() - since)
    )
    group.wait_ready()
    # What the new daemons read is pristine, what the trainers hold is theirs.
    assert_loads(group, path)
    after_steps(trainers, 4)
    assert [trainer.finish() for trainer in trainers] == [0, 0]
    assert_heals(group, path, before)


@both
def test_trainers_go_on_training_and_end_while_every_daemon_stands_still(training, record_property):
    group, before, path, trainers = training()
    with contextlib.ExitStack() as still:
        for pid in [group.pid(rank) for rank in range(2)]:
            still.enter_context(stopped(pid))
        since = time.monotonic()
        for step in range(1, 4):
            after_steps(trainers, step)
        assert [trainer.finish() for trainer in trainers] == [0, 0]
        waited = time.monotonic() - since
    record_property("fault", ("training", "all daemons", "stopped", "went on training", waited))
    assert waited < LIMIT
    for rank in range(2):
        wait_until(lambda: not group.json("leases", rank=rank)["leases"], "their leases to end")
    assert_heals(group, path, before)


def test_a_shard_that_is_unloaded_the_moment_it_is_there_can_be_loaded_again(start, tmp_path):
    """The other ranks may still be publishing theirs."""
    group = start(3)
    path = sparse(tmp_path / "m.safetensors", 1 << 20)
    admin = f"unix:{group.run_dir}/{group.job}/rank-1.admin.sock"
    with ckptd.connect(group.address(1)) as client, grpc.insecure_channel(admin) as channel:
        unload = channel.unary_unary("/ckptd.v1.AdminService/UnloadCheckpoint")
        for _ in range(50):
            checkpoint = client.load(path, layout="fsdp:3", timeout=PATIENCE)
            request = _proto.message("UnloadCheckpointRequest")(name=checkpoint.name)
            unload(request.SerializeToString(), timeout=PATIENCE)
        client.load(path, layout="fsdp:3", timeout=PATIENCE)
    assert_nothing_is_left(group)
