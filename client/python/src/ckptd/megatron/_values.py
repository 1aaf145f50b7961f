"""Values that are no tensors: torch files within a checkpoint, or beside it.

torch reads them with weights_only=True, which calls nothing but the classes named here and those
that the caller or megatron-core has named to torch (torch.serialization.add_safe_globals).
"""

import argparse
import collections
import io
import pathlib
import re
import signal
import types
from typing import Any, BinaryIO, Callable, List, Optional, Sequence, Union

import torch

from .._errors import Unimplemented

# In torch's message about a class that is not allowed.
_GLOBAL = re.compile(r"GLOBAL (\S+)")
# Reads a torch file.
Unpickle = Callable[[Union[str, BinaryIO]], Any]

_PLAIN = (
    argparse.Namespace,
    bytearray,
    bytes,
    collections.Counter,
    collections.defaultdict,
    collections.deque,
    complex,
    dict,
    frozenset,
    io.BytesIO,
    list,
    pathlib.PosixPath,
    range,
    set,
    signal.Signals,
    slice,
    tuple,
    types.SimpleNamespace,
)


def reader(allow: Sequence[type], unpickle: Optional[Unpickle]) -> Unpickle:
    """`unpickle`, or torch.load that makes plain values and objects of the classes in `allow`.

    That raises Unimplemented VALUE_UNSUPPORTED for another class.
    """
    return unpickle or (lambda file: _load(file, allow))


def _load(file: Union[str, BinaryIO], allow: Sequence[type]) -> Any:
    # At its end torch forgets the classes of such a block, those that others have named to it as well.
    known = torch.serialization.get_safe_globals()
    more = [kind for kind in (*_PLAIN, *_of_numpy(), *allow) if kind not in known]
    try:
        with torch.serialization.safe_globals(more):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises pickle's UnpicklingError, which this package does not import.
        if type(error).__name__ != "UnpicklingError":
            raise
        found = _GLOBAL.search(str(error))
        raise Unimplemented(
            f"reading a value that is no tensor: it holds {found[1] if found else 'what torch does not read'} "
            "beside plain values; name its class by LoadStrategy(allow=[...]) if making it runs nothing that "
            "you do not trust, or read such values yourself by LoadStrategy(unpickle=...)",
            "VALUE_UNSUPPORTED",
        ) from error


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
