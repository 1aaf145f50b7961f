"""load_file: whole tensors as a plain dict, like safetensors.torch.load_file."""

import os
from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Union

import torch

from ... import _client, _source
from ..._rpc import Deadline
from ..._shard import Shard
from ..._view import View, through
from ..compat import _torch_internals
from . import _memory
from ._gc_pause import gc_paused


def load_file(
    source: Union[str, os.PathLike],
    device: Union[str, torch.device] = "cpu",
    *,
    mode: str = "auto",
    dtype: Union[torch.dtype, str, None] = None,
    keep_fp32: Sequence[str] = (),
    layout: _client.Layout = None,
    part: Optional[str] = None,
    view: View = None,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
) -> Dict[str, torch.Tensor]:
    """name -> tensor over the daemon's memory, further names of tied tensors included.

    device: the kind of memory in which the daemon keeps shards, "cpu" or "cuda". Nothing is moved.
    mode "auto" is "private" in host memory: tensors may be written, the daemon's copy
    stays as it is. In GPU memory it is "shared", and nothing is copied. Writing a tensor
    in mode "shared" ends the process with SIGSEGV, or the GPU's context with
    a fault, because torch has no read-only tensors. With a `layout` of rules each rank
    gets its local parts. Every rank of the daemon's group gets its shard of one load.
    part, view: see Client.load. timeout: seconds for everything, waiting for other ranks included.
    """
    source = through(_source.of_part(source, part), view)
    how = _LoadOptions(torch.device(device), mode, dtype, keep_fp32, layout, digest)
    shard = _attach(source, how, timeout, address, client)
    with gc_paused():
        return _tensors(shard)


@dataclass(frozen=True)
class _LoadOptions:
    """load_file's arguments of these names."""

    device: torch.device
    mode: str
    dtype: Union[torch.dtype, str, None]
    keep_fp32: Sequence[str]
    layout: _client.Layout
    digest: bool


def _attach(source, how: _LoadOptions, timeout: float, address, client) -> Shard:
    deadline = Deadline(timeout)
    own = client or _client.connect(address, min(_client.CONNECT_SECONDS, timeout))
    mode = how.mode
    try:
        if how.device.type != "cpu" and own.device(deadline.for_call()) is None:
            _memory.check_device(str(source), how.device, torch.device("cpu"), None)
        if mode == "auto":
            mode = "private" if how.device.type == "cpu" else "shared"
        checkpoint = own.load(
            source,
            layout=how.layout,
            mode=mode,
            dtype=how.dtype,
            keep_fp32=how.keep_fp32,
            timeout=deadline.for_call(),
            digest=how.digest,
        )
        with gc_paused():
            shard = own.acquire(checkpoint, mode, timeout=deadline.for_call())
    finally:
        if client is None:
            own.close()
    _memory.check_device(str(source), how.device, _memory.device_of(shard), shard.device)
    return shard


def _tensors(shard: Shard) -> Dict[str, torch.Tensor]:
    table = shard.table
    with _torch_internals.low_overhead_dispatch():
        tensors = dict(zip(table.names, _memory.whole_tensors(shard)))
    for alias, index in table.aliases.items():
        tensors[alias] = tensors[table.names[index]]
    return tensors
