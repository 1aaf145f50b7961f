"""A daemon's peers as tests play them: messages of GroupService, strangers, daemons of another job, a
member that lies."""

import functools
import pathlib
import subprocess
import sys
import tempfile
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from group import KEY, PATIENCE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from certificates import Authority  # noqa: E402

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
SERVICE = "ckptd.v1.GroupService"


def _messages():
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(
            [
                "protoc",
                f"-I{PROTO}",
                "--include_imports",
                f"--descriptor_set_out={out.name}",
                "ckptd/v1/group_service.proto",
            ],
            check=True,
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_pool = _messages()


def message(kind, /, **fields):
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"ckptd.v1.{kind}"))(
        **fields
    )


def parse(name, data):
    return type(message(name)).FromString(data)


@functools.lru_cache
def _certificates(key):
    """(root, key, certificate) of somebody who has the group key, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.of_group_key(folder, key)
        certificate, own_key = authority.issue("own", "DNS:ckptd.group")
        return tuple(path.read_bytes() for path in (authority.certificate, own_key, certificate))


def connect(address, key=KEY):
    """A channel of somebody who has the group key; with None, of a stranger."""
    if key is None:
        return grpc.insecure_channel(address)
    options = [("grpc.ssl_target_name_override", "ckptd.group")]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*_certificates(key)), options)


def add_port(server):
    """A port on loopback, of somebody who has the group key."""
    root, key, certificate = _certificates(KEY)
    return server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], root, True)
    )


def call(address, method, request, timeout=PATIENCE, key=KEY):
    """(code, sentence) of a call."""
    with connect(address, key) as channel:
        try:
            channel.unary_unary(f"/{SERVICE}/{method}")(
                request.SerializeToString(), timeout=timeout
            )
            return "OK", ""
        except grpc.RpcError as error:
            return error.code().name, error.details()


def join_request(group, **fields):
    """How a member of that group would introduce itself."""
    return message(
        "JoinRequest",
        **{
            **dict(
                job=group.job,
                version=group.info()["version"],
                rank=1,
                world_size=2,
                incarnation="0123456789abcdef",
                address="127.0.0.1:1",
                pid=1,
            ),
            **fields,
        },
    )


class FakeMember:
    """Rank 1 of a group of two, which joins `leader` and then answers as it is told.

    answers: method -> function(request) that returns a response, or raises.
    """

    def __init__(self, leader, identity, answers):
        self.leader, self.identity, self.answers = leader, identity, answers
        self.calls = []

    def _handler(self, method, streams):
        def answer(request, context):
            if streams:
                requests = [parse(f"{method}Request", one) for one in request]
                request = requests[-1]
            else:
                request = parse(f"{method}Request", request)
            self.calls.append(method)
            default = message(f"{method}Response")
            if method == "Heartbeat":
                default.incarnation = self.identity.incarnation
            act = self.answers.get(method, lambda _: default)
            try:
                return act(request).SerializeToString()
            except RuntimeError as refusal:
                context.abort(grpc.StatusCode.INTERNAL, str(refusal))

        kind = (
            grpc.stream_unary_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        )
        return kind(answer)

    def __enter__(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        methods = {
            m: self._handler(m, m == "Execute")
            for m in ("Heartbeat", "Prepare", "Execute", "Commit", "Abort")
        }
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, methods)]
        )
        port = add_port(self.server)
        self.server.start()
        self.identity.address = f"127.0.0.1:{port}"
        self.channel = connect(self.leader)
        reply = self.channel.unary_unary(f"/{SERVICE}/Join")(
            self.identity.SerializeToString(), timeout=PATIENCE
        )
        self.joined = parse("JoinResponse", reply)
        return self

    def beat(self):
        request = message("HeartbeatRequest", rank=1, incarnation=self.identity.incarnation)
        self.channel.unary_unary(f"/{SERVICE}/Heartbeat")(request.SerializeToString(), timeout=PATIENCE)

    def __exit__(self, *_):
        self.channel.close()
        self.server.stop(None).wait()


class FakeLeader:
    """Rank 0 of a group: `answer(request)` to Join is a JoinResponse, or raises with a refusal."""

    def __init__(self, answer):
        self.answer = answer
        self.joins = []

    def _join(self, data, context):
        request = parse("JoinRequest", data)
        self.joins.append(request)
        try:
            return self.answer(request).SerializeToString()
        except RuntimeError as refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))

    def __enter__(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        methods = {"Join": grpc.unary_unary_rpc_method_handler(self._join)}
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, methods)]
        )
        self.address = f"127.0.0.1:{add_port(self.server)}"
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(None).wait()
