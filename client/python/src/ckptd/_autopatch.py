"""CKPTD_PATCH=transformers: ckptd.patch() for programs that are not changed.

PyTorch calls `on_torch_import` at the end of `import torch` in every process, because this
package names it in the entry-point group torch.backends, which is there for such
extensions (TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns all of them off). Without CKPTD_PATCH it
returns at once. The patch itself waits until transformers is imported, if it ever is.
"""

import importlib.abc
import importlib.util
import os
import sys

_MODULE = "transformers.modeling_utils"
_OFF = ("", "0", "off", "no", "false")


def on_torch_import() -> None:
    """Does what CKPTD_PATCH asks for. Raises ValueError for what it cannot mean.

    CKPTD_PATCH_FALLBACK=native is patch(fallback="native").
    """
    wanted = os.environ.get("CKPTD_PATCH", "").strip().lower()
    if wanted in _OFF:
        return
    if wanted != "transformers":
        raise ValueError(
            f"reading CKPTD_PATCH={wanted!r}: it names no library that ckptd patches; set it to "
            "transformers, or to 0 for none"
        )
    module = sys.modules.get(_MODULE)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _patch()
    else:
        sys.meta_path.insert(0, _Finder())


def _patch() -> None:
    from .transformers import patch

    patch(fallback=os.environ.get("CKPTD_PATCH_FALLBACK") or None)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as others do, and patches once it has been run."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module) -> None:
            run(module)
            _patch()

        spec.loader.exec_module = exec_module
        return spec
