"""Deferred loads: requests of one rank's from_pretrained are collected, then loaded at once.

transformers first decides for every tensor which part this rank needs and in which dtype, and
reads values only afterwards. The first step runs on probes that only note the requests. Then one
load has the daemons read just these parts, already cast. Then the original code runs over the
daemon's memory.
"""

import contextlib
import contextvars
import threading
import time
from typing import Callable, Dict, List, Optional

import torch

from .. import _client, _dtypes
from .._errors import Aborted, Error, Unavailable
from .._rpc import Deadline
from .._safe_open import Slice
from .._shard import Shard
from .._types import Progress
from ..torch._daemon import rank_and_size
from ..torch.load import _memory
from . import _boxes, _collective_choice, _load_request

_LOST_RANK_SECONDS = 6.0  # seconds for a daemon that is starting, if fallback="native"
# Called during the wait for a load. It raises to end the wait.
Look = Callable[[Progress], None]
# The DeferredLoad of the from_pretrained that runs in this context.
current: contextvars.ContextVar = contextvars.ContextVar("ckptd_deferred_load", default=None)


class Probe:
    """Replaces a Slice while requests are collected. Indexing gives tensors without values."""

    def __init__(self, part: Slice, note: Callable[[_boxes.Box], None]):
        self._part, self._note = part, note

    def get_shape(self) -> List[int]:
        return self._part.get_shape()

    def get_dtype(self) -> str:
        return self._part.get_dtype()

    def request_all(self) -> None:
        self._note(_boxes.whole(self._part.info.shape))

    def request_box(self, box: _boxes.Box) -> None:
        """Requests a box."""
        self._note(box)

    def __getitem__(self, key) -> torch.Tensor:
        info = self._part.info
        found = _boxes.part_of(key, info.shape)
        self._note(found.box)
        dtype = _memory.torch_dtype(_dtypes.BY_NAME[info.dtype], info.name)
        return torch.empty(found.box[1], dtype=dtype, device="meta")[found.key]


class _LostRankTimeout:
    """Progress callback that ends a wait for lost daemons of other ranks."""

    def __init__(self) -> None:
        self._since: Optional[float] = None

    def __call__(self, progress: Progress) -> None:
        if not progress.waiting_ranks:
            self._since = None
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > _LOST_RANK_SECONDS:
            raise Unavailable(
                f"loading a checkpoint: waiting for {progress.waits_for}; see that daemon's log, "
                "and start it again",
                "RANK_LOST",
                {"rank": str(progress.waiting_ranks[0])},
            )


class LoadedSlice:
    """Replaces a Slice once its DeferredLoad is loaded. Indexing gives the daemon's memory."""

    def __init__(self, part: Slice, feed: "DeferredLoad"):
        self._part, self._feed = part, feed

    def get_shape(self) -> List[int]:
        return self._part.get_shape()

    def get_dtype(self) -> str:
        return self._part.get_dtype()

    def __getitem__(self, key) -> torch.Tensor:
        found = _boxes.part_of(key, self._part.info.shape)
        return self._feed.value(self._part, found.box)[found.key]


class DeferredLoad:
    """Collects all requests first, then gives values. One thread collects; any thread may take.

    timeout: seconds for each source's load, waits for other ranks included. by_rank: whether the
    model is distributed, which must be equal on every rank. distributed_call: the call in which
    the ranks agree on how the load ends, if they do.
    """

    def __init__(
        self,
        timeout: float,
        by_rank: bool,
        distributed_call: Optional[_collective_choice.DistributedCall] = None,
    ):
        self.timeout, self.by_rank = timeout, by_rank
        self._distributed_call = distributed_call
        self._requests: Dict[int, _load_request.LoadRequest] = {}  # by id of its source
        self._shards: Dict[int, Shard] = {}
        self._failed: Dict[int, Error] = {}  # sources that the original library reads instead
        self._native_reason: Optional[Error] = None
        self._lock = threading.Lock()
        self._on_gpu = False

    def note(
        self,
        part: Slice,
        ask: Callable[[Probe], object],
        dtype: Optional[torch.dtype],
        device=None,
    ) -> bool:
        """Runs `ask` on a probe of `part`, to be cast to `dtype`. Returns whether it requested anything."""
        boxes: List[_boxes.Box] = []
        ask(Probe(part, boxes.append))
        if not boxes:
            return False
        self._on_gpu |= device is not None and torch.device(device).type == "cuda"
        source = part.file.source
        question = self._requests.setdefault(id(source), _load_request.LoadRequest(source))
        question.add(part.info.name, boxes, dtype)
        return True

    def use_native(self, why: Optional[Error]) -> None:
        """Has the original library read everything, because of `why`. None changes nothing."""
        self._native_reason = why

    def value(self, part: Slice, box: _boxes.Box) -> torch.Tensor:
        """`box` of the tensor, over the daemon's memory. Loads at the first call."""
        source = part.file.source
        question = self._requests[id(source)]
        with self._lock:
            if self._native_reason is not None:
                self._failed[id(source)] = self._native_reason
            if id(source) not in self._shards and id(source) not in self._failed:
                self._load(part)
        if id(source) in self._failed:
            part.file.fall_back(self._failed[id(source)])
            index = tuple(slice(at, at + size) for at, size in zip(*box))
            return part.file.native.get_slice(part.info.name)[index or ...]
        shard, wish = self._shards[id(source)], question.box_request(part.info.name)
        index = shard.table.index[part.info.name]
        shape = shard.table.shapes[index]
        local = _memory.storage_of(shard, index).as_strided(
            shape, _memory.contiguous_strides(shape)
        )
        return local if wish.boxes == [box] else local[wish.index_of(box)]

    def _load(self, part: Slice) -> None:
        """Loads all requests for the part's source; in a distributed call, for all sources."""
        own = self._requests[id(part.file.source)]
        questions = list(self._requests.values()) if self._distributed_call else [own]
        # A rank that loads for itself reads natively rather than wait for a lost daemon.
        alone = _LostRankTimeout() if part.file.fallback is not None and not self.by_rank else None
        try:
            with self._distributed_call.round() if self._distributed_call else contextlib.nullcontext(alone) as look:
                for question in questions:
                    shard = self._attach(question, part.file.path, look)
                    self._shards[id(question.source)] = shard
        except Error as error:
            # After the end of a rank's process the job cannot continue anyway.
            if part.file.fallback is None or isinstance(error, Aborted):
                raise
            if self._distributed_call:
                self._distributed_call.continue_after_failure()
            for question in questions:  # also loaded ones, because other ranks have none
                self._shards.pop(id(question.source), None)
                self._failed[id(question.source)] = error

    def _attach(self, question: _load_request.LoadRequest, path: str, look: Optional[Look]) -> Shard:
        source, deadline = question.source, Deadline(self.timeout)
        with source.connect() as client:
            mode = self._mode(client, path, deadline)
            asked = question.as_arguments(*rank_and_size(), self.by_rank)
            options = {"mode": mode, "timeout": deadline.for_call(), "progress": look, **asked}
            loaded = client.load(source.path, **options)
            return client.acquire(loaded, mode, timeout=deadline.for_call())

    def _mode(self, client: _client.Client, path: str, deadline: Deadline) -> str:
        """Mode for a model that may be trained: host memory is private, GPU memory is taken over."""
        daemon = client.device(deadline.for_call())
        if daemon is None:
            return "private"
        have = torch.device("cuda")
        _memory.check_device(path, have if self._on_gpu else torch.device("cpu"), have, daemon)
        return "exclusive"
