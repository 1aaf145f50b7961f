"""Normalises devices, which callers can spell in several ways."""

from typing import Any, Dict, Iterable, Mapping, Union

import torch

Device = Union[int, str, torch.device]
DeviceMap = Union[Device, Mapping[str, Device]]
DISK = "disk"


def device_of(given: Device) -> Union[str, torch.device]:
    """The device for a spelling: "cpu:0" is the host, a number is a GPU, "cuda" the current GPU.

    "disk" is returned as it is. Raises ValueError for text that names no device.
    """
    if isinstance(given, torch.device):
        found = given
    elif given == DISK:
        return DISK
    elif isinstance(given, int) and not isinstance(given, bool):
        found = torch.device("cuda", given)
    elif isinstance(given, str) and given.isdecimal():
        found = torch.device("cuda", int(given))
    else:
        found = _parsed(given)
    if found.type in ("cpu", "meta"):
        return torch.device(found.type)
    if found.type == "cuda" and found.index is None:
        current = torch.cuda.current_device() if torch.cuda.is_available() else 0
        return torch.device("cuda", current)
    return found


def _parsed(given: Any) -> torch.device:
    try:
        return torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"reading the device {given!r}: it names none; use a torch.device, its text such as "
            "'cpu' or 'cuda:1', the number of a GPU, 'disk', or a map of module names to these "
            "(infer_auto_device_map makes one)"
        ) from error


def by_module(device_map: DeviceMap) -> Dict[str, Union[str, torch.device]]:
    """module name -> device. A single device is returned under "", the whole model."""
    if not isinstance(device_map, Mapping):
        return {"": device_of(device_map)}
    return {module: device_of(device) for module, device in device_map.items()}


def for_accelerate(modules: Mapping[str, Union[str, torch.device]]) -> Dict[str, Union[int, str]]:
    """A map in accelerate's spelling, in which GPUs are numbers."""
    return {
        module: each.index if isinstance(each, torch.device) and each.type == "cuda" else str(each)
        for module, each in modules.items()
    }


def by_name(names: Iterable[str], device_map: DeviceMap) -> Dict[str, torch.device]:
    """name of a tensor -> device, by the rule of accelerate's load_state_dict.

    Raises ValueError if all of them would be on disk, as accelerate does.
    """
    modules = by_module(device_map)
    devices = set(modules.values())
    if devices == {DISK}:
        raise ValueError(
            "reading a state dict onto the device 'disk': it has values in memory alone; leave "
            "device_map out, and look at values one by one"
        )
    if len(devices) == 1:
        return dict.fromkeys(names, devices.pop())
    found = dict.fromkeys(names, torch.device("cpu"))
    for module, device in modules.items():
        if device != DISK:
            found.update((n, device) for n in found if n == module or n.startswith(module + "."))
    return found
