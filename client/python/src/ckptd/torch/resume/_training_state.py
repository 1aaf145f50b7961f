"""load_training_state: a model, its optimizers and the values beside them, from one checkpoint."""

import functools
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from ... import _client, _source
from ..._errors import InvalidArgument, NotFound
from ..._rpc import Deadline
from .._daemon import connected, rank_and_size
from ..load import _load_into
from ..load._result import LoadResult
from . import _load_optimizers, _plain_values
from ._optimizer_match import ParamNames

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]
_OPTIMIZER, _EXTRA = "optimizer", "extra"


@dataclass
class TrainingState:
    """Outcome of load_training_state.

    model, optimizer: as load_into has it, for the parameters and for the states of all optimizers;
    optimizer.missing: parameters without a state; optimizer.unexpected: tensors of the file that
    belong to no parameter here. extra: what the checkpoint holds besides, as plain values and
    tensors by name. opaque: path of an object that was not built -> its class.
    """

    model: LoadResult
    optimizer: Optional[LoadResult] = None
    extra: Dict[str, Any] = field(default_factory=dict)
    opaque: Dict[str, str] = field(default_factory=dict)


def load_training_state(
    model: nn.Module,
    optimizers: Optimizers,
    source: Union[str, os.PathLike],
    *,
    extra: Optional[Mapping[str, Any]] = None,
    optimizer_source: Union[str, os.PathLike, None] = None,
    param_names: Optional[ParamNames] = None,
    strict: bool = True,
    mode: str = "auto",
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    **for_model: Any,
) -> TrainingState:
    """Fills a model and its optimizers from a checkpoint of a training.

    Parameters become the daemon's memory, as by load_into, and so do the states of the optimizers:
    each rank gets the states of its shards, however many ranks saved them. Call it on every rank,
    after fully_shard or another wrapper; the optimizers may be new or used. The next step is that
    of a training that was never stopped.

    source: a file or a folder with both: a torch file ("model", "optimizer"), a folder of torch's
    distributed checkpoints, of accelerate, or of the Trainer. optimizer_source: where the optimizers
    are, if elsewhere.
    optimizers: one or several, in the order of the file. Their parameters are found by name, where
    the file has names; else by position, as Optimizer.load_state_dict does. param_names: the names
    for the file's numbers, a list or a dict, to match such a file by name.
    Hyperparameters, such as lr, become the file's. Those that the file lacks stay.
    extra: name -> object with load_state_dict, such as a scheduler: it gets the file's value of that
    name. All such values are in the result as well.
    strict: it is an error if a trained parameter has no state while others have, or if `extra` has a
    name that the checkpoint lacks; for the model, see load_into.
    mode, timeout, digest, address, client: see load_into. mode "shared" is refused, because
    optimizers write. for_model: further arguments of load_into, such as init_buffers.

    Raises ckptd.Error, on all ranks where one fails before the states are placed. The optimizers are
    then as they were; the model may be loaded.
    """
    optimizers = _listed(optimizers)
    if mode == "shared":
        raise InvalidArgument(
            "filling optimizers with mode='shared': that memory is read-only, and optimizers write "
            "their states; use mode='private'",
            "INVALID_REQUEST",
        )
    deadline = Deadline(timeout)
    where = _source.of_part(source, _OPTIMIZER) if optimizer_source is None else optimizer_source
    with connected(address, client, deadline, rank_and_size()[0]) as own:
        barrier = bool(for_model.pop("barrier", False))
        # One participation: a rank that fails before it loads the model reaches those that load it already.
        with _load_into.participation(source, barrier, deadline, address, own, needs_all=True) as (_, participant):
            found = own.inspect(where, timeout=deadline.for_call(), values=True)
            match = functools.partial(_load_optimizers.match, model, optimizers, found, param_names, strict)
            match()
            rest = _plain_values.read(own, source, deadline)
            takers = _takers(extra, rest, strict)
            options = {"strict": strict, "mode": mode, "digest": digest, "_participant": participant, **for_model}
            filled = _load_into.load_into(model, source, client=own, timeout=deadline.for_call(), **options)
        with _load_into.participation(where, False, deadline, address, own) as (_, participant):
            how = _load_into.LoadOptions(mode, None, digest, participant=participant, identity=found.identity)
            result = _load_optimizers.fill(own, where, found, match(), how, deadline)
    for taker, value in takers:
        taker.load_state_dict(value)
    return TrainingState(filled, result, rest.values, rest.opaque)


def _listed(optimizers: Optimizers) -> List[torch.optim.Optimizer]:
    listed = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    for each in listed:
        if not isinstance(each, torch.optim.Optimizer):
            raise TypeError(
                f"filling optimizers: one is of type {type(each).__name__}, no torch.optim.Optimizer; pass "
                "load_training_state(model, optimizer, path)"
            )
    return listed


def _takers(extra: Optional[Mapping[str, Any]], rest: "_plain_values.Rest", strict: bool) -> List[Tuple[Any, Any]]:
    """(object, its value) for each name of `extra` that the checkpoint has."""
    takers = []
    for name, taker in (extra or {}).items():
        if name in rest.values:
            takers.append((taker, rest.values[name]))
        elif strict:
            raise NotFound(
                f"resuming {name}: the checkpoint has no value of that name, only "
                f"{', '.join(sorted(rest.values)) or 'none'}; leave it out, or pass strict=False",
                "VALUE_NOT_FOUND",
                {"name": name},
            )
    return takers
