"""DLPack export of element types that NumPy lacks, and of memory that it cannot read.

NumPy makes the capsule over an integer type of the same size. Its deleter is safe at
any time, whereas a deleter in Python could run after the interpreter has ended. The
type code in the capsule is corrected afterwards.

For device memory the array has the device's address, which NumPy stores and never
dereferences, and the device in the capsule is corrected as well. The consumer's tensor
holds the array through that deleter, which any thread may run: it takes the
interpreter's lock, and does nothing once the interpreter has ended. The array holds
the memory's owner.
"""

import ctypes

from . import _dtypes

_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype = ctypes.c_void_p
_POINTER.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME = ctypes.pythonapi.PyCapsule_GetName
_NAME.restype = ctypes.c_char_p
_NAME.argtypes = [ctypes.py_object]

# Where the DLTensor starts: a versioned struct has version, context, deleter and
# flags (8 bytes each) before it.
_TENSOR_OFFSET = {b"dltensor": 0, b"dltensor_versioned": 32}
# Within it: data pointer 8, device type 4 and number 4, ndim 4, type code.
_DEVICE_OFFSET = 8
_DTYPE_OFFSET = 20
_CUDA = 2  # DLDeviceType


def _tensor_at(made) -> int:
    """Address of the DLTensor in a capsule."""
    name = _NAME(made)
    return _POINTER(made, name) + _TENSOR_OFFSET[name]


def capsule(array, dtype: _dtypes.Dtype, options: dict):
    """A capsule over `array`, whose elements are really of `dtype`. Raises BufferError."""
    if dtype.dlpack is None:
        raise BufferError(f"{dtype.name} cannot be exchanged by DLPack")
    made = array.__dlpack__(**{key: value for key, value in options.items() if value is not None})
    if not dtype.exact:
        ctypes.c_uint8.from_address(_tensor_at(made) + _DTYPE_OFFSET).value = dtype.dlpack
    return made


class _ForeignMemory:
    """Describes memory outside of the host for NumPy. The array holds it."""

    __slots__ = ("__array_interface__", "owner")


def device_capsule(
    memory, offset: int, dtype: _dtypes.Dtype, shape, *, read_only: bool, max_version=None
):
    """A capsule over `shape` elements at byte `offset` of a DeviceMemory. Raises BufferError."""
    import numpy

    if dtype.dlpack is None:
        raise BufferError(f"{dtype.name} cannot be exchanged by DLPack")
    span = _ForeignMemory()
    span.owner = memory
    span.__array_interface__ = {
        "version": 3,
        "shape": shape,
        "typestr": dtype.numpy,
        "data": (memory.address + offset, read_only),
        "strides": None,
    }
    options = {} if max_version is None else {"max_version": max_version}
    made = numpy.asarray(span).__dlpack__(**options)
    at = _tensor_at(made)
    # Type and number of the device, each 32 bits, little end first.
    ctypes.c_uint64.from_address(at + _DEVICE_OFFSET).value = _CUDA | memory.ordinal << 32
    ctypes.c_uint8.from_address(at + _DTYPE_OFFSET).value = dtype.dlpack
    return made
