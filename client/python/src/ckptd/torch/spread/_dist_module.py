"""DistModule: a module filled from rank 0's state dict by the daemons."""

from typing import Any, List, Mapping, Optional, Tuple

import torch
from torch import nn

from ... import _client
from .. import _daemon
from ..agree import _agree
from ..compat import _native, _private, _wrapper
from ..load import _result, _tied
from ..load._targets import Target
from . import _module
from ._spread import Given, Have, Options, Wanted


def own_dtype(target: Target, source: torch.dtype) -> torch.dtype:
    """The receiving side says what it wants; the daemons cast."""
    return target.tensor.dtype


class DistModule(_wrapper.Wrapper):
    """A module whose state dict needs to be there on rank 0 only.

    Wraps `module`: attributes, what is registered, names in state_dict() and in
    named_parameters(), also of modules around it, and calls are the wrapped module's.
    allow_rank0_values: see fsdp2_load_full_state_dict. timeout, digest, address, client:
    see load_into. fallback="native": torch's set_model_state_dict when no daemon can be
    reached. tied: as of set_model_state_dict.
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
        _native.check(fallback)
        _tied.check(tied)
        of = _native.named(fallback, _tied.said(tied))
        own = Options(timeout, address, client, digest, of, allow_rank0_values, tied)
        super().__init__(module)
        self.__dict__["spread_options"] = (own, fallback)

    def load_state_dict(self, state_dict: Given, strict: bool = True, assign: bool = False) -> Any:
        """Spreads parameters and persistent buffers of rank 0's `state_dict` over all ranks.

        Other ranks may pass `{}`. state_dict may be a LazyStateDict or the path of a
        checkpoint as well. Types are the module's. `assign` changes nothing: parameters
        stay the same objects in any case, and their memory becomes the daemon's.

        Returns missing and unexpected keys, on every rank alike; with strict they are a
        RuntimeError, on every rank, as in Module.load_state_dict. Raises ckptd.Error.
        """
        own, fallback = self.spread_options
        doing = "DistModule.load_state_dict"
        with _agree.part_of(doing, _agree.Near(own.address, own.client)):
            return _native.stand_in(
                doing,
                lambda: _module.finish(self, _fill(self.module, state_dict, strict, own), strict),
                lambda: _native_fill(self.module, state_dict, strict, own),
                fallback,
            )


def _fill(module: nn.Module, given: Given, strict: bool, options: Options) -> Any:
    def check(have: Mapping[str, Have], wanted: Wanted) -> Tuple[List[str], List[str]]:
        metadata = _private.metadata_of(given)
        missing, unexpected = _module.compare_names(have, wanted, metadata)
        sizes = _module.mismatched(have, wanted.targets)
        _result.raise_as_torch(module, *((missing, unexpected) if strict else ([], [])), sizes)
        return missing, unexpected

    doing = "DistModule.load_state_dict"
    made = _module.spread_over(doing, module, given, check, lambda _: own_dtype, options)
    return _module.incompatible(made.missing, made.unexpected)


def _native_fill(module: nn.Module, given: Given, strict: bool, own: Options) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    together = _daemon.rank_and_size()[1] > 1  # a process that is alone may have no process group
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=together, strict=strict)
    where = ("torch.distributed.checkpoint.state_dict", "set_model_state_dict")
    whole = _module.dict_for_original("DistModule.load_state_dict", module, given, own)
    return _native.original(*where)(module, dict(whole), options=options)
