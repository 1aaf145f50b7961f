"""Client of ckptd, the checkpoint-loader daemon.

    import ckptd
    with ckptd.connect() as client:
        checkpoint = client.load("/models/llama", layout="fsdp:8")
        with client.acquire(checkpoint) as shard:
            weight = shard.tensors["model.norm.weight"].numpy()

For PyTorch models see `ckptd.torch.load_into`. Importing this package loads
neither torch nor grpc; they come with the first use.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Public name -> module that holds it.
_LAZY = {
    "connect": "_client",
    "Client": "_client",
    "safe_open": "_safe_open",
    "patch": "transformers",
    "unpatch": "transformers",
    "DeviceMap": "_device_map",
    "Checkpoint": "_types",
    "Progress": "_types",
    "Plan": "_types",
    "RankPlan": "_types",
    "Source": "_types",
    "SourceTensor": "_types",
    "Verification": "_types",
    "Mesh": "_layout",
    "RankLayout": "_layout",
    "Sharding": "_layout",
    "Shard": "_shard",
    "TensorView": "_shard",
    "Error": "_errors",
    "Cancelled": "_errors",
    "Unknown": "_errors",
    "InvalidArgument": "_errors",
    "DeadlineExceeded": "_errors",
    "NotFound": "_errors",
    "AlreadyExists": "_errors",
    "PermissionDenied": "_errors",
    "ResourceExhausted": "_errors",
    "FailedPrecondition": "_errors",
    "Aborted": "_errors",
    "OutOfRange": "_errors",
    "Unimplemented": "_errors",
    "Internal": "_errors",
    "Unavailable": "_errors",
    "DataLoss": "_errors",
    "Unauthenticated": "_errors",
}

__all__ = ["__version__", *_LAZY]

if TYPE_CHECKING:
    from ._client import Client, connect
    from ._device_map import DeviceMap
    from ._errors import (
        Aborted,
        AlreadyExists,
        Cancelled,
        DataLoss,
        DeadlineExceeded,
        Error,
        FailedPrecondition,
        Internal,
        InvalidArgument,
        NotFound,
        OutOfRange,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
        Unimplemented,
        Unknown,
    )
    from ._layout import Mesh, RankLayout, Sharding
    from ._safe_open import safe_open
    from ._shard import Shard, TensorView
    from .transformers import patch, unpatch
    from ._types import Checkpoint, Plan, Progress, RankPlan, Source, SourceTensor, Verification


def __getattr__(name: str):
    import importlib

    if name in ("accelerate", "torch", "transformers"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*__all__, "accelerate", "torch", "transformers"])
