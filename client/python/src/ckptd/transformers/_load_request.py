"""One rank's requests for one source, as arguments of Client.load."""

from typing import Dict, List, Optional

import torch

from .. import _dtypes
from .._layout import RankLayout, Sharding
from .._safe_open_source import Source
from ..torch.load import _memory
from . import _boxes

_F32 = _dtypes.BY_NAME["F32"].number


class LoadRequest:
    """All requests of this rank for one source. Not thread-safe while it grows."""

    def __init__(self, source: Source):
        self.source = source
        self._boxes: Dict[str, List[_boxes.Box]] = {}
        self._dtypes: Dict[str, Optional[torch.dtype]] = {}
        self._box_requests: Dict[str, _boxes.BoxRequest] = {}

    def add(self, name: str, boxes: List[_boxes.Box], dtype: Optional[torch.dtype]) -> None:
        """Adds `boxes` of a tensor, cast to `dtype`. With different dtypes it stays as in the file."""
        self._boxes.setdefault(name, []).extend(boxes)
        self._dtypes[name] = dtype if self._dtypes.get(name, dtype) == dtype else None
        self._box_requests.pop(name, None)

    def box_request(self, name: str) -> _boxes.BoxRequest:
        if name not in self._box_requests:
            shape = self.source.contents.tensors[name].shape
            self._box_requests[name] = _boxes.BoxRequest(self._boxes[name], shape)
        return self._box_requests[name]

    def as_arguments(self, rank: int, world_size: int, by_rank: bool) -> dict:
        """layout=, dtype= and keep_fp32= of Client.load.

        by_rank: request a RankLayout, for which the daemons wait for every rank. Otherwise
        rules are used if whole tensors in at most one dtype besides float32 are wanted. They
        wait for no rank, and find what another client has loaded before.
        """
        if not by_rank and all(self.box_request(name).is_whole for name in self._boxes):
            wanted = {name: self._number(name) for name in self._boxes}
            floats = {n: number for n, number in wanted.items() if self._castable(n)}
            others = set(floats.values()) - {_F32}
            if len(others) <= 1:
                return self._as_rules(floats, others.pop() if others else _F32)
        return {"layout": self._as_statement(rank, world_size)}

    def _as_rules(self, floats: Dict[str, int], number: int) -> dict:
        if all(wanted == self._in_file(name) for name, wanted in floats.items()):
            return {}
        kept = sorted(name for name, wanted in floats.items() if wanted != number)
        return {"dtype": _dtypes.BY_NUMBER[number], "keep_fp32": kept}

    def _as_statement(self, rank: int, world_size: int) -> RankLayout:
        layout, known = RankLayout(rank, world_size), {}
        for name in sorted(self._boxes):
            box_request = self.box_request(name)
            sharding = Sharding() if box_request.is_whole else Sharding(boxes=tuple(box_request.boxes))
            if sharding not in known:
                known[sharding] = len(layout.shardings)
                layout.shardings.append(sharding)
            layout.add(name, box_request.shape, known[sharding], self._number(name))
        return layout

    def _number(self, name: str) -> int:
        """Dtype of the tensor in the shard: the wanted one if the daemons cast to it."""
        wanted = self._dtypes[name]
        if wanted is None or not self._castable(name) or not _memory.is_castable(wanted):
            return self._in_file(name)
        return _memory.number_of(wanted)

    def _in_file(self, name: str) -> int:
        return _dtypes.BY_NAME[self.source.contents.tensors[name].dtype].number

    def _castable(self, name: str) -> bool:
        return self._in_file(name) in _dtypes.CASTABLE
