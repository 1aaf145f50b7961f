"""What PyTorch calls at the end of `import torch`, in every process where ckptd is installed.

A module of its own beside the package: PyTorch ends its import with an error where what it
calls cannot be imported, and a package that is broken must not keep anybody from torch.
"""

import os


def on_torch_import() -> None:
    """Does what CKPTD_PATCH asks for, see ckptd._autopatch; warns in one line where ckptd cannot."""
    asked = os.environ.get("CKPTD_PATCH", "").strip()
    if not asked:
        return
    try:
        from ckptd import _autopatch

        _autopatch.on_torch_import()
    except Exception as error:
        import logging

        why = " ".join(f"{type(error).__name__}: {error}".split())
        logging.getLogger("ckptd").warning(
            "ckptd patches nothing, though CKPTD_PATCH=%s asks it to, because it cannot be imported (%s): "
            "install it again, or take CKPTD_PATCH out of the environment",
            asked,
            why,
        )
