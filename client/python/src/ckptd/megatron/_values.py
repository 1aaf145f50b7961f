"""Values that are no tensors: torch files within a checkpoint, or beside it.

torch reads them with weights_only=True, which calls nothing but the classes named here and those
that the caller or megatron-core has named to torch (torch.serialization.add_safe_globals).
"""

import argparse
import collections
import io
import pathlib
import signal
import types
from typing import Any, BinaryIO, Callable, List, Optional, Sequence, Union

import torch

# Reads a torch file.
Unpickle = Callable[[Union[str, BinaryIO]], Any]

_PLAIN = (
    argparse.Namespace,
    collections.defaultdict,
    dict,
    io.BytesIO,
    pathlib.PosixPath,
    signal.Signals,
    types.SimpleNamespace,
)


def reader(allow: Sequence[type], unpickle: Optional[Unpickle]) -> Unpickle:
    """`unpickle`, or torch.load that makes plain values and objects of the classes in `allow`."""
    return unpickle or (lambda file: _load(file, allow))


def _load(file: Union[str, BinaryIO], allow: Sequence[type]) -> Any:
    with torch.serialization.safe_globals([*_PLAIN, *_of_numpy(), *allow]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _of_numpy() -> List[Any]:
    """What arrays, numbers and random states of NumPy are made of, wherever this NumPy keeps it."""
    try:
        import numpy
    except ImportError:
        return []
    # The functions that a pickle names are in a module that NumPy 2 has renamed.
    rebuild = numpy.zeros(0).__reduce__()[0]
    number = numpy.float64(0).__reduce__()[0]
    kinds = [type(numpy.dtype(code)) for code in "?bhilqBHILQefdgFDGSUV"]
    return [rebuild, number, numpy.ndarray, numpy.dtype, *dict.fromkeys(kinds)]
