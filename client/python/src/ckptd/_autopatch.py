"""CKPTD_PATCH=transformers,accelerate: the patches for programs that are not changed.

PyTorch calls `ckptd_autoload.on_torch_import` at the end of `import torch` in every process,
because this package names it in the entry-point group torch.backends, which is meant for such
extensions (TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns all of them off). Without CKPTD_PATCH it
returns at once. A patch waits until its library has been imported, if it ever is. If the patch
fails, the import fails, unless CKPTD_PATCH_FALLBACK=native allows to continue.
"""

import importlib.abc
import importlib.machinery
import logging
import os
import sys
from typing import Callable, Dict, Optional

_OFF = ("0", "off", "no", "false")
_log = logging.getLogger("ckptd")


def switched_off(library: str) -> bool:
    """Whether CKPTD_PATCH=0 disables patches. Logs then that `library` is not patched."""
    asked = os.environ.get("CKPTD_PATCH", "").strip()
    if asked.lower() not in _OFF:
        return False
    _log.warning("%s is left as it is: CKPTD_PATCH=%s", library, asked)
    return True


def on_torch_import() -> None:
    """Patches as CKPTD_PATCH says. Ends the process with a message for an invalid value.

    CKPTD_PATCH: libraries, separated by commas. CKPTD_PATCH_FALLBACK=native is
    patch(fallback="native") of each.
    """
    asked = os.environ.get("CKPTD_PATCH", "").strip().lower()
    if not asked or asked in _OFF:
        return
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in _LIBRARIES:
            # SystemExit, because PyTorch would wrap an error and advise to disable all extensions.
            raise SystemExit(
                f"ckptd: reading CKPTD_PATCH={asked!r}: {name!r} names no library that ckptd "
                f"patches; set it to {' or '.join(_LIBRARIES)}, to both with a comma between them, "
                "or to 0"
            )
    for name in dict.fromkeys(names):
        after_import(*_LIBRARIES[name])


def _patch_transformers(fallback: Optional[str]) -> None:
    from .transformers import patch

    patch(fallback=fallback)


def _patch_accelerate(fallback: Optional[str]) -> None:
    from .torch import patch

    patch(fallback=fallback)


# Library -> (module with the patched functions, function that patches it).
_LIBRARIES = {
    "transformers": ("transformers.modeling_utils", _patch_transformers),
    "accelerate": ("accelerate", _patch_accelerate),
}


def after_import(name: str, patch: Callable[[Optional[str]], None]) -> None:
    """Runs `patch` once module `name` has been imported: now, or at the end of its import."""

    def run() -> None:
        fallback = os.environ.get("CKPTD_PATCH_FALLBACK") or None
        try:
            patch(fallback)
        except Exception as error:
            # Our errors say what to do. Others come from a broken package or dependency.
            sentence = str(error) if hasattr(error, "reason") else _broken(name, error)
            if fallback != "native":
                raise ImportError(sentence, name=name) from error
            _log.warning("%s is left as it is, as CKPTD_PATCH_FALLBACK=native allows: %s", name, sentence)

    module = sys.modules.get(name)
    if module is None:
        _Finder.watch(name, run)
    elif getattr(module.__spec__, "_initializing", False):
        _Watched.watch(module.__spec__, run)  # the library is importing torch just now
    else:
        run()


def _broken(name: str, error: Exception) -> str:
    why = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"patching {name}, as CKPTD_PATCH asks: ckptd, or a package that it needs, cannot be imported "
        f"({why}); install ckptd again with its dependencies, or set CKPTD_PATCH=0, or "
        "CKPTD_PATCH_FALLBACK=native to go on without it"
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules by the other finders, and calls a function once a module has been run."""

    def __init__(self) -> None:
        self._wanted: Dict[str, Callable[[], None]] = {}

    @classmethod
    def watch(cls, name: str, then: Callable[[], None]) -> None:
        finder = next((f for f in sys.meta_path if isinstance(f, cls)), None)
        if finder is None:
            finder = cls()
            sys.meta_path.insert(0, finder)
        finder._wanted[name] = then

    def find_spec(self, name, path=None, target=None):
        if name not in self._wanted:
            return None
        others = (f for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module) -> None:
            run(module)
            # Only now: some callers only look for the spec, and a failed import may be retried.
            then = self._wanted.pop(name, None)
            if then is not None:
                then()

        spec.loader.exec_module = exec_module
        return spec


class _Watched(importlib.machinery.ModuleSpec):
    """A spec whose module is being imported. Python resets `_initializing` at the end.

    importlib has set it around the import of every module since Python 3.4, and reads it itself
    to detect circular imports.
    """

    @classmethod
    def watch(cls, spec: importlib.machinery.ModuleSpec, then: Callable[[], None]) -> None:
        vars(spec)["then"] = then
        spec.__class__ = cls

    @property
    def _initializing(self) -> bool:
        return vars(self).get("_initializing", False)

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        then = None if value else vars(self).pop("then", None)
        if then is None:
            return
        if self.name in sys.modules:
            then()
        else:  # the import has failed and may be retried
            _Finder.watch(self.name, then)
