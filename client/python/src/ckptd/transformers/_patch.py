"""patch() and unpatch(): puts the seams of the installed transformers in place and takes them out."""

import importlib
import threading
from typing import Callable, List, Optional, Tuple

from .._autopatch import switched_off
from .._errors import FailedPrecondition

_lock = threading.RLock()
_active: List["Patch"] = []


class Patch:
    """What `patch` did. A context manager: leaving it takes the change back."""

    def __init__(self, replaced: List[Tuple[object, str, Callable, Callable]]) -> None:
        self._replaced = replaced

    def __enter__(self) -> "Patch":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    @property
    def active(self) -> bool:
        """Whether it is in force."""
        return self in _active

    def undo(self) -> None:
        """Puts the original functions back; does nothing when that was done before."""
        with _lock:
            if self not in _active:
                return
            _active.remove(self)
            for owner, name, original, ours in self._replaced:
                if vars(owner)[name] is ours:
                    setattr(owner, name, original)


def patch(
    *, address: Optional[str] = None, timeout: float = 600.0, fallback: Optional[str] = None
) -> Patch:
    """From now on, transformers' from_pretrained takes weights from this process's daemon.

    What is loaded, where it goes, its dtypes and reports stay transformers' own; only the
    source of the bytes changes. A model that is sharded (tp_plan, distributed_config) has
    each rank's daemon load just what that rank keeps. Imports transformers. In force for
    the whole process, until `unpatch`, or to the end of a `with` block.

    address: the daemon, as in ckptd.connect. timeout: seconds for a load, waiting for
    other ranks included. fallback="native": where the daemons cannot serve, transformers
    reads the files itself, which is said once in the log; else that is an error.
    With CKPTD_PATCH=0 in the environment nothing is changed, which is said in the log.
    Raises FailedPrecondition: a second patch (PATCHED), or a transformers that this
    ckptd does not know (TRANSFORMERS_UNSUPPORTED).
    """
    if switched_off("transformers"):
        return Patch([])
    from ._files import Files

    with _lock:
        if _active:
            raise FailedPrecondition(
                "patching transformers: it is patched already; call ckptd.unpatch() before, or "
                "use one `with ckptd.patch()` around the other calls",
                "PATCHED",
            )
        files = Files(address, timeout, fallback)
        replaced = []
        for place, name, make in _seams(files):
            owner = _owner(place)
            original = vars(owner)[name]  # of a class what it holds, which getattr would bind
            replaced.append((owner, name, original, make(original)))
        # Nothing was changed until all are known to be there.
        for owner, name, _, ours in replaced:
            setattr(owner, name, ours)
        done = Patch(replaced)
        _active.append(done)
        return done


def unpatch() -> None:
    """Takes `patch` back. Models that were loaded stay as they are."""
    with _lock:
        for active in list(_active):
            active.undo()


def _seams(files):
    import transformers

    major = transformers.__version__.partition(".")[0]
    if major == "5":
        from . import _five as version
    elif major == "4":
        from . import _four as version
    else:
        raise _unsupported(transformers.__version__, "it is another major version")
    found = version.seams(files)
    for place, name, _ in found:
        if name not in vars(_owner(place)):
            raise _unsupported(transformers.__version__, f"it has no {place}.{name}")
    return found


def _owner(place: str) -> object:
    """The module of that name, or after a colon a class in it."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def _unsupported(version: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"patching transformers {version}: {why}; use a version that this ckptd was tried with "
        "(5.23, 4.57), or fill the model with ckptd.torch.load_into",
        "TRANSFORMERS_UNSUPPORTED",
        {"version": version},
    )
