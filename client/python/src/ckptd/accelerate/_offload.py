"""load_offloaded_weights, also for offload folders whose index names files of checkpoints."""

import os
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from .. import _client
from ..torch.compat import _native_fallback
from ..torch.load import _lazy_state_dict, _load_state_dict

Index = Mapping[str, Mapping[str, Any]]


def load_offloaded_weights(
    model: nn.Module,
    index: Optional[Index],
    offload_folder: Union[str, os.PathLike],
    *,
    timeout: float = 600.0,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> None:
    """accelerate's function of this name, extended to entries that name a safetensors file.

    Such entries come from this rank's daemon. They become the model's without a copy if its
    dtype is the file's. accelerate's own function reads entries in .dat files. Tensors take the
    model's dtypes, on the host. timeout, address, client: see load_into. fallback="native" has
    safetensors read if no daemon can be reached. Raises accelerate's errors: FileNotFoundError
    for a missing file, KeyError for a missing tensor; else ckptd.Error.
    """
    linked = {name: e for name, e in (index or {}).items() if e.get("safetensors_file")}
    written = {name: entry for name, entry in (index or {}).items() if name not in linked}
    _native_fallback.original("accelerate.utils.modeling", "load_offloaded_weights")(
        model, written, offload_folder
    )
    if not linked:
        return
    own_daemon = {"timeout": timeout, "address": address, "client": client}
    values = _native_fallback.stand_in(
        "load_offloaded_weights",
        lambda: _from_daemon(linked, own_daemon),
        lambda: _from_files(linked),
        fallback,
    )
    from accelerate.utils import set_module_tensor_to_device

    for name, value in values:
        if "dtype" in linked[name]:
            value = value.to(getattr(torch, linked[name]["dtype"]))
        set_module_tensor_to_device(model, name, "cpu", value=value)


def _from_daemon(linked: Index, own_daemon: Dict[str, Any]) -> Iterator[Tuple[str, torch.Tensor]]:
    files = sorted({entry["safetensors_file"] for entry in linked.values()})
    held = {file: _load_state_dict.load_state_dict(file, every_rank=True, **own_daemon).entries for file in files}
    entries = {
        name: held[entry["safetensors_file"]][entry.get("weight_name", name)]
        for name, entry in linked.items()
    }
    return _lazy_state_dict.LazyStateDict(entries, **own_daemon).walk()


def _from_files(linked: Index) -> Iterator[Tuple[str, torch.Tensor]]:
    from accelerate.utils import OffloadedWeightsLoader

    return ((name, value) for name, value in OffloadedWeightsLoader(index=linked).items())
