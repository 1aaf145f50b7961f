"""PyTorch calls this at the end of `import torch`, in every process where ckptd is installed.

It is a module of its own: PyTorch's import fails if this cannot be imported, and a broken ckptd
must not break torch.
"""

import os


def on_torch_import() -> None:
    """Patches as CKPTD_PATCH says, see ckptd._autopatch. Warns in one line if ckptd cannot be imported."""
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
