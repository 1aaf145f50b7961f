"""Tensors in GPU memory, for any library that reads DLPack or __cuda_array_interface__."""

from typing import Tuple

from ._shard import TensorView

CUDA = 2  # DLDeviceType


class DeviceTensorView(TensorView):
    """One tensor of a shard in GPU memory. Immutable, thread-safe; keeps the memory mapped.

    Its bytes are reached by __dlpack__ (torch.from_dlpack, cupy.from_dlpack, ...),
    __cuda_array_interface__ or `pointer`; they were complete before the shard was handed
    out, so no stream has to wait. Memory of a shared shard is mapped read-only: writing it
    is a GPU fault that ends the context, and a library that cannot be told so is refused.
    """

    __slots__ = ()

    def _refuse(self, what: str) -> TypeError:
        return TypeError(
            f"{self.name} lies in the memory of {self.device} and has no {what}; use "
            "torch.from_dlpack or cupy.from_dlpack on it, and copy to the host there (.cpu(), "
            ".get())"
        )

    @property
    def buffer(self) -> memoryview:
        raise self._refuse("buffer")

    @property
    def padded_buffer(self) -> memoryview:
        raise self._refuse("buffer")

    def numpy(self):
        raise self._refuse("NumPy array")

    def __array__(self, *_, **__):
        raise self._refuse("NumPy array")

    @property
    def __array_interface__(self) -> dict:
        raise AttributeError(f"{self.name} lies in the memory of {self.device}")

    @property
    def __cuda_array_interface__(self) -> dict:
        if not self._dtype.exact:
            raise AttributeError(f"{self.dtype} has no type string; use __dlpack__")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._dtype.numpy,
            "data": (self.pointer if self.nbytes else 0, not self.writable),
            "strides": None,
            "stream": None,
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (CUDA, self._mapping.ordinal)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule, which keeps the memory mapped. Raises BufferError for what it
        cannot be: on another device, copied, or read-only to a consumer older than DLPack 1."""
        from . import _dlpack

        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"{self.name} lies in the memory of {self.device}, nowhere else")
        if copy:
            raise BufferError(f"{self.name} can be shared, not copied, by DLPack")
        return _dlpack.device_capsule(
            self._mapping,
            self.offset,
            self._dtype,
            self.shape,
            read_only=not self.writable,
            max_version=max_version,
        )
