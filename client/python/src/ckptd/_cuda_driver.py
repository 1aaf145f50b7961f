"""NVIDIA's driver for a client: errors, visible GPUs, contexts.

Uses cuda-bindings (`pip install ckptd[cuda]`), which is imported on first use.
"""

import functools
import importlib.util
import uuid
from typing import List, NamedTuple

from ._errors import FailedPrecondition, ResourceExhausted, Unavailable

_OUT_OF_MEMORY = 2  # CUresult


def importable() -> bool:
    """Whether cuda-bindings is installed. Does not import it."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except (ImportError, ValueError):  # no package "cuda", or one without a spec
        return False


@functools.lru_cache(maxsize=None)
def driver():
    """NVIDIA's module, its driver initialised. Raises FailedPrecondition NO_DEVICE."""
    try:
        from cuda.bindings import driver as cu

        (result,) = cu.cuInit(0)
        problem = None if int(result) == 0 else result.name
    except (ImportError, OSError, RuntimeError) as error:  # a library is missing or too old
        problem = str(error) or type(error).__name__
    if problem is None:
        return cu
    raise FailedPrecondition(
        f"opening the CUDA driver: {problem}; the daemon keeps shards in GPU memory, so this "
        "process needs NVIDIA's driver and the daemon's GPU: look at nvidia-smi, and at the "
        "GPUs this container was given",
        "NO_DEVICE",
    )


def ask(result: tuple, doing: str, device: str):
    """The value of a driver call's result (error, *values). Raises for an error."""
    error, *values = result
    if int(error) == 0:
        return values[0] if values else None
    cu, facts = driver(), {"device": device}
    sentence = cu.cuGetErrorString(error)[1]
    said = f"{error.name} ({sentence.decode() if sentence else 'no description'})"
    text = f"mapping a shard: {doing} on {device}: {said}"
    if int(error) == _OUT_OF_MEMORY:
        raise ResourceExhausted(
            f"{text}; end what else uses the GPU, or use mode 'shared' or 'exclusive', which "
            "need no memory of their own",
            "NO_MEMORY",
            facts,
        )
    raise Unavailable(
        f"{text}; look at nvidia-smi and at the kernel's log for Xid messages",
        "DEVICE_FAILED",
        facts,
    )


class Device(NamedTuple):
    """A GPU that this process sees."""

    uuid: str
    ordinal: int  # counted as PyTorch counts, after CUDA_VISIBLE_DEVICES
    handle: object  # CUdevice


def visible_devices() -> List[Device]:
    cu = driver()
    # If a visible device is a slice of a GPU, version 2 gives the UUID of the slice.
    get_uuid = getattr(cu, "cuDeviceGetUuid_v2", cu.cuDeviceGetUuid)
    found = []
    for ordinal in range(ask(cu.cuDeviceGetCount(), "counting GPUs", "this machine")):
        what = f"GPU {ordinal}"
        handle = ask(cu.cuDeviceGet(ordinal), "opening it", what)
        raw = bytes(ask(get_uuid(handle), "asking for its UUID", what).bytes)
        name = bytes(ask(cu.cuDeviceGetName(256, handle), "asking for its name", what))
        found.append(Device(f"{_prefix(name)}-{uuid.UUID(bytes=raw)}", ordinal, handle))
    return found


def reaches(device: Device, other: Device) -> bool:
    """Whether `device` can access the memory of the other one (NVLink, PCIe)."""
    error, can = driver().cuDeviceCanAccessPeer(device.handle, other.handle)
    return int(error) == 0 and bool(can)


def has_rdma(device: Device) -> bool:
    """Whether a network card can access mapped memory (GPUDirect RDMA)."""
    cu = driver()
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    error, has = cu.cuDeviceGetAttribute(attribute, device.handle)
    return int(error) == 0 and bool(has)


def _prefix(name: bytes) -> str:
    """Prefix of a UUID in nvidia-smi. Only the name shows a slice: "NVIDIA H100 MIG 1g.10gb"."""
    return "MIG" if b" MIG " in name else "GPU"


def _digits(name: str) -> str:
    return name[4:].lower() if name[:4] in ("GPU-", "MIG-") else name.lower()


def find_device(name: str) -> Device:
    """The visible device of that UUID. Raises FailedPrecondition NO_DEVICE."""
    devices = visible_devices()
    for device in devices:
        if _digits(device.uuid) == _digits(name):
            return device
    seen = ", ".join(device.uuid for device in devices) or "none"
    raise FailedPrecondition(
        f"mapping a shard that lies on {name}: this process sees only these GPUs: {seen}; give "
        "it the daemon's GPU (CUDA_VISIBLE_DEVICES, the container's devices), or ask the daemon "
        "of a GPU that it sees",
        "NO_DEVICE",
        {"device": name, "visible": seen},
    )


class Context:
    """The primary context of a device, retained until release(). Current inside `with`."""

    def __init__(self, device: Device):
        self.device = device
        self._handle = ask(
            driver().cuDevicePrimaryCtxRetain(device.handle), "making a context", device.uuid
        )

    def __enter__(self) -> "Context":
        ask(driver().cuCtxPushCurrent(self._handle), "entering its context", self.device.uuid)
        return self

    def __exit__(self, *_) -> None:
        driver().cuCtxPopCurrent()

    def ask(self, result: tuple, doing: str):
        return ask(result, doing, self.device.uuid)

    def release(self) -> None:
        driver().cuDevicePrimaryCtxRelease(self.device.handle)
