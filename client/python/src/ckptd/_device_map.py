"""Device maps: which device each module of a big model goes to, planned by a daemon."""

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from . import _layout, _proto
from ._errors import InvalidArgument
from ._source import Path, source_text

Device = Union[int, str]

_WAYS = {"auto": 0, "balanced": 1, "balanced_low_0": 2, "sequential": 3}


@dataclass(frozen=True)
class DeviceMap:
    """A device map like that of accelerate's infer_auto_device_map, from a checkpoint's names and sizes.

    modules: the map itself, as accelerate takes it: GPUs are numbers, beside "cpu" and
    "disk"; the name "" stands for the whole model. placed, limits: bytes per device;
    "disk" has no limit. warnings: about patterns that match nothing, for people.
    """

    modules: Dict[str, Device]
    placed: Dict[Device, int]
    limits: Dict[Device, int]
    total_bytes: int
    largest_layer_bytes: int
    warnings: Tuple[str, ...] = ()


def request_for(
    source: Path,
    way: str,
    max_memory: Union[str, Mapping[Device, Union[int, str]]],
    no_split: Sequence[str],
    order: Sequence[str],
    tied: Optional[Mapping[str, str]],
    dtype: Any,
    keep_fp32: Sequence[str],
) -> Any:
    if way not in _WAYS:
        raise InvalidArgument(
            f"planning devices: there is no way {way!r}; use one of {', '.join(_WAYS)}",
            "INVALID_REQUEST",
        )
    request = _proto.message("PlanLoadRequest")()
    request.spec.source = source_text(source)
    rules = request.device_map
    rules.way = _WAYS[way]
    if not isinstance(max_memory, str):
        max_memory = ",".join(f"{device}={size}" for device, size in max_memory.items())
    rules.max_memory = max_memory
    rules.no_split.extend(no_split)
    rules.order.extend(order)
    rules.tied.update(tied or {})
    _layout.fill_policy(request.spec.dtype_policy, dtype, keep_fp32)
    return request


def device_map_of(message: Any) -> DeviceMap:
    return DeviceMap(
        modules={module.name: _device(module.device) for module in message.modules},
        placed={_device(each.device): each.placed_bytes for each in message.devices},
        limits={
            _device(each.device): each.limit_bytes
            for each in message.devices
            if each.device != "disk"
        },
        total_bytes=message.total_bytes,
        largest_layer_bytes=message.largest_layer_bytes,
        warnings=tuple(message.warnings),
    )


def _device(name: str) -> Device:
    return int(name) if name.isdecimal() else name
