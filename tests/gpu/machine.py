"""What this machine has. Run as a program it opens the driver, and prints what it found as JSON."""

import ctypes
import importlib.util
import json
import os
import platform
import subprocess
import sys
from typing import Dict, List

# Module -> (package to ask for, what it is needed for, whether nearly all needs it).
MODULES = {
    "grpc": ("grpcio", "the Python client, so for all but the kernels", True),
    "google.protobuf": ("protobuf 4.25 or later", "the same", True),
    "cuda.bindings": ("cuda-bindings", "GPU memory in Python, so for all but the kernels", True),
    "numpy": ("numpy", "the expected bytes of slices", False),
    "torch": ("torch", "trainers, and most of what is compared", False),
    "safetensors": ("safetensors", "the comparison with its loader", False),
}
SHARES_A_GPU = 23000  # the first NCCL that lets several ranks share one, as ncclGetVersion says it


def _version(module: str) -> str:
    try:
        if importlib.util.find_spec(module) is None:
            return ""
        loaded = importlib.import_module(module)
        return str(getattr(loaded, "__version__", "there"))
    except Exception as error:  # a module that is broken is as good as none, and says why
        print(f"import {module}: {type(error).__name__}: {error}", file=sys.stderr)
        return ""


def _driver() -> dict:
    import ckptd
    import ckptd._cuda_driver as cuda

    try:
        cu = cuda.driver()
        devices = cuda.visible_devices()
        number = cuda.ask(cu.cuDriverGetVersion(), "asking for its version", "the driver")
        found = []
        for device in devices:
            raw = cuda.ask(
                cu.cuDeviceGetName(128, device.handle), "asking for its name", device.uuid
            )
            total = cuda.ask(cu.cuDeviceTotalMem(device.handle), "asking for memory", device.uuid)
            name = bytes(raw).split(b"\0")[0].decode()
            found.append({"uuid": device.uuid, "name": name, "bytes": int(total)})
        return {"cuda": f"{number // 1000}.{number % 1000 // 10}", "gpus": found}
    except ckptd.Error as error:
        return {"why not": error.message, "gpus": []}


def _torch() -> dict:
    import torch

    nccl = getattr(torch.cuda, "nccl", None)
    on_gpu = torch.cuda.is_available()
    version = nccl.version() if on_gpu and nccl else None
    return {
        "sees a GPU": on_gpu,
        "built for CUDA": torch.version.cuda,
        "NCCL": ".".join(map(str, version)) if version else None,
    }


def _nccl() -> dict:
    """The library that daemons are to open; CKPTD_NCCL_LIBRARY comes before Python's own."""
    path = os.environ.get("CKPTD_NCCL_LIBRARY", "")
    if not path:
        package = importlib.util.find_spec("nvidia.nccl") if _version("nvidia") else None
        for folder in package.submodule_search_locations if package else ():
            path = os.path.join(folder, "lib", "libnccl.so.2")
    if not os.path.exists(path):
        return {"path": "", "version": "", "why not": "there is no NCCL; name one: --nccl-library"}
    number = ctypes.c_int()
    try:
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return {"path": path, "version": "", "why not": str(error)}
    version = f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    why_not = ""
    if number.value < SHARES_A_GPU:
        why_not = f"NCCL {version} refuses several ranks on one GPU; 2.30 does not: --nccl-library"
    return {"path": path, "version": version, "why not": why_not}


def _smi() -> Dict[str, str]:
    names = (
        "driver_version",
        "persistence_mode",
        "power.limit",
        "clocks.max.memory",
        "pcie.link.gen.max",
    )
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0:
        return {}
    return dict(zip(names, (word.strip() for word in done.stdout.splitlines()[0].split(","))))


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def probe() -> dict:
    modules = {name: _version(name) for name in MODULES}
    usable = all(modules[name] for name, (_, _, needed) in MODULES.items() if needed)
    return {
        "python": platform.python_version(),
        "modules": modules,
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "driver": _driver() if usable else {"why not": "Python packages are missing", "gpus": []},
        "torch": _torch() if modules["torch"] else {},
        "nccl": _nccl(),
        "nvidia-smi": _smi(),
    }


def lacks(found: dict) -> List[str]:
    """A sentence for each thing that is missing."""
    said = [
        f"{package}, for {what}"
        for name, (package, what, _) in MODULES.items()
        if not found["modules"][name]
    ]
    if not found["driver"]["gpus"]:
        said.append(f"a GPU: {found['driver'].get('why not', 'the driver shows none')}")
    return said


def unusable(found: dict) -> str:
    """Why no check with a daemon and a client can be made; empty if they can."""
    missing = [MODULES[n][0] for n in MODULES if MODULES[n][2] and not found["modules"][n]]
    if missing:
        return f"these Python packages are missing: {', '.join(missing)}"
    return "" if found["driver"]["gpus"] else "there is no GPU"


def has(found: dict, fake: bool) -> List[str]:
    """What checks may need (gpu_record.NEEDS)."""
    known = [name for name in ("torch", "safetensors", "numpy") if found["modules"][name]]
    if not fake and found["driver"]["gpus"]:
        known.append("gpu")
        if found["torch"].get("sees a GPU"):
            known.append("torch on a GPU")
        elif "torch" in known:
            known.remove("torch")  # it cannot use the memory that is to be checked
    return known


if __name__ == "__main__":
    print(json.dumps(probe()))
