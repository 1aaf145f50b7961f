"""One checkpoint on storage for safe_open: its header at once, its memory on demand."""

import threading
from typing import Dict, List, Optional

from . import _client
from ._errors import Error, FailedPrecondition, NotFound, source_changed
from ._rpc import Deadline
from ._shard import Shard
from ._types import SourceTensor

try:
    from safetensors import SafetensorError
except ImportError:  # the package is not needed here; callers catch its error

    class SafetensorError(Exception):
        """safetensors' error for files and indices that it cannot use."""




class Source:
    """A checkpoint as this process's daemon reads it. Thread-safe.

    path: a file of tensors or an index, with "#part" behind it or not. timeout: seconds for
    opening it, and again for its load. As in safetensors, raises FileNotFoundError for a missing
    file and SafetensorError for what is not whole; else ckptd.Error. The connection is closed
    after each use, so that processes may fork in between.
    """

    def __init__(self, path: str, address: Optional[str] = None, timeout: float = 600.0):
        self.path, self.address, self.timeout = path, address, timeout
        self._lock = threading.Lock()
        self._shards: Dict[str, Shard] = {}
        deadline = Deadline(timeout)
        try:
            with self.connect() as client:
                self.contents = client.inspect(path, deadline.for_call())
        except NotFound as error:
            if error.reason != "SOURCE_NOT_FOUND":
                raise
            raise FileNotFoundError(f"No such file or directory: {path}") from error
        except Error as error:
            if error.reason != "SOURCE_INVALID":
                raise
            raise SafetensorError(f"Error while deserializing header: {error.message}") from error

    def connect(self) -> _client.Client:
        return _client.connect(self.address, min(_client.CONNECT_SECONDS, self.timeout))

    def shard(self, device: str) -> Shard:
        """All of the source, mapped: loaded at the first call, or found resident. Not copied.

        device: "cpu" for memory that may be written (the daemon's stays as it is), "cuda"
        for the daemon's GPU memory as it is. Raises Aborted SOURCE_CHANGED when the files are
        no longer those of `contents`.
        """
        mode = "private" if device == "cpu" else "shared"
        with self._lock:
            if mode not in self._shards:
                deadline = Deadline(self.timeout)
                with self.connect() as client:
                    left = deadline.for_call()
                    checkpoint = client.load(self.path, mode=mode, timeout=left)
                    # Else the header that callers have seen would not fit the bytes.
                    if checkpoint.source_identity != self.contents.identity:
                        raise source_changed(self.path, "since it was opened", "open it again")
                    left = deadline.for_call()
                    self._shards[mode] = client.acquire(checkpoint, mode, timeout=left)
            return self._shards[mode]

    def files(self) -> List[str]:
        return [path for path, _ in self.contents.files]

    def tensors_of(self, file: Optional[str]) -> Dict[str, SourceTensor]:
        """Tensors in one of `files()`, sorted by name; None stands for all files.

        Further names of tensors are in files of torch as others are; safetensors knows none.
        """
        found = dict(self.contents.tensors)
        if self.contents.format not in ("", "safetensors"):
            found.update((name, found[owner]) for name, owner in self.contents.aliases.items())
        return {n: found[n] for n in sorted(found) if file in (None, found[n].file)}


def require_host_memory(shard: Shard, file: str) -> None:
    """Refuses GPU memory where only host memory can be used."""
    if shard.device is not None:
        raise FailedPrecondition(
            f"reading {file} into NumPy arrays: the daemon keeps its shards in the memory of GPU "
            f"{shard.device}; use framework='pt' with device='cuda', or a daemon with --memory "
            "host",
            "DEVICE_MISMATCH",
            {"daemon": shard.device},
        )
