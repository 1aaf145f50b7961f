"""accelerate's functions that load what it saved of an FSDP training, fed by the daemons."""

import os
from typing import Any, Optional

import torch

from ... import _client
from ..._errors import FailedPrecondition
from ..._rpc import Deadline
from .._daemon import connected, rank_and_size
from ..compat import _native_fallback
from ..load import _load_into
from ..load._result import LoadResult
from . import _load_optimizers

_MODULE = "accelerate.utils.fsdp_utils"
_MODEL, _OPTIMIZER = "pytorch_model_fsdp", "optimizer"


def load_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: torch.nn.Module,
    input_dir: str,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> Any:
    """accelerate's function of this name, at any number of ranks.

    Takes what accelerate saves as FULL_STATE_DICT, as LOCAL_STATE_DICT, and as SHARDED_STATE_DICT, by
    DCP or, with use_dcp=False, in a file per rank. What only accelerate's own function knows is left
    to it: adapter_only, and models that are saved beside a first one in a file per rank.
    Returns missing_keys and unexpected_keys. timeout, digest, address, client: see load_into.
    fallback="native" has accelerate load if no daemon can be reached. Raises ckptd.Error.
    """
    source = _source_of(fsdp_plugin, input_dir, _MODEL, model_index, use_dcp)
    original = _native_fallback.original(_MODULE, "load_fsdp_model")

    def by_accelerate() -> Any:
        return original(fsdp_plugin, accelerator, model, input_dir, model_index, adapter_only, use_dcp)

    def by_daemons() -> Any:
        accelerator.wait_for_everyone()
        result = _load_into.load_into(
            model, source, timeout=timeout, digest=digest, address=address, client=client
        )
        accelerator.wait_for_everyone()
        return result

    if source is None or adapter_only:
        return by_accelerate()
    return _native_fallback.stand_in("load_fsdp_model", by_daemons, by_accelerate, fallback)


def load_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    input_dir: str,
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> None:
    """accelerate's function of this name, at any number of ranks. See load_fsdp_model."""
    source = _source_of(fsdp_plugin, input_dir, _OPTIMIZER, optimizer_index, use_dcp)
    original = _native_fallback.original(_MODULE, "load_fsdp_optimizer")

    def by_accelerate() -> None:
        original(fsdp_plugin, accelerator, optimizer, model, input_dir, optimizer_index, adapter_only, use_dcp)

    def by_daemons() -> None:
        accelerator.wait_for_everyone()
        inner = getattr(optimizer, "optimizer", optimizer)
        load_optimizer(model, inner, source, timeout, digest, address, client)
        accelerator.wait_for_everyone()

    if source is None or adapter_only:
        by_accelerate()
    else:
        _native_fallback.stand_in("load_fsdp_optimizer", by_daemons, by_accelerate, fallback)


def load_optimizer(model, optimizer, source, timeout: float, digest: bool, address, client) -> LoadResult:
    """The state of one optimizer from a source that holds nothing else. Raises ckptd.Error."""
    deadline = Deadline(timeout)
    with connected(address, client, deadline, rank_and_size()[0]) as own:
        with _load_into.participation(source, False, deadline, address, own) as (_, participant):
            found = own.inspect(source, timeout=deadline.for_call(), values=True)
            matched = _load_optimizers.match(model, [optimizer], found, None, strict=True)
            how = _load_into.LoadOptions("auto", None, digest, participant=participant, identity=found.identity)
            return _load_optimizers.fill(own, source, found, matched, how, deadline)


def _source_of(plugin: Any, folder: str, stem: str, index: int, use_dcp: bool) -> Optional[str]:
    """The path of what accelerate saved, or None for what only accelerate reads."""
    kind = getattr(plugin.state_dict_type, "name", str(plugin.state_dict_type))
    folder = os.path.abspath(folder)
    if kind == "FULL_STATE_DICT":
        return os.path.join(folder, f"{stem}_{index}.bin" if index else f"{stem}.bin")
    if kind not in ("SHARDED_STATE_DICT", "LOCAL_STATE_DICT"):
        raise FailedPrecondition(
            f"loading {folder}: the plugin's state_dict_type is {kind}, which accelerate does not save; "
            "set the one that the checkpoint was saved with",
            "LAYOUT_INVALID",
        )
    if use_dcp and (kind, stem) != ("LOCAL_STATE_DICT", _MODEL):
        named = f"{stem}_{index}"
        return folder if os.path.basename(folder) == named else os.path.join(folder, named)
    if index:
        return None
    return folder if stem == _MODEL else f"{folder}#optimizer"
