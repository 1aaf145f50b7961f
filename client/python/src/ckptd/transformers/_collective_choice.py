"""from_pretrained of a distributed model: every rank loads, or every rank hears why not.

transformers itself agrees on nothing, so a rank that fails would leave the others waiting
for its part. Each load that the ranks make together is a round of theirs (see
ckptd.torch._agree); a rank that fails before it comes to one enters it to say so.
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
# What makes a model distributed, in the arguments of transformers 5 and 4.
_ARGUMENTS = ("distributed_config", "tp_plan", "tp_size", "device_mesh")
# The innermost from_pretrained of a distributed model in this context.
current: contextvars.ContextVar = contextvars.ContextVar("ckptd_together", default=None)


class DistributedCall:
    """One rank's from_pretrained of a distributed model.

    address: the daemon. timeout: seconds for each round. fallback: as of patch().
    """

    def __init__(self, address: Optional[str], timeout: float, fallback: Optional[str]):
        self._near = _agreement.OwnDaemon(address)
        self._timeout, self._fallback, self._must_match = timeout, fallback, _native_fallback.named(fallback)
        self._native: Optional[Error] = None
        self.left = 1  # rounds that are still to come: one for each source
        self.met = False  # whether there was one
        self._failed = False  # whether the last one ended so, for every rank

    @contextlib.contextmanager
    def round(self) -> Iterator[Callable[[Progress], None]]:
        """What all ranks do together: it begins when each has come, and ends for all alike.

        Gives what is to be called now and then meanwhile: it raises when another rank failed.
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
        """This rank reads a file itself, because of `error`; then all ranks have to."""
        self._native = error

    def continue_after_failure(self) -> None:
        """After a round that failed, all ranks read the file themselves and come to the next one."""
        self._failed = False

    def announce_native(self) -> Optional[Error]:
        """Has the others read the files themselves that this rank reads itself; why, if it does."""
        why = self._native
        if why is not None:
            with contextlib.suppress(Error), self.round():
                pass
            self.continue_after_failure()
        return why

    def fail(self, error: BaseException) -> None:
        """Ends the round that the other ranks wait in, or will, with `error`, if there is one."""
        if self._failed or self.left <= 0:
            return
        if self._fallback is not None and isinstance(error, Error):
            # Theirs would let the others go on natively, and this rank does not.
            error = RuntimeError(str(error))
        with contextlib.suppress(BaseException):
            with _agreement.agree(_DOING, Deadline(self._timeout), self._must_match, self._near, error):
                pass


def wrapped(
    original: classmethod, address: Optional[str], timeout: float, fallback: Optional[str]
) -> classmethod:
    """transformers' classmethod from_pretrained, which then takes the other ranks along."""
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
        if not call.met:  # nothing was loaded, by any rank
            with call.round():
                pass
        return made

    return classmethod(from_pretrained)
