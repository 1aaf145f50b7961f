"""Runs code of accelerate with other functions than those of its module."""

import types
from typing import Any, Callable

from ..._errors import FailedPrecondition


def with_globals(function: Any, **names: Any) -> Callable[..., Any]:
    """A copy of `function` that finds `names` as globals. Its module and other threads are not affected."""
    unused = sorted(set(names) - set(function.__code__.co_names))
    if unused:
        raise FailedPrecondition(
            f"calling accelerate's {function.__name__} over the daemon's memory: it does not call "
            f"{unused[0]}, so this version is unknown here; use accelerate 1.15, or "
            "ckptd.torch.load_into",
            "ACCELERATE_UNSUPPORTED",
        )
    known = {**function.__globals__, **names}
    copy = types.FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
