"""patch() and unpatch(): replace functions of accelerate and torch by those of this package."""

import functools
import importlib
import os
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .._autopatch import after_import, switched_off
from .._patches import Patch, Patches
from .compat import _native_fallback, _trainer_internals
from .load import _buffers, _load_state_dict, _tied_weights
from .resume import _accelerate_fsdp, _accelerate_plain
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
    "load_accelerator_state": ("accelerate.checkpointing", "accelerate.accelerator"),
    "set_model_state_dict": ("torch.distributed.checkpoint.state_dict",),
}
# The Trainer's module, once it is imported: functions that it has by name, and methods of Trainer.
_TRAINER = _trainer_internals.MODULE
_OF_TRAINER = ("load_fsdp_model", "load_fsdp_optimizer")
_METHODS = {
    _trainer_internals.LOAD_MODEL: _accelerate_plain.load_from_checkpoint,
    _trainer_internals.LOAD_OPTIMIZER_AND_SCHEDULER: _accelerate_plain.load_optimizer_and_scheduler,
}
_RAM_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"  # set by accelerate's enable_fsdp_ram_efficient_loading


# (module or class, name, original, replacement)
_Change = Tuple[Any, str, Any, Any]


class _Changes:
    """What a patch replaces. in_place: what is replaced at present, with that in the Trainer."""

    def __init__(self, everywhere: List[_Change], new: Dict[str, Any], for_rank: Dict[str, Any]) -> None:
        self._everywhere, self._new, self._for_rank = everywhere, new, for_rank
        self.in_place: List[_Change] = []

    def make(self) -> None:
        self.in_place = [*self._everywhere, *self._in_trainer(sys.modules.get(_TRAINER))]
        for place, name, _, ours in self.in_place:
            setattr(place, name, ours)

    def undo(self) -> None:
        for place, name, original, _ in self.in_place:
            setattr(place, name, original)

    def _in_trainer(self, module: Any) -> Iterator[_Change]:
        for name in _OF_TRAINER:
            if hasattr(module, name):
                yield module, name, _native_fallback.original(_PLACES[name][0], name), self._new[name]
        trainer = getattr(module, "Trainer", None)
        for name, ours in _METHODS.items():
            original = vars(trainer).get(name) if trainer is not None else None
            if original is not None:
                yield trainer, name, original, _method(original, ours, self._for_rank)


def _method(original: Any, ours: Any, options: Dict[str, Any]) -> Any:
    @functools.wraps(original)
    def call(trainer: Any, *args: Any, **named: Any) -> Any:
        return ours(original, trainer, *args, **named, **options)

    return call


def _exchange(before: Optional[_Changes], after: Optional[_Changes]) -> None:
    if before is not None:
        before.undo()
    if after is not None:
        after.make()
    made = after.in_place if after is not None else []
    _native_fallback.replaced.clear()
    _native_fallback.replaced.update({(place.__name__, name): original for place, name, original, _ in made})


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
    and fsdp2_switch_optimizer_parameters, load_fsdp_model, load_fsdp_optimizer and
    load_accelerator_state (and with them Accelerator.load_state), what Trainer's
    resume_from_checkpoint loads models and optimizers by, and torch's set_model_state_dict.
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
        "load_accelerator_state": _with(_accelerate_plain.load_accelerator_state, for_rank),
        "set_model_state_dict": _with(_set_model_state_dict.set_model_state_dict, common),
    }
    with _patches.lock:
        # Nothing is changed until all are known to be there.
        found = [(place, n, _native_fallback.original(place, n)) for n in _PLACES for place in _PLACES[n]]
        everywhere = [(importlib.import_module(place), n, was, new[n]) for place, n, was in found]
        patched = Patched(_patches, _Changes(everywhere, new, for_rank))
    if not hasattr(sys.modules.get(_TRAINER), "Trainer"):
        after_import(_TRAINER, lambda _: _renew())
    return patched


def _renew() -> None:
    """Puts the patch in force into a module that was imported after it, too."""
    with _patches.lock:
        _patches.put(_patches.in_force)


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
