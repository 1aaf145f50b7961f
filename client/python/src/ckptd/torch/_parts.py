"""What ranks that wait in load_into hear of those that failed before they took part.

load_into begins no round as _agree does: who finds its shard with its daemon waits for
nobody. What a rank has asked its daemon for, the others hear of from theirs. What fails
before that is told here, by a line in the process group's store that only those read
whose load waits for that rank; where nothing fails, nobody writes any. No collectives,
and nobody waits for a store that does not answer.

A failure counts for those who make the same call: of the same source, after as many loads
in which all took part and as many failures since; or who waited already when it came. Loads
bring ranks in step again that have failed alone. A rank that calls again takes its failure back.
"""

import contextlib
import json
import threading
import time
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from .._errors import Error, FailedPrecondition
from .._types import Progress
from . import _agree, _private
from ._failures import Heard, as_text, from_text
from ._shared import Board, Lines

_STANDS = 1.5  # seconds that a failure must stand: its rank may catch it and call again at once
_LOOK_EACH = 0.5  # seconds at least: progress comes with each rank of thousands that takes part
_STORE = 2.0  # seconds for a store, which answers within milliseconds or is gone


class _Call(NamedTuple):
    """Which call of load_into it is."""

    source: str
    loads: int  # that went before it, in which all ranks took part
    failures: int  # of this rank since the last one


class _Told(NamedTuple):
    """A rank's last failure: its line, and the call that failed."""

    line: int
    call: _Call
    text: str  # as_text


class _Loads:
    """Of one store, as this process has it. Thread-safe."""

    def __init__(self, store):
        self.store = store
        self.calls: Dict[str, _Call] = {}  # source -> this rank's next one
        self.told = False  # whether a failure of this rank stands
        self._lock = threading.Lock()
        self._lines: Optional[Lines] = None
        self._last: Dict[int, _Told] = {}
        self._count = 0

    def _open(self) -> None:
        if self._lines is None:
            shared = _agree.share()
            self._lines = Lines(shared.store, "loads")
            self._board, self.rank = Board(shared.store), shared.rank

    def tell(self, call: _Call, error: Optional[BaseException]) -> None:
        """error: None takes the last one back."""
        with self._lock:
            self._open()
            text = None if error is None else as_text(error, self.rank)
            self._lines.add([self.rank, call, text])
            self.told = error is not None

    def read(self) -> Tuple[int, Dict[int, _Told], Dict[int, str]]:
        """(lines so far, rank -> its failure, rank -> why its process ended)."""
        with self._lock:
            self._open()
            for rank, call, text in self._lines.read():
                self._count += 1
                self._last.pop(rank, None)
                if text is not None:
                    self._last[rank] = _Told(self._count, _Call(*call), text)
            lost = {r: f.text for r, f in self._board.read().items() if f.lost}
            return self._count, dict(self._last), lost


_loads: Optional[_Loads] = None


def _of_this_group() -> Optional[_Loads]:
    """None where there are no others, or, in a forked child, none of its own."""
    global _loads
    if not _agree.is_distributed() or _agree.is_forked():
        return None
    store = _private.default_store()
    if _loads is None or _loads.store is not store:
        _loads = _Loads(store)
    return _loads


class Part:
    """This rank's part in one load."""

    def __init__(self, source: str, loads: Optional[_Loads]):
        self._loads = loads
        self._call = _Call(source, 0, 0)
        if loads is not None:
            self._call = loads.calls.get(source, self._call)
        self._asked = False
        self._before: Optional[int] = None  # lines that were there when this rank began to wait
        self._next_look = 0.0
        self._seen: Dict[str, float] = {}  # failure -> when it was seen first

    def look(self, progress: Progress) -> None:
        """Raises Heard when a rank that the load waits for has failed. For Client.load's progress."""
        self._asked = True  # from now on the daemons tell the others
        now = time.monotonic()
        if not progress.waiting_ranks or self._loads is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_EACH
        found = _in_time(self._loads.read)
        if found is None:
            self._loads = None
            return
        count, failures, lost = found
        if self._before is None:
            self._before = count
        for rank in progress.waiting_ranks:
            told = failures.get(rank)
            text = told.text if told and self._concerns(told) else lost.get(rank)
            if text and now - self._seen.setdefault(text, now) > _STANDS:
                raise Heard(_as_ours(text, self._call.source))

    def _concerns(self, told: _Told) -> bool:
        if told.call.source != self._call.source:
            return False
        in_step = told.call.loads == self._call.loads
        return told.line > self._before or (in_step and told.call.failures >= self._call.failures)

    def begin(self) -> None:
        if self._loads is not None and self._loads.told:
            _in_time(lambda: self._loads.tell(self._call, None))

    def loaded(self, resident: bool) -> None:
        """resident: this rank's daemon knew of it already."""
        # What it did not have to wait for it held, and the others perhaps took no part.
        together = self._asked or not resident
        self._next(self._call.loads + together, 0)

    def fail(self, error: BaseException) -> None:
        call = self._call
        self._next(call.loads, call.failures + 1)
        if self._loads is not None and not self._asked and not isinstance(error, Heard):
            _in_time(lambda: self._loads.tell(call, error))

    def _next(self, loads: int, failures: int) -> None:
        self._call = _Call(self._call.source, loads, failures)
        if self._loads is not None:
            self._loads.calls[self._call.source] = self._call


@contextlib.contextmanager
def part_in(source: Any) -> Iterator[Part]:
    """Around one rank's load of `source`: tells the others if it fails before they can know."""
    loads = None
    with contextlib.suppress(Exception):  # a group that is being taken down has none to tell
        loads = _of_this_group()
    part = Part(str(source), loads)
    part.begin()
    try:
        yield part
    except BaseException as error:
        part.fail(error)
        if isinstance(error, Heard):
            raise error.error from None
        raise


def _in_time(call: Callable[[], Any]) -> Any:
    """What `call` returns; None if it fails or takes too long, as of a store that stands still."""
    found = []

    def run() -> None:
        with contextlib.suppress(Exception):
            found.append(call())

    thread = threading.Thread(target=run, name="ckptd-parts", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, or no more threads
        return None
    thread.join(_STORE)
    return found[0] if found else None


def _as_ours(text: str, source: str) -> Error:
    """What load_into raises for another rank's failure."""
    error = from_text(text)
    if isinstance(error, Error):
        return error
    rank, kind, message, *_ = json.loads(text)
    return FailedPrecondition(
        f"loading {source}: rank {rank} takes no part, it has failed itself: {kind}: {message}; see its "
        "log, and load again on every rank",
        "RANK_FAILED",
        {"rank": str(rank)},
    )
