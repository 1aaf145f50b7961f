"""Proof that words in a process group's store come from a rank of the job.

Anybody who reaches the port of torch's store may read, write and delete there. The daemons give
every trainer of their group one key, over sockets that other users cannot open; each word is kept
with its HMAC-SHA256 under that key and the name it has. A name says call, stage, rank, and what
makes it fresh, so that a word is of no use elsewhere or another time.

A rank that reaches no daemon has no key. It can only say that it failed, and of what kind: others
read nothing else in what it writes.
"""

import hashlib
import hmac
from typing import Optional, Tuple

from ..._errors import Unauthenticated
from ._failures import without_proof

_HEX = 64
_UNSIGNED = "-" * _HEX  # in place of a proof
_MOST = 1 << 28  # bytes of a word; that of 100,000 tensors has 15 million


def digest(text: str) -> str:
    """For names."""
    return hashlib.sha256(text.encode()).hexdigest()


class MessageAuth:
    """Proves and checks words. key: None while, or because, there is none."""

    def __init__(self, key: Optional[bytes] = None) -> None:
        self.key = key

    def sign(self, name: str, text: str) -> str:
        """`text` as it is kept under `name`."""
        return (self._mac(name, text.encode()) if self.key else _UNSIGNED) + text

    def verify(self, what: str, name: str, value: bytes) -> str:
        """The text. what: for people. Raises Unauthenticated (FOREIGN_WORD) unless it is proven.

        Where all ranks are without a key nothing is, and the text is only to be waited for.
        """
        text, is_proven = self._open(name, value)
        if is_proven or (self.key is None and text is not None):
            return text
        raise Unauthenticated(
            f"{what} in the process group's store is not proven by the group's key, and was not used: another "
            "program wrote it, or put back an older one, or rank 0's daemon was started again in the "
            "meantime; call again, and if it stays so see who reaches the port of torch's store "
            "(MASTER_ADDR, MASTER_PORT)",
            "FOREIGN_WORD",
        )

    def read_if_proven(self, name: str, value: bytes) -> Optional[str]:
        """The text if it is proven. Else None: nobody depends on it."""
        text, is_proven = self._open(name, value)
        return text if is_proven else None

    def verify_failure(self, what: str, name: str, value: bytes) -> str:
        """As read(), of what may be a failure: of one that is not proven its kind alone."""
        text, is_proven = self._open(name, value)
        claims = self.key is not None and value[:_HEX] != _UNSIGNED.encode()
        if is_proven or text is None or claims:
            return self.verify(what, name, value)
        return without_proof(text) or self.verify(what, name, value)

    @staticmethod
    def mac_of(value: bytes) -> str:
        """What stands before the text. To be called for values that were read, or written, here."""
        return value[:_HEX].decode()

    @staticmethod
    def body(value: bytes) -> bytes:
        """The text, proven or not: for comparisons that are proven elsewhere."""
        return value[_HEX:]

    @staticmethod
    def unsigned_text(value: bytes) -> str:
        """The text of what a rank without a key, or anybody, wrote. Raises ValueError if it is none."""
        if value[:_HEX] != _UNSIGNED.encode():
            raise ValueError("it claims to be proven")
        return value[_HEX:].decode()

    def _open(self, name: str, value: bytes) -> Tuple[Optional[str], bool]:
        """(text or None if it is none, whether it is proven)."""
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
