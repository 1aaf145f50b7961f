"""Clients and daemons one minor version apart: descriptors of the API as 0.1.0 had it, and messages of a later one."""

import contextlib
import pathlib
import socket
import struct
from concurrent import futures

import ckptd
import grpc
import pytest
import torch
from ckptd import _proto
from faults import content
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from group import Group, save, wait_until

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
WORDS = torch.arange(1 << 10, dtype=torch.int32)
LATER = 2000  # the number of a field that only a later version has
SECONDS = 60


def descriptors(path):
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def each_message(messages):
    for message in messages:
        yield message
        yield from each_message(message.nested_type)


def later(files):
    """The API of a later version: every message has one more field, every enum one more value."""
    for file in files.file:
        if not file.name.startswith("ckptd/"):
            continue
        for message in each_message(file.message_type):
            if not message.options.map_entry:
                message.field.add(name="of_a_later_version", number=LATER, type=9, label=1)
            for enum in message.enum_type:
                enum.value.add(name=f"{message.name}_{enum.name}_OF_A_LATER_VERSION".upper(), number=LATER)
        for enum in file.enum_type:
            enum.value.add(name=f"{enum.name}_OF_A_LATER_VERSION".upper(), number=LATER)
    return files


def marked(message):
    """The same, with that field set in it and in all that it contains."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else [value]:
            marked(part)
    if message.DESCRIPTOR.full_name.startswith("ckptd."):
        message.of_a_later_version = "what nobody knows yet"
    return message


class Api:
    """The messages of one version."""

    def __init__(self, files, mark=lambda message: message):
        self.pool, self.mark = descriptor_pool.DescriptorPool(), mark
        for file in files.file:
            self.pool.Add(file)

    def message(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"ckptd.v1.{name}"))

    def call(self, channel, method, **fields):
        serialize = (lambda message: self.mark(message).SerializeToString())
        answer = self.message(f"{method}Response").FromString
        path = f"/ckptd.v1.CheckpointService/{method}"
        kind = channel.unary_stream if method.startswith("Watch") else channel.unary_unary
        return kind(path, serialize, answer)(self.message(f"{method}Request")(**fields), timeout=SECONDS)


OLDER = Api(descriptors(GOLDEN / "api_0_1_0.binpb"))
NEWER = Api(later(descriptors(_proto._PATH)), marked)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("g"), 1) as started:
        yield started


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "m.safetensors", {"w": WORDS})


def segments(fd_socket, token):
    """(the lease's connection, descriptors)."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SECONDS)
    connection.connect(fd_socket)
    connection.sendall(token.encode())
    header, fds, _, _ = socket.recv_fds(connection, 16, 128)
    assert struct.unpack("<4sIII", header) == (b"CKP1", 0, len(fds), 0)
    return connection, fds


@pytest.mark.parametrize("api", [OLDER, NEWER], ids=["older", "newer"])
def test_a_client_of_another_version_loads_and_attaches(group, path, api):
    with grpc.insecure_channel(group.address(0)) as channel:
        spec = {"source": path, "layout": {"rules": "fsdp:1"}, "timeout": {"seconds": SECONDS}}
        loaded = api.call(channel, "LoadCheckpoint", spec=spec, request_id=path[-128:]).checkpoint
        *_, last = api.call(channel, "WatchCheckpoint", name=loaded.name)
        assert last.checkpoint.state == 2  # ACTIVE
        shard = api.call(channel, "AcquireShard", name=loaded.name, mode=1)
        table = api.call(channel, "ListShardTensors", name=loaded.name).tensors
        assert (list(table.names), list(table.bytes), table.digests) == (["w"], [4096], shard.tensors.digests)
        connection, fds = segments(shard.memfd.fd_socket, shard.token)
        with connection, contextlib.ExitStack() as opened:
            file = [opened.enter_context(open(fd, "rb")) for fd in fds][0]
            file.seek(table.offsets[0])
            assert file.read(4096) == WORDS.numpy().tobytes()
            # The lease of an earlier test's client may end a moment later.
            wait_until(lambda: [lease["checkpoint"] for lease in group.json("leases")["leases"]] == [loaded.name], "one lease")


def test_a_client_of_another_version_hears_reasons(group):
    for api in (OLDER, NEWER):
        with grpc.insecure_channel(group.address(0)) as channel, pytest.raises(grpc.RpcError) as failed:
            api.call(channel, "GetCheckpoint", name="checkpoints/none")
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND and "checkpoints/none" in failed.value.details()


class NewerDaemon(grpc.GenericRpcHandler):
    """Passes calls on to a daemon, and adds to its answers what a later version has."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)

    def service(self, details):
        method = details.method
        answer = NEWER.message(method.rpartition("/")[2] + "Response")

        def add(found):
            return marked(answer.FromString(found)).SerializeToString()

        if "/Watch" in method:
            ask = self.channel.unary_stream(method)
            return grpc.unary_stream_rpc_method_handler(lambda request, _: map(add, ask(request, timeout=SECONDS)))
        ask = self.channel.unary_unary(method)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: add(ask(request, timeout=SECONDS)))


def test_this_client_works_with_a_later_daemon(group, path, tmp_path_factory):
    address = f"unix:{tmp_path_factory.mktemp('s')}/d.sock"
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[NewerDaemon(group.address(0))])
    server.add_insecure_port(address)
    server.start()
    try:
        with ckptd.connect(address) as client:
            checkpoint = client.load(path, layout="fsdp:1")
            assert checkpoint.state == "ACTIVE" and checkpoint in client.list()
            with client.acquire(checkpoint.name) as shard:
                assert content(shard.tensors["w"]) == WORDS.numpy().tobytes()
    finally:
        server.stop(0).wait(SECONDS)


def test_no_field_of_the_older_api_has_changed():
    """Its number, type and repetition are those that messages on the wire and in keepers have."""
    def fields(files):
        return {(f"{file.package}.{message.name}", field.number): (field.name, field.type, field.label, field.type_name)
                for file in files.file for message in each_message(file.message_type) for field in message.field}

    before, now = fields(descriptors(GOLDEN / "api_0_1_0.binpb")), fields(descriptors(_proto._PATH))
    shared = {key: value for key, value in before.items() if key[0] in {name for name, _ in now}}
    assert len(shared) > 200
    assert {key: now.get(key) for key in shared} == shared
