"""DLPack export of element types that NumPy lacks.

NumPy makes the capsule over an integer type of the same size, with a deleter
that is safe at any time, and the type code in it is then put right: a deleter
written in Python could run after the interpreter has gone.
"""

import ctypes

from . import _dtypes

_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype = ctypes.c_void_p
_POINTER.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME = ctypes.pythonapi.PyCapsule_GetName
_NAME.restype = ctypes.c_char_p
_NAME.argtypes = [ctypes.py_object]

# Offset of DLTensor.dtype: data pointer 8, device 2 x 4, ndim 4; a versioned
# struct has version, context, deleter and flags (8 bytes each) before it.
_DTYPE_OFFSET = {b"dltensor": 20, b"dltensor_versioned": 52}


def capsule(array, dtype: _dtypes.Dtype, options: dict):
    """A capsule over `array`, whose elements are really of `dtype`. Raises BufferError."""
    if dtype.dlpack is None:
        raise BufferError(f"{dtype.name} cannot be exchanged by DLPack")
    made = array.__dlpack__(**{key: value for key, value in options.items() if value is not None})
    if not dtype.exact:
        name = _NAME(made)
        at = _POINTER(made, name) + _DTYPE_OFFSET[name]
        ctypes.c_uint8.from_address(at).value = dtype.dlpack
    return made
