"""DistModule: a module filled from rank 0's state dict by the daemons."""

from typing import Any, List, Mapping, Optional, Tuple

import torch
from torch import nn

from ... import _client
from .. import _daemon
from ..agree import _agreement
from ..compat import _native_fallback, _torch_internals, _transparent_module
from ..load import _result, _tied_weights
from ..load._targets import Target
from . import _spread_module
from ._spread import Available, RequestedTensors, SpreadOptions, StateSource


def own_dtype(target: Target, source: torch.dtype) -> torch.dtype:
    """The receiver's dtype. The daemons cast."""
    return target.tensor.dtype


class DistModule(_transparent_module.TransparentModule):
    """A module whose state dict is needed on rank 0 only.

    Wraps `module` and forwards to it: attributes, registrations, calls, and names in
    state_dict() and named_parameters(), also for modules around it. allow_rank0_values: see
    fsdp2_load_full_state_dict. timeout, digest, address, client: see load_into.
    fallback="native": torch's set_model_state_dict if no daemon can be reached. tied: see
    set_model_state_dict.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        allow_rank0_values: bool = False,
        timeout: float = 600.0,
        digest: bool = True,
        address: Optional[str] = None,
        client: Optional[_client.Client] = None,
        fallback: Optional[str] = None,
        tied: Optional[str] = None,
    ) -> None:
        _native_fallback.check(fallback)
        _tied_weights.check(tied)
        must_match = _native_fallback.named(fallback, _tied_weights.describe(tied))
        own = SpreadOptions(timeout, address, client, digest, must_match, allow_rank0_values, tied)
        super().__init__(module)
        self.__dict__["spread_options"] = (own, fallback)

    def load_state_dict(self, state_dict: StateSource, strict: bool = True, assign: bool = False) -> Any:
        """Spreads parameters and persistent buffers of rank 0's `state_dict` over all ranks.

        Other ranks may pass `{}`. state_dict may also be a LazyStateDict or the path of a
        checkpoint. Dtypes are the module's. `assign` has no effect: parameters stay the same
        objects in any case, and their memory becomes the daemon's.

        Returns missing and unexpected keys, equal on every rank. With strict they are a
        RuntimeError on every rank, as in Module.load_state_dict. Raises ckptd.Error.
        """
        own, fallback = self.spread_options
        doing = "DistModule.load_state_dict"
        with _agreement.collective_call(doing, _agreement.OwnDaemon(own.address, own.client)):
            return _native_fallback.stand_in(
                doing,
                lambda: _spread_module.finish(self, _fill(self.module, state_dict, strict, own), strict),
                lambda: _native_fill(self.module, state_dict, strict, own),
                fallback,
            )


def _fill(module: nn.Module, given: StateSource, strict: bool, options: SpreadOptions) -> Any:
    def check(available: Mapping[str, Available], wanted: RequestedTensors) -> Tuple[List[str], List[str]]:
        metadata = _torch_internals.metadata_of(given)
        missing, unexpected = _spread_module.compare_names(available, wanted, metadata)
        sizes = _spread_module.shape_mismatches(available, wanted.targets)
        _result.raise_as_torch(module, *((missing, unexpected) if strict else ([], [])), sizes)
        return missing, unexpected

    doing = "DistModule.load_state_dict"
    made = _spread_module.spread_over(doing, module, given, check, lambda _: own_dtype, options)
    return _spread_module.incompatible(made.missing, made.unexpected)


def _native_fill(module: nn.Module, given: StateSource, strict: bool, own: SpreadOptions) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    together = _daemon.rank_and_size()[1] > 1  # a single process may have no process group
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=together, strict=strict)
    where = ("torch.distributed.checkpoint.state_dict", "set_model_state_dict")
    whole = _spread_module.dict_for_original("DistModule.load_state_dict", module, given, own)
    return _native_fallback.original(*where)(module, dict(whole), options=options)
