"""fallback="native": original functions of torch and accelerate, where no daemon serves the job."""

import contextlib
import contextvars
import importlib
import logging
from typing import Any, Callable, Iterator, Optional, Set, Tuple, TypeVar

from ..._errors import Error, FailedPrecondition, InvalidArgument

_LOG = logging.getLogger("ckptd")
_said: Set[str] = set()
# Whether an original function runs in place of ours. Patched functions that it calls are then native, too.
_natively: contextvars.ContextVar = contextvars.ContextVar("ckptd_natively", default=False)
# (module, name) -> the original that patch() replaced.
replaced: dict = {}

_TRIED = {"accelerate": "accelerate 1.15", "torch": "torch 2.13 or 2.15"}

Result = TypeVar("Result")


def original(module: str, name: str) -> Any:
    """The function `name` of `module` itself, patched or not. Imports the module.

    Raises FailedPrecondition (ACCELERATE_UNSUPPORTED, TORCH_UNSUPPORTED) where there is none.
    """
    key: Tuple[str, str] = (module, name)
    if key in replaced:
        return replaced[key]
    library = module.partition(".")[0]
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            raise  # it is not installed
        there = getattr(importlib.import_module(library), "__version__", "of no version")
        raise FailedPrecondition(
            f"looking for {name} in {module}: {library} {there} has none there; use {_TRIED[library]}, or "
            "ckptd.torch.load_into, which does not need it",
            f"{library.upper()}_UNSUPPORTED",
            {"name": f"{module}.{name}", "version": there},
        ) from error


@contextlib.contextmanager
def in_place(module: str, name: str, new: Any) -> Iterator[None]:
    """Inside the block `module` has `new` under `name`. original() still gives the original."""
    place = importlib.import_module(module)
    before, patched = getattr(place, name), (module, name) in replaced
    replaced.setdefault((module, name), before)
    setattr(place, name, new)
    try:
        yield
    finally:
        setattr(place, name, before)
        if not patched:
            del replaced[module, name]


def check(fallback: Optional[str]) -> None:
    if fallback not in (None, "native"):
        raise InvalidArgument(
            f"reading fallback={fallback!r}: it is None, or 'native' to call the original function "
            "when no daemon can be reached",
            "INVALID_REQUEST",
        )


def named(fallback: Optional[str], *more: str) -> str:
    """Text that must be equal on all ranks: `fallback`, and `more`."""
    return ", ".join([*filter(None, more), *(["fallback='native'"] if fallback else [])])


def is_unserved(error: BaseException) -> bool:
    """Whether the error says that no daemon serves this job: none is there, or they serve another job."""
    reasons = ("DAEMON_UNREACHABLE", "WRONG_WORLD_SIZE", "WRONG_RANK")
    return getattr(error, "reason", "") in reasons


def stand_in(
    what: str, ours: Callable[[], Result], native: Callable[[], Result], fallback: Optional[str]
) -> Result:
    """ours(), or native() if fallback allows it and no daemon serves this job: see is_unserved.

    All ranks choose the same one, because ours() raises the same on all. The log says so once.
    """
    check(fallback)
    if fallback == "native" and _natively.get():
        return native()
    try:
        return ours()
    except Error as error:
        if fallback != "native" or not is_unserved(error):
            raise
        if what not in _said:
            _said.add(what)
            _LOG.warning("%s: without the daemons, by the original function: %s", what, error)
    token = _natively.set(True)
    try:
        return native()
    finally:
        _natively.reset(token)
