"""load_state_dict: accelerate's function of this name, as a lazy dict."""

import os
from typing import Any, Dict, Optional, Union

import torch

from ... import _client, _source
from ..._rpc import Deadline
from .. import _daemon
from ..agree import _agreement
from ..compat import _native_fallback
from . import _devices, _file_tensor, _native_files
from ._lazy_state_dict import LazyStateDict


def load_state_dict(
    checkpoint_file: Union[str, os.PathLike],
    device_map: Optional[_devices.DeviceMap] = None,
    *,
    every_rank: bool = False,
    timeout: float = 600.0,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
    variant: Optional[str] = None,
    part: Optional[str] = None,
) -> Union[LazyStateDict, Dict[str, Any]]:
    """accelerate's function of this name, for a job whose rank 0 alone reads.

    On rank 0 (of the process group, or of the launcher's environment) a LazyStateDict of
    a file, of an index or of a folder; `{}` on other ranks unless every_rank.
    device_map: the device of all values, or module name -> device as accelerate applies it: a
    single device holds all values; of several, names under none go to the host. A device is a
    torch.device, its text, or the number of a GPU. A file of torch that holds more than tensors
    is read by torch.load on the host, as in accelerate. variant, part: see load_into.
    fallback="native" has accelerate read if no daemon can be reached.

    Raises accelerate's errors: FileNotFoundError, OSError for a file whose metadata names no
    format, ValueError for a format other than PyTorch's and for an unknown device; else
    ckptd.Error.
    """
    path = os.fspath(_source.of_part(_source.of_variant(checkpoint_file, variant), part))
    rank, _ = _daemon.rank_and_size()
    if rank != 0 and not every_rank:
        return {}
    with _agreement.local_preparation(f"load_state_dict of {path}", _agreement.OwnDaemon(address, client)):
        path = _source.local_path(path)
        devices = None if device_map is None else _devices.by_module(device_map)
        return _native_fallback.stand_in(
            "load_state_dict",
            lambda: _open(path, devices, rank, timeout, address, client),
            lambda: _native_files.read(path, lambda file: _load_by_accelerate(file, devices)),
            fallback,
        )


def _load_by_accelerate(path: str, devices) -> Dict[str, Any]:
    """accelerate's own function, for one file. It knows neither indices nor folders."""
    as_there = None if devices is None else _devices.for_accelerate(devices)
    return _native_fallback.original("accelerate.utils.modeling", "load_state_dict")(path, as_there)


def _open(path, devices, rank: int, timeout: float, address, client) -> Union[LazyStateDict, Dict[str, Any]]:
    deadline = Deadline(timeout)
    with _daemon.connected(address, client, deadline, rank) as own:
        found = _file_tensor.inspect(own, path, deadline)
    if found.value_count + found.opaque_count > 0 and os.path.isfile(path) and found.format == "torch":
        return torch.load(path, map_location=torch.device("cpu"), weights_only=True)
    names = [*found.tensors, *found.aliases]
    places = {} if devices is None else _devices.by_name(names, devices)
    for device in set(places.values()):
        torch.empty(0, device=device)  # raises torch's error for a missing device now, not at a look-up
    entries = _file_tensor.entries_in(found, places)
    return LazyStateDict(entries, address=address, client=client, timeout=timeout)
