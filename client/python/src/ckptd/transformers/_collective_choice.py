"""from_pretrained of a distributed model: every rank loads, or every rank is told why not.

The ranks choose together between the daemons and transformers' own reading. transformers itself
does not agree, so a failed rank would leave the others waiting for its part. Each common load is
a round (see ckptd.torch.agree). A rank that fails before a round enters it to report that.
"""

import contextlib
import contextvars
import functools
from typing import Callable, Iterator, Optional

from .._errors import Error
from .._rpc import Deadline
from .._types import Progress
from ..torch.agree import _agreement
from ..torch.compat import _native_fallback

_DOING = "from_pretrained"
# Arguments of transformers 5 and 4 that make a model distributed.
_ARGUMENTS = ("distributed_config", "tp_plan", "tp_size", "device_mesh")
# The innermost distributed from_pretrained in this context.
current: contextvars.ContextVar = contextvars.ContextVar("ckptd_distributed_call", default=None)


class DistributedCall:
    """One rank's from_pretrained of a distributed model.

    address: the daemon. timeout: seconds for each round. fallback: see patch().
    """

    def __init__(self, address: Optional[str], timeout: float, fallback: Optional[str]):
        self._near = _agreement.OwnDaemon(address)
        self._timeout, self._fallback, self._must_match = timeout, fallback, _native_fallback.named(fallback)
        self._native: Optional[Error] = None
        self.left = 1  # rounds still to come, one per source
        self.met = False  # whether there was a round
        self._failed = False  # whether the last round failed, for every rank

    @contextlib.contextmanager
    def round(self) -> Iterator[Callable[[Progress], None]]:
        """A block that all ranks run together. It begins when each has come, and ends alike on all.

        Gives a function to call during waits, which raises if another rank has failed.
        """
        self.met = self._failed = True
        self.left -= 1
        native, self._native = self._native, None
        deadline = Deadline(self._timeout)
        with _agreement.agree(_DOING, deadline, self._must_match, self._near, native) as group:
            group.vote(1)
            yield lambda _: group.check_others(2)
            group.vote(2)
        self._failed = False

    def mark_native(self, error: Error) -> None:
        """Notes that this rank reads a file itself, because of `error`. All ranks must do so then."""
        self._native = error

    def continue_after_failure(self) -> None:
        """Continues after a failed round: all ranks read the file themselves and come to the next one."""
        self._failed = False

    def announce_native(self) -> Optional[Error]:
        """Makes other ranks read files themselves if this rank does. Returns the reason, or None."""
        why = self._native
        if why is not None:
            with contextlib.suppress(Error), self.round():
                pass
            self.continue_after_failure()
        return why

    def fail(self, error: BaseException) -> None:
        """Ends with `error` the round in which other ranks wait, now or later, if there is one."""
        if self._failed or self.left <= 0:
            return
        if self._fallback is not None and isinstance(error, Error):
            # Its own type would let other ranks continue natively, which this rank does not.
            error = RuntimeError(str(error))
        with contextlib.suppress(BaseException):
            with _agreement.agree(_DOING, Deadline(self._timeout), self._must_match, self._near, error):
                pass


def wrapped(
    original: classmethod, address: Optional[str], timeout: float, fallback: Optional[str]
) -> classmethod:
    """transformers' classmethod from_pretrained, in agreement with the other ranks."""
    function: Callable = original.__func__

    @functools.wraps(function)
    def from_pretrained(cls, *arguments, **named):
        if all(named.get(name) is None for name in _ARGUMENTS):
            return function(cls, *arguments, **named)
        call = DistributedCall(address, timeout, fallback)
        token = current.set(call)
        try:
            made = function(cls, *arguments, **named)
        except BaseException as error:
            call.fail(error)
            raise
        finally:
            current.reset(token)
        if not call.met:  # no rank has loaded anything
            with call.round():
                pass
        return made

    return classmethod(from_pretrained)
