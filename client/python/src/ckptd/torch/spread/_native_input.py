"""Input for the original functions of torch and accelerate, which take dicts only.

A path is read here by safetensors, without a daemon.
"""

import os
from typing import Any, Callable

from ..._errors import Unavailable
from ..._rpc import Deadline
from ..agree import _agreement
from ..load import _file_tensor, _lazy_state_dict, _native_files


def as_dict(
    doing: str,
    given: Any,
    timeout: float,
    every_rank: bool = False,
    look: Callable[[Any], Any] = lambda whole: whole,
) -> Any:
    """`given` as a dict for the original function. Other ranks than 0 get `{}` unless every_rank.

    Every rank must call it. An error on one rank is raised on all, because the original function
    would wait for that rank in a collective. look: called with the dict on every rank; it may
    raise, and returns the dict for the original function.
    """
    with _agreement.agree(f"{doing} by the original function", Deadline(timeout)) as group:
        whole = look(_dict_of(doing, given) if group.rank == 0 or every_rank else {})
        group.vote(1)
    return whole


def _dict_of(doing: str, given: Any) -> Any:
    if isinstance(given, (str, os.PathLike)):
        return _native_files.read(os.fspath(given), _native_files.load_file)
    if not isinstance(given, _lazy_state_dict.LazyStateDict):
        return given
    if any(isinstance(entry, _file_tensor.FileTensor) for entry in given.entries.values()):
        raise Unavailable(
            f"{doing} without the daemons: the values of a LazyStateDict come from a daemon, and "
            "none can be reached; start the daemons, or pass the checkpoint's path instead",
            "DAEMON_UNREACHABLE",
        )
    return dict(given.entries)
