"""This rank, and the connection to its daemon."""

import contextlib
from typing import Tuple

from .. import _address, _client
from .._rpc import Deadline


def rank_and_size() -> Tuple[int, int]:
    """Rank and world size of the process group, or of the launcher's environment if there is none."""
    return _address.rank(), _address.world_size()


@contextlib.contextmanager
def connected(address, client, deadline: Deadline, rank: int):
    """Gives `client`, or a new client for this rank, which is closed afterwards."""
    own = client or _client.connect(
        address, min(_client.CONNECT_SECONDS, deadline.timeout), rank=rank
    )
    try:
        yield own
    finally:
        if client is None:
            own.close()
