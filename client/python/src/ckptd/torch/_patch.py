"""patch() and unpatch(): replace functions of accelerate and torch by those of this package."""

import functools
import importlib
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from .._autopatch import switched_off
from .._patches import Patch, Patches
from .compat import _native_fallback
from .load import _buffers, _load_state_dict, _tied_weights
from .resume import _accelerate_fsdp
from .spread import _accelerate_fsdp2, _set_model_state_dict
from .spread._spread import StateSource

_PLACES: Dict[str, Tuple[str, ...]] = {
    "load_state_dict": ("accelerate.utils.modeling", "accelerate.utils"),
    "load_checkpoint_in_model": (
        "accelerate.utils.modeling",
        "accelerate.utils",
        "accelerate.big_modeling",
        "accelerate",
    ),
    "fsdp2_load_full_state_dict": ("accelerate.utils.fsdp_utils", "accelerate.utils"),
    "fsdp2_prepare_model": (
        "accelerate.utils.fsdp_utils",
        "accelerate.utils",
        "accelerate.accelerator",
    ),
    "fsdp2_switch_optimizer_parameters": (
        "accelerate.utils.fsdp_utils",
        "accelerate.utils",
        "accelerate.accelerator",
    ),
    "load_fsdp_model": ("accelerate.utils.fsdp_utils", "accelerate.utils", "accelerate.accelerator"),
    "load_fsdp_optimizer": ("accelerate.utils.fsdp_utils", "accelerate.utils", "accelerate.accelerator"),
    "set_model_state_dict": ("torch.distributed.checkpoint.state_dict",),
}
# A module that has imported functions by name, if it was imported before the patch.
_TRAINER = "transformers.trainer"
_OF_TRAINER = ("load_fsdp_model", "load_fsdp_optimizer")
_RAM_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"  # set by accelerate's enable_fsdp_ram_efficient_loading


# (module, name, original, replacement)
_Changes = List[Tuple[Any, str, Any, Any]]


def _exchange(before: Optional[_Changes], after: Optional[_Changes]) -> None:
    for module, name, original, _ in before or ():
        setattr(module, name, original)
    for module, name, _, ours in after or ():
        setattr(module, name, ours)
    _native_fallback.replaced.clear()
    _native_fallback.replaced.update({(m.__name__, name): original for m, name, original, _ in after or ()})


_patches = Patches(_exchange)


class Patched(Patch):
    """Result of patch(): a context manager whose end restores the state before patch()."""


def patch(
    *,
    source: Optional[StateSource] = None,
    init_buffers: Optional[_buffers.InitBuffers] = None,
    allow_rank0_values: bool = False,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Any = None,
    fallback: Optional[str] = None,
    tied: Optional[str] = None,
) -> Patched:
    """From now on, accelerate calls this package instead of its own functions.

    Replaced, in this process: accelerate's load_state_dict, load_checkpoint_in_model (and
    with it load_checkpoint_and_dispatch), fsdp2_load_full_state_dict, fsdp2_prepare_model
    and fsdp2_switch_optimizer_parameters, load_fsdp_model and load_fsdp_optimizer (and with
    them Accelerator.load_state and, for FSDP, Trainer's resume_from_checkpoint), and torch's
    set_model_state_dict.
    load_state_dict reads on rank 0 alone after accelerate's
    enable_fsdp_ram_efficient_loading(). Otherwise every rank gets a LazyStateDict, because
    other ways of loading need one on every rank. source, init_buffers: see
    fsdp2_prepare_model. The other arguments are those of the functions. A module that imported
    a function by name before keeps the original. The patch holds for the whole process, until
    unpatch() or the end of a `with` block. A patch inside another replaces it; the end of its
    block restores the outer one. Imports accelerate. With CKPTD_PATCH=0 in the environment
    nothing is changed, and the log says so.
    """
    if switched_off("accelerate"):
        return Patched()
    from ..accelerate import _checkpoint  # late, because it imports this package

    _native_fallback.check(fallback)
    own_daemon = {"timeout": timeout, "address": address, "client": client}
    _tied_weights.check(tied)
    common = {**own_daemon, "digest": digest, "fallback": fallback, "tied": tied}
    for_rank = {**own_daemon, "digest": digest, "fallback": fallback}
    common["allow_rank0_values"] = allow_rank0_values
    new = {
        "load_state_dict": functools.partial(_patched_load_state_dict, own_daemon, fallback),
        "load_checkpoint_in_model": _with(_checkpoint.load_checkpoint_in_model, common),
        "fsdp2_load_full_state_dict": _with(_accelerate_fsdp2.fsdp2_load_full_state_dict, common),
        "fsdp2_prepare_model": _with(
            _accelerate_fsdp2.fsdp2_prepare_model, {**common, "source": source, "init_buffers": init_buffers}
        ),
        "fsdp2_switch_optimizer_parameters": _accelerate_fsdp2.fsdp2_switch_optimizer_parameters,
        "load_fsdp_model": _with(_accelerate_fsdp.load_fsdp_model, for_rank),
        "load_fsdp_optimizer": _with(_accelerate_fsdp.load_fsdp_optimizer, for_rank),
        "set_model_state_dict": _with(_set_model_state_dict.set_model_state_dict, common),
    }
    with _patches.lock:
        # Nothing is changed until all are known to be there.
        places = [(place, n) for n in _PLACES for place in _PLACES[n]]
        places += [(_TRAINER, n) for n in _OF_TRAINER if hasattr(sys.modules.get(_TRAINER), n)]
        found = [(place, n, _native_fallback.original(place, n)) for place, n in places]
        changes = [(importlib.import_module(place), n, was, new[n]) for place, n, was in found]
        return Patched(_patches, changes)


def unpatch() -> None:
    """Restores all originals. Does nothing without a patch()."""
    _patches.end_all()


def _with(function: Any, options: Dict[str, Any]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*args, **{**options, **named})

    return call


def _patched_load_state_dict(own_daemon, fallback, checkpoint_file, device_map=None):
    only_first = os.environ.get(_RAM_EFFICIENT, "").lower() in ("1", "true", "yes", "y", "t", "on")
    return _load_state_dict.load_state_dict(
        checkpoint_file, device_map, every_rank=not only_first, fallback=fallback, **own_daemon
    )
