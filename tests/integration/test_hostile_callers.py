"""Garbage, silence, floods and stolen tokens at every door: well-behaved clients notice nothing."""

import contextlib
import os
import threading
from concurrent import futures

import ckptd
import grpc
import peer
import pytest
from ckptd import _proto, _rpc
from faults import (
    MARK,
    Loading,
    Program,
    content,
    fd_socket_of,
    resources,
    sparse,
    statement,
    ticket,
    wait_gathered,
)
from group import PATIENCE, SOON, Daemon, sanitized, wait_until
from noise import (
    PREFACE,
    SETTINGS,
    SPEECHES,
    callers,
    doors,
    dripping,
    half_a_call,
    seconds_until_closed,
    show,
)

DOORS = ["workload", "admin", "fd", "memory", "peer"]
UNAUTHENTICATED = 16


@pytest.fixture(scope="module", autouse=True)
def early(unshown):
    """It expires while these tests run; test_hostile_peers.py looks at it in the end."""


@pytest.fixture
def place(request):
    """The scene on the memory that a test asks for, "host" or "cuda"."""
    return request.getfixturevalue("gpu_scene" if request.param == "cuda" else "scene")


both = pytest.mark.parametrize("place", ["host", "cuda"], indirect=True)


@pytest.mark.parametrize(
    "place, door",
    [*(("host", door) for door in DOORS), ("cuda", "fd"), ("cuda", "memory")],
    indirect=["place"],
)
def test_whatever_callers_say_at_a_door_the_next_client_attaches_as_usual(place, door):
    where = doors(place.group)[door]
    with contextlib.ExitStack() as noisy:
        for speech in SPEECHES.values():
            noisy.enter_context(callers(where, 1, speech))
        place.assert_usual()


@pytest.mark.parametrize("door", DOORS)
def test_two_hundred_mute_callers_at_a_door_delay_nobody(scene, door):
    with callers(doors(scene.group)[door], 200):
        scene.assert_usual()


@pytest.mark.parametrize("door", DOORS)
def test_callers_that_drip_bytes_delay_nobody(scene, door):
    speech = (
        b"CKPM\x01\x00\x00\x00"
        if door == "memory"
        else b"0" if door == "fd" else PREFACE + SETTINGS
    ) + bytes(99)
    with contextlib.ExitStack() as slow:
        for _ in range(20):
            slow.enter_context(dripping(doors(scene.group)[door], speech))
        scene.assert_usual()


def test_a_caller_that_drips_a_secret_is_heard_for_a_few_seconds_only(scene):
    secrets = {"fd": b"0" * 32, "memory": b"CKPM\x01\x00\x00\x00" + bytes(40)}
    with futures.ThreadPoolExecutor() as threads:
        heard = [
            threads.submit(seconds_until_closed, doors(scene.group)[door], secret, 2, 2 * SOON)
            for door, secret in secrets.items()
        ]
        scene.assert_usual()
        # The secret itself takes more than a minute.
        assert 4 < heard[0].result() < SOON  # timing::kTokenPatience
        assert 1 < heard[1].result() < SOON  # PeerSocketOptions::patience
    scene.assert_usual()


@pytest.mark.parametrize("count", [1, 100])
def test_calls_whose_message_never_ends_take_no_room_and_delay_nobody(scene, count):
    speech = half_a_call("CheckpointService/LoadCheckpoint")
    before = peak_mebibytes(scene.pids[0])
    with callers(doors(scene.group)["workload"], count, speech):
        scene.assert_usual()
    assert peak_mebibytes(scene.pids[0]) - before < 100


def test_watches_are_bounded_and_delay_nobody(scene, tmp_path):
    """A load for which rank 1 has stated nothing is watched for as long as its client waits."""
    path, most = sparse(tmp_path / "s.safetensors"), 64
    waiting = Loading(scene.group, 0, path, statement(0, 2), timeout=3 * PATIENCE)
    wait_gathered(scene.group, path, [waiting])
    (checkpoint,) = [c for c in scene.client.list() if c.source == path]
    watches = [scene.client.watch(checkpoint) for _ in range(most - 1)]
    assert [next(watch).state for watch in watches] == ["LOADING"] * (most - 1)
    scene.assert_usual()
    with pytest.raises(ckptd.ResourceExhausted) as caught:
        next(streamed(scene.client, checkpoint))
    assert caught.value.reason == "TOO_MANY_WAITING" and "GetCheckpoint" in caught.value.message
    asking = scene.client.watch(checkpoint)
    assert next(asking).state == "LOADING"
    one_more = Loading(scene.group, 0, path, statement(0, 2), timeout=3 * PATIENCE)
    for _ in range(3):  # those that ask may take one each
        watches.pop().close()
    wait_until(lambda: may_watch(scene.client, checkpoint), "room for another watch")
    joined = Loading(scene.group, 1, path, statement(1, 2), timeout=3 * PATIENCE)
    loads = (waiting, one_more, joined)
    assert [load.outcome(PATIENCE).state for load in loads] == ["ACTIVE"] * 3
    assert list(asking)[-1].state == "ACTIVE"
    for rank in range(2):
        scene.group.unload(checkpoint.name, rank)
    scene.assert_usual()


def streamed(client, checkpoint):
    """What the daemon streams of it, without asking where it does not."""
    request = _proto.message("WatchCheckpointRequest")(name=checkpoint.name)
    return client._connection.stream("WatchCheckpoint", request, "watching", _rpc.Deadline(PATIENCE))


def may_watch(client, checkpoint):
    try:
        return bool(next(streamed(client, checkpoint)))
    except ckptd.Error:
        return False


REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Reflection:
    """A stream that asks which services there are, and stays open."""

    def __init__(self, channel):
        self.goes = threading.Event()
        self.stream = channel.stream_stream(REFLECTION)(self._requests(), timeout=120)

    def _requests(self):
        yield b"\x3a\x00"  # ListServices
        self.goes.wait()

    def answer(self):
        return next(self.stream)


@pytest.mark.parametrize("door", ["workload", "admin"])
def test_streams_of_reflection_are_bounded_and_delay_nobody(scene, door):
    """Each holds a thread: 128 of them would leave none to anybody else."""
    with grpc.insecure_channel(f"unix:{doors(scene.group)[door]}") as channel:
        streams = []
        try:
            for _ in range(150):
                streams.append(Reflection(channel))
                assert b"ckptd.v1" in streams[-1].answer()
            scene.assert_usual()
            assert scene.group.info()["state"] == "READY"
            left = [stream for stream in streams if stream.stream.is_active()]
            assert left == streams[-8:]
            with pytest.raises(grpc.RpcError) as caught:
                streams[0].answer()
            assert caught.value.code() == grpc.StatusCode.CANCELLED
        finally:
            for stream in streams:
                stream.goes.set()
                stream.stream.cancel()


def test_drains_whose_clients_have_gone_keep_nobody_from_the_admin_socket(start, tmp_path):
    group = start(1)
    path = sparse(tmp_path / "m.safetensors")
    request = b"\x0a\x04\x08\xa0\x9c\x01"  # DrainDaemonRequest: a timeout of 20,000 s
    with ckptd.connect(group.address(0)) as client:
        held = client.acquire(client.load(path, layout="replicate:1"))
    with held, grpc.insecure_channel(f"unix:{doors(group)['admin']}") as channel:
        drain = channel.unary_unary("/ckptd.v1.AdminService/DrainDaemon")
        waiting = [drain.future(request, timeout=2 * PATIENCE) for _ in range(100)]
        refused = wait_until(
            lambda: [call for call in waiting if call.done()][:84], "what there is no room for"
        )
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert group.info()["state"] == "DRAINING"
        for call in waiting:
            call.cancel()
        wait_until(lambda: room_to_drain(drain, request), "the threads of those that have gone")


def room_to_drain(drain, request):
    """Whether one more may wait until the leases have ended."""
    try:
        drain(request, timeout=0.3)
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@both
def test_callers_that_have_gone_leave_no_descriptor(place):
    before = [resources(pid)["fds"] for pid in place.pids]
    for where in doors(place.group).values():
        for speech in SPEECHES.values():
            with callers(where, 3, speech):
                pass
    wait_until(
        lambda: all(resources(pid)["fds"] <= fds + 4 for pid, fds in zip(place.pids, before)),
        "their connections to be closed",
    )


@both
def test_a_token_that_was_used_is_worthless(place):
    reply = ticket(place.client, place.checkpoint)
    path = fd_socket_of(reply)
    assert show(reply.token, path)[0] == 0
    assert show(reply.token, path) == (UNAUTHENTICATED, 0)
    place.assert_usual()


@both
def test_a_token_of_a_lease_that_was_released_is_worthless(place):
    reply = ticket(place.client, place.checkpoint)
    place.client._connection.call(
        "ReleaseShard",
        _proto.message("ReleaseShardRequest")(lease=reply.lease),
        "releasing",
        _rpc.Deadline(PATIENCE),
    )
    assert show(reply.token, fd_socket_of(reply)) == (UNAUTHENTICATED, 0)


@both
def test_a_token_of_one_daemon_is_worthless_at_another(place):
    reply = ticket(place.client, place.checkpoint)
    assert show(reply.token, doors(place.group, 1)["fd"]) == (UNAUTHENTICATED, 0)
    assert show(reply.token, fd_socket_of(reply))[0] == 0


# Shows a token as another user; what comes back, if anything, on a line.
STRANGER = """
import os, socket, sys
path, token = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
stream = socket.socket(socket.AF_UNIX)
stream.settimeout(60)
try:
    stream.connect(path)
except PermissionError:
    print("not let in")
    sys.exit()
try:
    stream.sendall(token.encode())
    data, ancillary, *_ = stream.recvmsg(16, 4096)
    print(len(data), len(ancillary))
except OSError as error:
    print(type(error).__name__)
"""


@contextlib.contextmanager
def passable(*folders):
    """Everybody may go through these folders and what they are in."""
    ways = {way for folder in folders for way in (folder, *folder.parents)}
    modes = [(way, way.stat().st_mode & 0o7777) for way in ways if way.owner() == "root"]
    try:
        for way, mode in modes:
            way.chmod(mode | 0o011)
        yield
    finally:
        for way, mode in modes:
            way.chmod(mode)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@as_root
@pytest.mark.parametrize("door", ["fd", "workload", "admin", "memory"])
def test_another_user_is_kept_out_by_the_jobs_folder_and_by_each_socket(scene, door):
    folder = scene.group.run_dir / scene.group.job
    for opened in (folder.parent, folder):
        with passable(opened), Program(STRANGER, doors(scene.group)[door], "0" * 32) as stranger:
            assert stranger.hear() == "not let in", opened


@as_root
def test_another_user_with_a_token_gets_nothing_even_where_the_door_stands_open(scene):
    reply = ticket(scene.client, scene.checkpoint)
    socket_path = doors(scene.group)["fd"]
    with passable(scene.group.run_dir / scene.group.job):
        try:
            os.chmod(socket_path, 0o666)
            with Program(STRANGER, socket_path, reply.token) as stranger:
                # At most a refusal, without descriptors.
                assert stranger.hear() in ("16 0", "0 0", "ConnectionResetError", "BrokenPipeError")
        finally:
            os.chmod(socket_path, 0o600)
    # It was not used up either.
    assert show(reply.token, fd_socket_of(reply))[0] == 0


# Shows its tokens and receives nothing.
HUNG = """
import socket, sys
path, *tokens = sys.argv[1:]
shown = []
for token in tokens:
    shown.append(socket.socket(socket.AF_UNIX))
    shown[-1].connect(path)
    shown[-1].sendall(token.encode())
print("shown", flush=True)
sys.stdin.read()
"""


@as_root
def test_a_client_that_receives_no_descriptors_keeps_nobody_from_attaching(tmp_path, monkeypatch):
    """It shows tokens for more descriptors than a user may have on their way."""
    path = sparse(tmp_path / "m.safetensors", 40 << 20)
    os.chown(tmp_path, 65534, 65534)
    monkeypatch.setenv("CKPTD_DAEMON_UID", "65534")
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--nofile=256:256")
    with passable(tmp_path), Daemon(tmp_path, wrapper=user, environment={"CKPTD_DAEMON_UID": "65534"}) as daemon:
        with ckptd.connect(daemon.address(0)) as client:
            found = client.load(path, layout="replicate:1")
            tickets = [ticket(client, found) for _ in range(20)]
            tokens = [reply.token for reply in tickets]
            with Program(HUNG, fd_socket_of(tickets[0]), *tokens) as hung:
                assert hung.hear() == "shown"
                with client.acquire(found) as shard:
                    assert content(shard.tensors["mark"]) == MARK


def call(scene, door, method, request, **options):
    """The grpc.RpcError that a call of raw bytes ends with, of somebody who may come in."""
    where = doors(scene.group)[door]
    unbounded = [("grpc.max_send_message_length", -1)]
    channel = (
        peer.connect("{}:{}".format(*where))
        if door == "peer"
        else grpc.insecure_channel(f"unix:{where}", options=unbounded)
    )
    with channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/ckptd.v1.{method}")(request, timeout=5 * PATIENCE, **options)
    return caught.value


METHODS = {
    "workload": "CheckpointService/LoadCheckpoint",
    "admin": "AdminService/PinCheckpoint",
    "peer": "GroupService/Join",
}


@pytest.mark.parametrize("door, mebibytes", [("workload", 257), ("admin", 5), ("peer", 513)])
def test_a_message_above_the_limit_is_refused(scene, door, mebibytes):
    error = call(scene, door, METHODS[door], field_of(mebibytes << 20))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    scene.assert_usual()


def test_a_message_far_above_the_limit_is_never_held_whole(scene):
    """gRPC asks for its length when all of it is here."""
    before = peak_mebibytes(scene.pids[0])
    error = call(scene, "admin", METHODS["admin"], field_of(1200 << 20))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    # Sanitizers keep freed memory for a while.
    assert peak_mebibytes(scene.pids[0]) - before < (600 if sanitized() else 300)
    scene.assert_usual()


@pytest.mark.parametrize("packed", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("door", METHODS)
def test_nothing_is_unpacked_for_callers(scene, door, packed):
    """A megabyte may unpack to a gigabyte."""
    error = call(scene, door, METHODS[door], field_of(1 << 20), compression=packed)
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    scene.assert_usual()


def field_of(size):
    """The first field of a message, of that many zeros."""
    return b"\x0a" + varint(size) + bytes(size)


def peak_mebibytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


@pytest.mark.parametrize(
    "body",
    [b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0b" * 3000],
    ids=["no fields", "a length of 4 GiB", "cut short", "groups in groups"],
)
def test_a_message_that_is_none_is_an_error(scene, body):
    for door, method in [
        ("workload", "CheckpointService/LoadCheckpoint"),
        ("workload", "CheckpointService/PlanLoad"),
        ("admin", "AdminService/UnloadCheckpoint"),
        ("peer", "GroupService/Join"),
        ("peer", "GroupService/Prepare"),
        ("peer", "GroupService/Abort"),
    ]:
        assert call(scene, door, method, body).code() != grpc.StatusCode.OK
    scene.assert_usual()


def test_one_request_id_is_not_for_two_requests(scene, tmp_path):
    other = sparse(tmp_path / "other.safetensors")

    def load(path):
        request = _proto.message("LoadCheckpointRequest")(
            request_id="the same", spec={"source": path, "intended_mode": 1}
        )
        request.spec.layout.rules = "replicate:2"
        return scene.client._connection.call(
            "LoadCheckpoint", request, "loading", _rpc.Deadline(PATIENCE)
        )

    first = load(scene.path).checkpoint.name
    with pytest.raises(ckptd.AlreadyExists) as caught:
        load(other)
    assert caught.value.reason == "REQUEST_ID_REUSED" and "the same" in caught.value.message
    assert load(scene.path).checkpoint.name == first
    assert [c for c in scene.client.list() if c.source == other] == []
