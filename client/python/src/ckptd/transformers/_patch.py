"""patch() and unpatch(): replace functions of the installed transformers, and restore them."""

import importlib
from typing import Callable, List, Optional, Tuple

from .._autopatch import switched_off
from .._errors import FailedPrecondition
from .._patches import Patch, Patches

# (module or class, name, original, replacement)
_Changes = List[Tuple[object, str, Callable, Callable]]


def _exchange(before: Optional[_Changes], after: Optional[_Changes]) -> None:
    """Exchanges functions, except those that others have replaced in the meantime."""
    for owner, name, original, ours in before or ():
        if vars(owner)[name] is ours:
            setattr(owner, name, original)
    for owner, name, original, ours in after or ():
        if vars(owner)[name] is original:
            setattr(owner, name, ours)


_patches = Patches(_exchange)


def patch(
    *, address: Optional[str] = None, timeout: float = 600.0, fallback: Optional[str] = None
) -> Patch:
    """From now on, transformers' from_pretrained takes weights from this process's daemon.

    Names, placement, dtypes and reports stay transformers' own. Only the source of the bytes
    changes. For a sharded model (tp_plan, distributed_config) each rank's daemon loads just the
    parts that the rank keeps. Imports transformers. The patch holds for the whole process, until
    `unpatch` or the end of a `with` block. A patch inside another replaces it; the end of its
    block restores the outer one.

    address: the daemon, as in ckptd.connect. timeout: seconds for a load, waits for other ranks
    included. fallback="native": if the daemons cannot serve, transformers reads the files
    itself, and the log says so once; by default that is an error. With CKPTD_PATCH=0 in the
    environment nothing is changed, and the log says so. Raises FailedPrecondition
    (TRANSFORMERS_UNSUPPORTED) for a version of transformers that this ckptd does not know.
    """
    if switched_off("transformers"):
        return Patch()
    from ._files import Files

    files = Files(address, timeout, fallback)
    with _patches.lock:
        patch_points = _patch_points(files)  # its import of transformers may patch it: see _autopatch
        ours = {id(new): original for _, _, original, new in _patches.in_force or ()}
        changes = []
        for place, name, make in patch_points:
            owner = _owner(place)
            held = vars(owner)[name]  # not getattr, which would bind a classmethod
            original = ours.get(id(held), held)
            changes.append((owner, name, original, make(original)))
        # Nothing was changed until all are known to be there.
        return Patch(_patches, changes)


def unpatch() -> None:
    """Restores all originals. Models that were loaded stay as they are."""
    _patches.end_all()


def _patch_points(files):
    import transformers

    major = transformers.__version__.partition(".")[0]
    if major == "5":
        from .compat import _compat_v5 as version
    elif major == "4":
        from .compat import _compat_v4 as version
    else:
        raise _unsupported(transformers.__version__, "it is another major version")
    found = version.patch_points(files)
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
