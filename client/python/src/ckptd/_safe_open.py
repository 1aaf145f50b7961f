"""safe_open: safetensors' reader of one file, over the daemon's memory instead of the file.

    with ckptd.safe_open("/models/llama/model.safetensors", framework="pt") as file:
        weight = file.get_tensor("model.norm.weight")
        rows = file.get_slice("model.embed_tokens.weight")[:1024]

The object is like that of safetensors 0.8: names, results and errors are equal.
"""

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from . import _fallback
from ._errors import Error
from ._safe_open_source import SafetensorError, Source
from ._types import SourceTensor

if TYPE_CHECKING:
    import numpy
    import torch

    Tensor = Union[torch.Tensor, numpy.ndarray]  # for framework "pt", and "np"

_FRAMEWORKS = {"pt": "pt", "torch": "pt", "pytorch": "pt", "np": "np", "numpy": "np"}
_ACCELERATORS = ("cuda", "musa", "npu", "xpu", "xla", "mlu", "hpu", "mps")


class safe_open:  # noqa: N801, the name in safetensors
    """One .safetensors file, opened through this process's daemon. A context manager.

    framework: "pt" or "np" (and their longer names). device: "cpu", or for "pt" a GPU if the
    daemon keeps its memory there; nothing is moved. backend is checked but has no effect,
    because the file is not read here. address, timeout: as in ckptd.connect and Client.load.
    fallback="native" has safetensors open the file if the daemon cannot serve it, and the log
    says so once.

    Opening reads the header. The first tensor or slice has the daemon load the file, unless it
    is resident, and maps it. Tensors are that memory, private to this process. So a write shows
    in other tensors of the same name from the same object, as in safetensors. The memory stays
    as long as any of them. Thread-safe.
    """

    def __init__(
        self,
        filename: Union[str, os.PathLike],
        framework: str,
        device: Union[str, int, None] = "cpu",
        *,
        backend: str = "mmap",
        address: Optional[str] = None,
        timeout: float = 600.0,
        fallback: Optional[str] = None,
    ) -> None:
        _fallback.check(fallback)
        path = os.fspath(filename)
        kind, place = _framework(framework), _device("cpu" if device is None else device)
        _check_backend(backend)
        if place != "cpu" and kind != "pt":
            raise SafetensorError(f"Device {place} is not supported for framework numpy")
        self._file: Optional[File] = None
        try:
            source = Source(path, address, timeout)
            self._file = File(path, source, None, kind, place, fallback)
        except Error as error:
            if fallback is None:
                raise
            self._file = native_file(path, kind, device, error)

    @classmethod
    def over(cls, file: "File") -> "safe_open":
        """An object over a File that is open already."""
        made = cls.__new__(cls)
        made._file = file
        return made

    @property
    def file(self) -> "File":
        """The open file. Raises SafetensorError after closing."""
        if self._file is None:
            raise SafetensorError("File is closed")
        return self._file

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the object; tensors and slices taken from it stay."""
        self._file = None

    def metadata(self) -> Optional[Dict[str, str]]:
        """The header's free text, None when it has none."""
        return self.file.metadata()

    def keys(self) -> List[str]:
        """Names of the tensors, sorted."""
        return self.file.keys()

    def offset_keys(self) -> List[str]:
        """Names of the tensors in the order of their bytes."""
        return self.file.offset_keys()

    def get_tensor(self, name: str) -> "Tensor":
        """The whole tensor. Raises SafetensorError for a name that is not there, ckptd.Error."""
        return self.file.get_tensor(name)

    def get_tensors(self) -> "Dict[str, Tensor]":
        """All tensors by name, in the order of their bytes."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> "Slice":
        """The tensor as something to index; nothing is loaded until then."""
        return self.file.get_slice(name)


class Slice:
    """One tensor of a file, not loaded until indexed. Stays valid after the file is closed."""

    def __init__(self, file: "File", info: SourceTensor) -> None:
        self.file, self.info = file, info

    def get_shape(self) -> List[int]:
        """The whole tensor's, as in the header."""
        return list(self.info.shape)

    def get_dtype(self) -> str:
        """As in the header, such as "BF16"."""
        return self.info.dtype

    def __getitem__(self, key: Any) -> "Tensor":
        """The selection of `key`: PyTorch's indexing for "pt", safetensors' grammar for "np"."""
        return self.file.part(self.info.name, key)


class File:
    """The file that a safe_open and its slices hold.

    within: which of the source's files, None for all; framework "pt" or "np"; device
    "cpu" or an accelerator's name.
    """

    def __init__(
        self,
        path: str,
        source: Source,
        within: Optional[str],
        framework: str,
        device: Union[str, int],
        fallback: Optional[str] = None,
    ) -> None:
        self.path, self.source, self.framework, self.device = path, source, framework, device
        self.fallback = fallback
        self.native: Any = None  # an object of safetensors, or like it, once that reads the file
        self._infos = source.tensors_of(within)

    def metadata(self) -> Optional[Dict[str, str]]:
        """The header's free text, None when it has none."""
        return dict(self.source.contents.metadata) or None

    def keys(self) -> List[str]:
        """Names of the tensors, sorted."""
        return list(self._infos)

    def offset_keys(self) -> List[str]:
        """Names of the tensors in the order of their bytes."""
        return sorted(self._infos, key=lambda name: (_position(self._infos[name]), name))

    def info(self, name: str) -> SourceTensor:
        """The header's entry of a tensor. Raises SafetensorError for a name that is not there."""
        info = self._infos.get(name)
        if info is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return info

    def get_slice(self, name: str) -> Slice:
        """See safe_open.get_slice."""
        return Slice(self, self.info(name))

    def get_tensor(self, name: str) -> "Tensor":
        """See safe_open.get_tensor."""
        owner = self.info(name).name
        shard = self._shard()
        if shard is None:
            return self.native.get_tensor(name)
        name = owner
        if self.framework == "np":
            from . import _safe_open_numpy

            return _safe_open_numpy.tensor(shard, name, self.path)
        import torch

        from . import _safe_open_torch

        return _safe_open_torch.tensor(shard, name, self.path, torch.device(self.device))

    def part(self, name: str, key: Any) -> "Tensor":
        """The selection of `key` from a tensor: see Slice."""
        shard = self._shard()
        if shard is None:
            return self.native.get_slice(name)[key]
        if self.framework == "pt":
            return self.get_tensor(name)[key]
        from . import _safe_open_numpy

        return _safe_open_numpy.part(shard, name, self.path, key)

    def _shard(self):
        """The source's memory; None if safetensors reads the file."""
        if self.native is not None:
            return None
        try:
            return self.source.shard("cpu" if self.device == "cpu" else "cuda")
        except Error as error:
            if self.fallback is None:
                raise
            self.fall_back(error)
            return None

    def fall_back(self, error: Error) -> None:
        """Has safetensors read the file from now on, because of `error`."""
        if self.native is None:
            self.native = native_file(self.path, self.framework, self.device, error)


class _Pickled:
    """The tensors that torch.load reads from a file, in the form of safetensors' safe_open."""

    def __init__(self, path: str):
        import torch

        self._tensors = torch.load(path, map_location="cpu", weights_only=True)

    def get_tensor(self, name: str) -> "Tensor":
        return self._tensors[name]

    get_slice = get_tensor


def native_file(path: str, framework: str, device, error: Error):
    """Opens the file by safetensors or torch itself, as the caller has allowed."""
    import safetensors

    if not path.endswith(".safetensors") and framework == "pt":
        _fallback.say("reading files of torch", error)
        return _Pickled(path)
    _fallback.say("reading safetensors files", error)
    return safetensors.safe_open(path, framework, device)


def _position(info: SourceTensor):
    return info.offset, info.nbytes, info.name


def _framework(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(
            f"argument 'framework': '{type(name).__name__}' object is not an instance of 'str'"
        )
    if name not in _FRAMEWORKS:
        raise SafetensorError(f"framework {name} is invalid")
    return _FRAMEWORKS[name]


def _device(name: Union[str, int]) -> Union[str, int]:
    """The device's full name; an integer is an accelerator of PyTorch's choice."""
    if isinstance(name, int) and name >= 0:
        return name
    kind, colon, number = str(name).partition(":")
    if not isinstance(name, str) or (kind not in _ACCELERATORS and name != "cpu"):
        raise SafetensorError(f"device {name} is invalid")
    if name == "cpu":
        return name
    if colon and not (number.isascii() and number.isdigit()):
        raise ValueError("invalid digit found in string")
    if kind == "mps" and int(number or 0):
        raise SafetensorError(f"device {name} is invalid: only mps or mps:0 is supported")
    return kind if kind == "mps" else f"{kind}:{int(number or 0)}"


def _check_backend(name: str) -> None:
    if name not in ("mmap", "pread"):
        raise SafetensorError(
            f'backend "{name}" is invalid (expected one of: "mmap", "pread")'
        )
