"""accelerate's loading functions under their own names, fed by the daemons.

Functions for FSDP2 are the same as in ckptd.torch. Functions for big models that read
checkpoints are ours. The others move no bytes, or only bytes that they are given: they are
accelerate's own, here for convenience. Importing this module imports torch. accelerate is
imported with the first use of a function that needs it.
"""

from typing import TYPE_CHECKING, Any, List

from ..torch import (
    fsdp2_load_full_state_dict,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
    load_state_dict,
    patch,
    unpatch,
)
from ._checkpoint import load_checkpoint_in_model
from ._merge import merge_fsdp_weights
from ._offload import load_offloaded_weights
from ._shards import shard_checkpoint

_ACCELERATE_S = (
    "compute_module_sizes",
    "get_balanced_memory",
    "get_max_layer_size",
    "infer_auto_device_map",
    "offload_state_dict",
    "retie_parameters",
    "set_module_tensor_to_device",
)

__all__ = [
    "compute_module_sizes",
    "disable_fsdp_ram_efficient_loading",
    "enable_fsdp_ram_efficient_loading",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "get_balanced_memory",
    "get_max_layer_size",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    "load_offloaded_weights",
    "load_state_dict",
    "merge_fsdp_weights",
    "offload_state_dict",
    "patch",
    "retie_parameters",
    "set_module_tensor_to_device",
    "shard_checkpoint",
    "unpatch",
]

if TYPE_CHECKING:
    from accelerate.utils import (
        compute_module_sizes,
        get_balanced_memory,
        get_max_layer_size,
        infer_auto_device_map,
        offload_state_dict,
        retie_parameters,
        set_module_tensor_to_device,
    )


def __getattr__(name: str) -> Any:
    if name not in _ACCELERATE_S:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import accelerate.utils

    return getattr(accelerate.utils, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})


def enable_fsdp_ram_efficient_loading() -> None:
    """accelerate's function: from now on only rank 0 reads weights."""
    from accelerate.utils import enable_fsdp_ram_efficient_loading as enable

    enable()


def disable_fsdp_ram_efficient_loading() -> None:
    """accelerate's function: from now on every rank reads its own weights."""
    from accelerate.utils import disable_fsdp_ram_efficient_loading as disable

    disable()
