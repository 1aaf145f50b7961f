"""accelerate's loading functions for FSDP2 under their own names, fed by the daemons.

The same as in ckptd.torch, beside the two switches that are accelerate's own. Importing
this module imports torch; accelerate comes with the first call that needs it.
"""

from ..torch import (
    fsdp2_load_full_state_dict,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
    load_state_dict,
    patch,
    unpatch,
)

__all__ = [
    "disable_fsdp_ram_efficient_loading",
    "enable_fsdp_ram_efficient_loading",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "load_state_dict",
    "patch",
    "unpatch",
]


def enable_fsdp_ram_efficient_loading() -> None:
    """accelerate's: from now on only rank 0 reads weights."""
    from accelerate.utils import enable_fsdp_ram_efficient_loading as enable

    enable()


def disable_fsdp_ram_efficient_loading() -> None:
    """accelerate's: from now on every rank has weights of its own."""
    from accelerate.utils import disable_fsdp_ram_efficient_loading as disable

    disable()
