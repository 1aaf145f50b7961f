"""load_file: whole tensors as a plain dict, as safetensors.torch.load_file gives."""

import os
from typing import Dict, Optional, Sequence, Union

import torch

from .. import _client
from .._errors import Unimplemented
from . import _memory, _private


def load_file(
    source: Union[str, os.PathLike],
    device: Union[str, torch.device] = "cpu",
    *,
    mode: str = "auto",
    dtype: Optional[torch.dtype] = None,
    keep_fp32: Sequence[str] = (),
    layout=None,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
) -> Dict[str, torch.Tensor]:
    """name -> tensor over the daemon's memory, further names of tied tensors included.

    mode "auto" is "private": tensors may be written, the daemon's copy stays as it
    is. Under "shared" writing one ends the process with SIGSEGV, because torch has
    no read-only tensors. With a `layout` of rules each rank gets its local parts.
    Every rank of the daemon's group gets its shard of one load.
    """
    if torch.device(device).type != "cpu":
        raise Unimplemented(
            f"loading {source} to {device}: this daemon's memory is host memory; load to "
            "'cpu' and move what you need",
            "DEVICE_UNSUPPORTED",
        )
    own = client or _client.connect(address, min(10.0, timeout))
    try:
        mode = "private" if mode == "auto" else mode
        checkpoint = own.load(
            source,
            layout=layout,
            mode=mode,
            dtype=dtype,
            keep_fp32=keep_fp32,
            timeout=timeout,
            digest=digest,
        )
        shard = own.acquire(checkpoint, mode)
    finally:
        if client is None:
            own.close()
    table, tensors = shard.table, {}
    with _private.quick_dispatch():
        for i, name in enumerate(table.names):
            shape = table.shapes[i]
            tensors[name] = _memory.storage_of(shard.array, table, i).as_strided(
                shape, _memory.contiguous_strides(shape)
            )
    for alias, index in table.aliases.items():
        tensors[alias] = tensors[table.names[index]]
    return tensors
