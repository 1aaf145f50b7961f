"""Fills PyTorch models, sharded or not, with the daemon's memory instead of copies.

with torch.device("meta"):
    model = Model()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
result = ckptd.torch.load_into(model, "/models/llama")

The loading functions that FSDP2 and accelerate users call are here under their own
names, fed by the daemons: see docs/fsdp2.md and docs/accelerate.md of this package.
StorageReader is for torch.distributed.checkpoint: see docs/dcp.md.
Those for big models come from ckptd.accelerate, which is imported at their first use.
"""

from typing import TYPE_CHECKING, Any, List

from .. import _rpc
from ._patch import patch, unpatch
from .load._apply_fsdp2 import apply_fsdp2
from .load._lazy_state_dict import LazyStateDict
from .load._load_file import load_file
from .load._load_into import load_into
from .load._load_state_dict import load_state_dict
from .load._result import LoadResult
from .resume._training_state import TrainingState, load_training_state
from .spread._accelerate_fsdp2 import (
    fsdp2_load_full_state_dict,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
)
from .spread._dist_module import DistModule
from .spread._set_model_state_dict import set_model_state_dict
from .spread._sharded_dict import broadcast_and_shard_state_dict, shard_broadcasted_state_dict

# Pickles name the classes as users do, wherever they are defined.
for _kind in (DistModule, LazyStateDict, LoadResult, TrainingState):
    _kind.__module__ = __name__

# Importing this module imports torch, which takes a second. So some milliseconds of work for the
# first call are done here, instead of in the middle of a start.
_rpc.warm_up()

# StorageReader is not here before its first use, because torch.distributed.checkpoint takes long to
# import. These are names of ckptd.accelerate, which needs this package.
_LATER = (
    "compute_module_sizes",
    "disable_fsdp_ram_efficient_loading",
    "enable_fsdp_ram_efficient_loading",
    "get_balanced_memory",
    "get_max_layer_size",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    "load_offloaded_weights",
    "offload_state_dict",
    "retie_parameters",
    "set_module_tensor_to_device",
    "shard_checkpoint",
)

__all__ = [
    "DistModule",
    "LazyStateDict",
    "LoadResult",
    "StorageReader",
    "TrainingState",
    "apply_fsdp2",
    "broadcast_and_shard_state_dict",
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
    "load_file",
    "load_into",
    "load_offloaded_weights",
    "load_state_dict",
    "load_training_state",
    "offload_state_dict",
    "patch",
    "retie_parameters",
    "set_model_state_dict",
    "set_module_tensor_to_device",
    "shard_broadcasted_state_dict",
    "shard_checkpoint",
    "unpatch",
]

if TYPE_CHECKING:
    from ..accelerate import (
        compute_module_sizes,
        disable_fsdp_ram_efficient_loading,
        enable_fsdp_ram_efficient_loading,
        get_balanced_memory,
        get_max_layer_size,
        infer_auto_device_map,
        load_checkpoint_in_model,
        load_offloaded_weights,
        offload_state_dict,
        retie_parameters,
        set_module_tensor_to_device,
        shard_checkpoint,
    )
    from .dcp._storage_reader import StorageReader


def __getattr__(name: str) -> Any:
    if name == "StorageReader":
        from .dcp._storage_reader import StorageReader

        return StorageReader
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .. import accelerate

    return getattr(accelerate, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
