"""shard_checkpoint, which accelerate had until its version 1."""

import math
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ..torch.load import _memory
from ..torch.load._file_tensor import FileTensor
from ..torch.load._lazy_state_dict import LazyStateDict


def shard_checkpoint(
    state_dict: Mapping[str, Any],
    max_shard_size: Union[int, str] = "10GB",
    weights_name: str = "pytorch_model.bin",
) -> Tuple[Dict[str, Mapping[str, Any]], Optional[dict]]:
    """Splits a state dict by size: (file name -> its part, index), as accelerate 0.34 did.

    max_shard_size: bytes, or a text such as "5GB" or "200MiB". Tensors go in order into parts
    that stay below it, unless a single tensor is larger. Tensors of one storage go together and
    count once. Each tensor on meta counts, because it has no storage. The index is the content of
    an index.json, or None if one part, under weights_name, holds all. Parts of a LazyStateDict
    are lazy as well, and no byte moves. Raises ValueError for a size that cannot be read.
    accelerate 1 uses huggingface_hub's split_torch_state_dict_into_shards, whose parts differ.
    """
    from accelerate.utils.modeling import convert_file_size_to_int

    limit = convert_file_size_to_int(max_shard_size)
    lazy = isinstance(state_dict, LazyStateDict)
    parts: List[Dict[str, Any]] = [{}]
    open_size: Union[int, float] = 0
    total: Union[int, float] = 0
    part_of: Dict[Any, Dict[str, Any]] = {}  # storage -> the part that has it
    for name, value in (state_dict.entries if lazy else state_dict).items():
        if isinstance(value, str):  # quantisers put strings there
            continue
        storage = _storage(value)
        if storage in part_of:
            part_of[storage][name] = value
            continue
        size = _size(value)
        if open_size + size > limit:  # closes the open part even where it is empty
            parts.append({})
            open_size = 0
        parts[-1][name] = value
        open_size, total = open_size + size, total + size
        if storage is not None:
            part_of[storage] = parts[-1]
    made = [state_dict.with_entries(part) if lazy else part for part in parts]
    return _named(made, weights_name, total)


def _named(parts: List[Mapping[str, Any]], weights_name: str, total: Union[int, float]):
    if len(parts) == 1:
        return {weights_name: parts[0]}, None
    stem, dot, suffix = weights_name.rpartition(".")
    files = {
        f"{stem}-{number:05d}-of-{len(parts):05d}{dot}{suffix}": part
        for number, part in enumerate(parts, 1)
    }
    weight_map = {name: file for file, part in files.items() for name in part}
    return files, {"metadata": {"total_size": total}, "weight_map": weight_map}


def _size(value: Any) -> Union[int, float]:
    """Bytes as accelerate counts them. A bool is an eighth."""
    from accelerate.utils.modeling import dtype_byte_size

    if isinstance(value, FileTensor):
        dtype = _memory.dtype_of(value.dtype, value.name)
        return math.prod(value.shape) * dtype_byte_size(dtype)
    return value.numel() * dtype_byte_size(value.dtype)


def _storage(value: Any) -> Any:
    """Identity of a tensor's storage, or None if it has none."""
    from accelerate.utils.modeling import id_tensor_storage

    if isinstance(value, FileTensor) or value.is_meta:
        return None
    return id_tensor_storage(value)
