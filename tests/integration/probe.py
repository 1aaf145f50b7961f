"""grpc.health.v1 as kubelet's probes speak it: in plain text, by the name of a service."""

import grpc

STATUSES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def request(service):
    """HealthCheckRequest."""
    name = service.encode()
    assert len(name) < 128
    return b"\x0a" + bytes([len(name)]) + name


def status_in(response):
    kind, value = response
    assert kind == 8
    return STATUSES[value]


def check(address, service="", timeout=60):
    """The status, or the code of the error: "NOT_FOUND", and "UNAVAILABLE" where nobody listens."""
    try:
        with grpc.insecure_channel(address) as channel:
            return status_in(channel.unary_unary("/grpc.health.v1.Health/Check")(request(service), timeout=timeout))
    except grpc.RpcError as error:
        return error.code().name


def watch(channel, service):
    """Yields the status at each change."""
    for response in channel.unary_stream("/grpc.health.v1.Health/Watch")(request(service), timeout=60):
        yield status_in(response)
