"""Files of a checkpoint, opened through the daemons as parts of the whole checkpoint."""

import functools
import os
import pathlib
import time
import weakref
from typing import Callable, Dict, Optional, Union

import torch

from .. import _dtypes, _fallback
from .._errors import Error, Unavailable, Unimplemented
from .._safe_open import File, Slice, native_file, safe_open
from .._safe_open_source import SafetensorError, Source
from .._source import absolute, join_part, split_part
from ..torch.load import _memory
from . import _collective_choice

_SAFETENSORS, _PICKLED = ".safetensors", ".bin"
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_SILENCE = 10.0  # seconds without a new attempt to reach a daemon: a checkpoint may have many files


class Files:
    """Opens files for patched functions. Holds no connection and no memory. Thread-safe.

    address, timeout, fallback: as in ckptd.safe_open.
    """

    def __init__(self, address: Optional[str], timeout: float, fallback: Optional[str]):
        _fallback.check(fallback)
        self.address, self.timeout, self.fallback = address, timeout, fallback
        self._silent: Optional[Error] = None  # the error of the last attempt to reach a daemon
        self._silent_until = 0.0
        # Sources in use. The files of a sharded checkpoint are one source, which is opened once.
        self._sources: "weakref.WeakValueDictionary" = weakref.WeakValueDictionary()

    def opener(self, original: Callable, by_index: bool = True) -> Callable:
        """A replacement for safetensors' safe_open.

        by_index: a file of a sharded checkpoint is opened as a part of the whole, so that there
        is one load.
        """

        @functools.wraps(original, updated=())
        def open_(filename, framework="pt", device="cpu", **named):
            if framework != "pt":
                return original(filename, framework, device, **named)
            path = absolute(os.fspath(filename))
            try:
                source = self._source_of(path) if by_index else self._source(path)
            except Error as error:
                if self.fallback is None:
                    raise
                distributed_call = _collective_choice.current.get()
                if distributed_call is not None:
                    distributed_call.mark_native(error)
                return native_file(path, framework, device, error)
            within = path if path in source.files() and source.path != path else None
            return safe_open.over(File(path, source, within, framework, "cpu", self.fallback))

        return open_

    def reader(self, original: Callable, lazy: Callable[[], bool]) -> Callable:
        """A replacement for load_state_dict, which reads files of torch, from the daemons.

        lazy: whether slices are wanted in place of tensors, as of a file of safetensors.
        """

        @functools.wraps(original)
        def load_state_dict(checkpoint_file, *arguments, **named):
            path = os.fspath(checkpoint_file)
            if path.endswith(_SAFETENSORS):
                if "disable_mmap" in named:
                    named["disable_mmap"] = False
                return original(checkpoint_file, *arguments, **named)
            file = self._pickled(absolute(path))
            if file is None:
                return original(checkpoint_file, *arguments, **named)
            place = named.get("map_location", arguments[0] if arguments else "cpu")
            return _tensors_of(file, torch.device(place), lazy())

        return load_state_dict

    def _pickled(self, path: str) -> Optional[File]:
        """A file of torch, opened; None if transformers is to read it."""
        try:
            source = self._source_of(path)
        except (Error, SafetensorError) as error:
            if not isinstance(error, Error):
                raise OSError(f"Unable to load weights from {path}: {error}") from error
            if self.fallback is None:
                raise
            distributed_call = _collective_choice.current.get()
            if distributed_call is not None:
                distributed_call.mark_native(error)
            _fallback.say("loading a checkpoint", error)
            return None
        return File(path, source, path, "pt", "cpu", self.fallback)

    def bytes_refuser(self, original: Callable) -> Callable:
        """A replacement for the parser of files that transformers has read itself."""

        @functools.wraps(original)
        def load(data):
            self._refuse_or_warn(
                "loading a checkpoint with disable_mmap=True: that reads files in this process, "
                "past the daemons; leave it out, for with daemons no file is mapped here",
                "NOT_FROM_DAEMONS",
            )
            return original(data)

        return load

    def _refuse_or_warn(self, sentence: str, reason: str) -> None:
        """Raises an error for bytes that would not come from the daemons, unless fallback allows them."""
        error = Unimplemented(sentence, reason)
        if self.fallback is None:
            raise error
        _fallback.say("loading a checkpoint", error)

    def _source_of(self, path: str) -> Source:
        """The source for `path`: an index in its folder that lists it, else the file alone.

        model.safetensors is always alone: if it exists, no index counts. So is pytorch_model.bin.
        """
        beside = pathlib.Path(path)
        kind = _SAFETENSORS if path.endswith(_SAFETENSORS) else _PICKLED
        # Also those of a variant.
        indices = [] if beside.name in _WHOLE else beside.parent.glob(f"*{kind}.index*.json")
        for index in sorted(indices):
            try:
                source = self._source(str(index))
            except (SafetensorError, FileNotFoundError):
                continue  # an index of another checkpoint, or half written
            if path in source.files():
                return source
        source = self._source(path)
        if source.contents.format != "torch" or not source.contents.remarks:
            return source
        return self._source(join_part(path, "all"))  # by the names that torch.load gives

    def _source(self, path: str) -> Source:
        key = (path, _signature(path))
        source = self._sources.get(key)
        if source is not None:
            return source
        if self._silent is not None and time.monotonic() < self._silent_until:
            raise self._silent
        try:
            source = self._sources[key] = Source(path, self.address, self.timeout)
        except Unavailable as error:
            if self.fallback is not None:  # else a daemon may be started before the next attempt
                self._silent, self._silent_until = error, time.monotonic() + _SILENCE
            raise
        return source


def _tensors_of(file: File, place: torch.device, lazy: bool) -> Dict[str, Union[torch.Tensor, Slice]]:
    """name -> tensor on `place`, or slice."""
    if lazy:
        return {name: file.get_slice(name) for name in file.keys()}
    if place.type == "meta":
        infos = {name: file.info(name) for name in file.keys()}
        dtypes = {name: _memory.torch_dtype(_dtypes.BY_NAME[info.dtype], name) for name, info in infos.items()}
        return {n: torch.empty(info.shape, dtype=dtypes[n], device=place) for n, info in infos.items()}
    with file.source.connect() as client:
        file.device = "cpu" if client.device() is None else "cuda"
    return {name: file.get_tensor(name).to(place) for name in file.keys()}


def _signature(path: str):
    """Facts that change when the file does; None if only the daemon sees the file."""
    try:
        facts = os.stat(split_part(path)[0])
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
