"""What accelerate and the Trainer of transformers load without FSDP, fed by the daemons.

Models and optimizers come from the daemons. Schedulers, scalers, samplers and random states are
small, and the original functions load them.
"""

import os
from typing import Any, Callable, Iterable, List, Optional, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ... import _source
from ..compat import _checkpoint_names, _native_fallback, _trainer_internals
from ..load import _load_into
from ._accelerate_fsdp import load_optimizer

_CHECKPOINTING = "accelerate.checkpointing"
# In the order in which the Trainer takes them.
_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
)
_DDP = "module."  # what its names begin with
_FSDP_WEIGHTS = "pytorch_model_fsdp"


def load_accelerator_state(
    input_dir: Any,
    models: List[nn.Module],
    optimizers: List[Any],
    schedulers: List[Any],
    dataloaders: List[Any],
    process_index: int,
    scaler: Any = None,
    map_location: Any = None,
    load_kwargs: Optional[dict] = None,
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Any = None,
    fallback: Optional[str] = None,
    **for_model: Any,
) -> dict:
    """accelerate's function of this name, which Accelerator.load_state calls.

    Models and optimizers come from the daemons, the rest by accelerate. Options for the model
    other than strict, and models on devices that no daemon knows, leave all to accelerate.
    timeout, digest, address, client: see load_into. fallback="native" has accelerate load if no
    daemon can be reached. Returns what accelerate does. Raises ckptd.Error.
    """
    original = _native_fallback.original(_CHECKPOINTING, "load_accelerator_state")
    how = {"timeout": timeout, "digest": digest, "address": address, "client": client}

    def by_daemons() -> tuple:
        for number, model in enumerate(models):
            files = [_numbered("model", number, ".safetensors"), _numbered("pytorch_model", number, ".bin")]
            source = _under_its_names(_first_file(input_dir, files))
            _load_into.load_into(model, source, rename=_rename(model), strict=for_model.get("strict", True), **how)
        for number, optimizer in enumerate(optimizers):
            inner, source = _inner(optimizer), os.path.join(input_dir, _numbered("optimizer", number, ".bin"))
            load_optimizer(_owner(inner, models), inner, source, **how)
        return [], []

    left = models, optimizers
    if models and set(for_model) <= {"strict"} and _may_come_from_daemons(models):
        left = _native_fallback.stand_in("load_accelerator_state", by_daemons, lambda: left, fallback)
    return original(
        input_dir, *left, schedulers, dataloaders, process_index, scaler, map_location, load_kwargs, **for_model
    )


def load_from_checkpoint(
    original: Callable, trainer: Any, checkpoint: str, model: Optional[nn.Module] = None,
    *, fallback: Optional[str] = None, **how: Any,
) -> None:
    """The Trainer's method LOAD_MODEL. how: timeout and so on, as for load_into."""
    model = trainer.model if model is None else model
    source = _first_file(checkpoint, _WEIGHTS)
    if not os.path.isfile(source) or _has_fsdp_folder(checkpoint) or not _is_plain(trainer, model):
        return original(trainer, checkpoint, model)

    def by_daemons() -> None:
        result = _load_into.load_into(model, _under_its_names(source), strict=False, **how)
        _trainer_internals.warn_of(trainer, result)

    _native_fallback.stand_in(
        "the Trainer's model", by_daemons, lambda: original(trainer, checkpoint, model), fallback
    )


def load_optimizer_and_scheduler(
    original: Callable, trainer: Any, checkpoint: Optional[str], *, fallback: Optional[str] = None, **how: Any
) -> None:
    """The Trainer's method LOAD_OPTIMIZER_AND_SCHEDULER. how: see load_from_checkpoint."""
    names = (_trainer_internals.OPTIMIZER, _trainer_internals.SCHEDULER)
    files = [os.path.join(checkpoint or "", name) for name in names]
    if not checkpoint or not all(map(os.path.isfile, files)) or not _is_plain(trainer, trainer.model):
        return original(trainer, checkpoint)

    def by_daemons() -> None:
        load_optimizer(trainer.model, _inner(trainer.optimizer), files[0], **how)
        with _trainer_internals.without_optimizer(trainer):
            original(trainer, checkpoint)

    _native_fallback.stand_in(
        "the Trainer's optimizer", by_daemons, lambda: original(trainer, checkpoint), fallback
    )


def _numbered(stem: str, number: int, ending: str) -> str:
    return f"{stem}_{number}{ending}" if number else f"{stem}{ending}"


def _first_file(folder: Any, names: Sequence[str]) -> str:
    """The first that is there, else the last, which an error then names."""
    paths = [os.path.abspath(os.path.join(folder, name)) for name in names]
    return next(filter(os.path.isfile, paths), paths[-1])


def _under_its_names(path: str) -> str:
    """The source that has a file's own names: of files of torch, daemons leave off prefixes of wrappers."""
    return _source.of_part(path, "all") if path.endswith(".bin") else path


def _rename(model: nn.Module) -> Callable[[str], str]:
    """Makes names of a state dict those of load_into. accelerate saves models as they are wrapped."""
    wrappers, inner = "", model
    while isinstance(inner, DistributedDataParallel):
        wrappers, inner = f"{wrappers}{_DDP}", inner.module
    saved = {name: _checkpoint_names.clean(name[len(wrappers):]) for name in model.state_dict()}
    # The training that was saved may have had more processes than this one, or fewer.
    names = {**{f"{_DDP}{name}": name for name in saved.values()}, **saved}
    return lambda name: names.get(name, name)


def _has_fsdp_folder(checkpoint: str) -> bool:
    return any(_FSDP_WEIGHTS in entry.name for entry in os.scandir(checkpoint) if entry.is_dir())


def _is_plain(trainer: Any, model: nn.Module) -> bool:
    by_others = ("is_fsdp_enabled", "is_fsdp_xla_enabled", "is_deepspeed_enabled")
    return not any(getattr(trainer, name, False) for name in by_others) and _may_come_from_daemons([model])


def _may_come_from_daemons(models: Iterable[nn.Module]) -> bool:
    return {p.device.type for model in models for p in model.parameters()} <= {"cpu", "cuda", "meta"}


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer in accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _owner(optimizer: torch.optim.Optimizer, models: List[nn.Module]) -> nn.Module:
    """The model of an optimizer's parameters, or all of them where it has those of several."""
    wanted = {id(param) for group in optimizer.param_groups for param in group["params"]}
    owners = (model for model in models if wanted <= {id(param) for param in model.parameters()})
    return next(owners, None) or nn.ModuleList(models)
