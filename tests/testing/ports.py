"""Ports for servers that are told where to listen."""

import socket

_held = []


def free_port():
    """A port of loopback, for a server that sets SO_REUSEADDR, as all of these do.

    It stays bound here until this process ends: the system gives it to nobody who asks for any port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return held.getsockname()[1]
