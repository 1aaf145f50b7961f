"""Fills PyTorch models, sharded or not, with the daemon's memory instead of copies.

with torch.device("meta"):
    model = Model()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
result = ckptd.torch.load_into(model, "/models/llama")

The loading functions that FSDP2 and accelerate users call are here under their own
names, fed by the daemons: see docs/fsdp2.md and docs/accelerate.md of this package.
"""

from .. import _rpc
from ._apply import apply_fsdp2
from ._dist_module import (
    DistModule,
    broadcast_and_shard_state_dict,
    shard_broadcasted_state_dict,
)
from ._files import load_file
from ._fsdp2 import (
    fsdp2_load_full_state_dict,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
)
from ._lazy import LazyStateDict, load_state_dict
from ._load import load_into
from ._patch import patch, unpatch
from ._result import LoadResult
from ._state_dict import set_model_state_dict

# Nobody imports this module without torch, which takes a second: what the first call
# would take some milliseconds for, in the middle of a start, is done here.
_rpc.warm_up()

__all__ = [
    "DistModule",
    "LazyStateDict",
    "LoadResult",
    "apply_fsdp2",
    "broadcast_and_shard_state_dict",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "load_file",
    "load_into",
    "load_state_dict",
    "patch",
    "set_model_state_dict",
    "shard_broadcasted_state_dict",
    "unpatch",
]
