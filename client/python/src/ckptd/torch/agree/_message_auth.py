"""Message authentication: proof that a message in a process group's store comes from a rank of the job.

Every program that reaches the port of torch's store may read, write and delete there. The
daemons give each trainer of their group one key, over sockets that other users cannot open.
A message is stored with its HMAC-SHA256 under that key and the message's name. The name holds
call, stage, rank and a nonce, so a message is useless in another place or at another time.

A rank that reaches no daemon has no key. Other ranks read only two facts in its messages:
that it failed, and the kind of the failure.
"""

import hashlib
import hmac
from typing import Optional, Tuple

from ..._errors import Unauthenticated
from ._failures import without_proof

_HEX = 64
_UNSIGNED = "-" * _HEX  # in place of an HMAC
_MOST = 1 << 28  # bytes of a message; an announcement of 100,000 tensors has 15 million


def digest(text: str) -> str:
    """A short form of `text` for names."""
    return hashlib.sha256(text.encode()).hexdigest()


class MessageAuth:
    """Signs and verifies messages. key: None as long as there is none."""

    def __init__(self, key: Optional[bytes] = None) -> None:
        self.key = key

    def sign(self, name: str, text: str) -> str:
        """`text` as it is stored under `name`."""
        return (self._mac(name, text.encode()) if self.key else _UNSIGNED) + text

    def verify(self, what: str, name: str, value: bytes) -> str:
        """The text. what: names it for people. Raises Unauthenticated (FOREIGN_WORD) unless it is proven.

        Without a key on this rank the text is accepted: ranks only wait for each other then.
        """
        text, is_proven = self._open(name, value)
        if is_proven or (self.key is None and text is not None):
            return text
        raise Unauthenticated(
            f"{what} in the process group's store is not proven by the group's key, and was not used: another "
            "program wrote it, or put back an older one, or rank 0's daemon was started again in the "
            "meantime; call again, and if that does not help see which programs reach the port of torch's "
            "store (MASTER_ADDR, MASTER_PORT)",
            "FOREIGN_WORD",
        )

    def read_if_proven(self, name: str, value: bytes) -> Optional[str]:
        """The text if it is proven, else None. For text that no rank depends on."""
        text, is_proven = self._open(name, value)
        return text if is_proven else None

    def verify_failure(self, what: str, name: str, value: bytes) -> str:
        """Like verify(), for what may be a failure. An unproven failure is reduced to its kind."""
        text, is_proven = self._open(name, value)
        claims = self.key is not None and value[:_HEX] != _UNSIGNED.encode()
        if is_proven or text is None or claims:
            return self.verify(what, name, value)
        return without_proof(text) or self.verify(what, name, value)

    @staticmethod
    def mac_of(value: bytes) -> str:
        """The HMAC of a stored value. Call it for values that were verified, or signed, here."""
        return value[:_HEX].decode()

    @staticmethod
    def body(value: bytes) -> bytes:
        """The text, proven or not. For comparisons whose outcome is proven elsewhere."""
        return value[_HEX:]

    @staticmethod
    def unsigned_text(value: bytes) -> str:
        """The text of a message that has no HMAC. Raises ValueError for a message that has one."""
        if value[:_HEX] != _UNSIGNED.encode():
            raise ValueError("it claims to be proven")
        return value[_HEX:].decode()

    def _open(self, name: str, value: bytes) -> Tuple[Optional[str], bool]:
        """(text, or None if it cannot be decoded; whether it is proven)."""
        proof, body = value[:_HEX], value[_HEX:]
        if len(value) > _MOST:
            return None, False
        is_proven = self.key is not None and hmac.compare_digest(proof, self._mac(name, body).encode())
        try:
            return body.decode(), is_proven
        except UnicodeDecodeError:
            return None, False

    def _mac(self, name: str, body: bytes) -> str:
        whole = hmac.new(self.key, f"{len(name)} {name} ".encode(), hashlib.sha256)
        whole.update(body)
        return whole.hexdigest()
