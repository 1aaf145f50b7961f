"""Megatron-Core's distributed checkpoints, fed by the daemons.

Names and results are those of `megatron.core.dist_checkpointing`. Importing this package imports
torch, and not megatron-core: objects of any version of it serve, and objects of the same
attributes without it. See docs/megatron.md of this package.
"""

from ._optimizer import (
    KEEP_VARS_HINT,
    get_optim_param_to_id_map,
    get_param_id_to_sharded_param_map,
    logger,
    make_sharded_optimizer_tensor,
    optim_state_to_sharding_state,
)
from ._strategy import LoadStrategy

__all__ = [
    "KEEP_VARS_HINT", "LoadStrategy",  # fmt: skip
    "get_optim_param_to_id_map",
    "get_param_id_to_sharded_param_map",
    "logger",
    "make_sharded_optimizer_tensor",
    "optim_state_to_sharding_state",
]
