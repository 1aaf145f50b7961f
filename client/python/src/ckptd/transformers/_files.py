"""Files of a checkpoint, opened through the daemons as parts of the whole checkpoint."""

import functools
import os
import pathlib
import time
import weakref
from typing import Callable, Optional

from .. import _fallback, _folder
from .._errors import Error, Unavailable, Unimplemented
from .._safe_open import File, native_file, safe_open
from .._safe_open_source import SafetensorError, Source
from .._source import absolute
from . import _collective_choice

_INDICES = "*.safetensors.index*.json"  # also those of a variant
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

    def refuser(self, original: Callable) -> Callable:
        """A replacement for load_state_dict that refuses files which the daemons do not read."""

        @functools.wraps(original)
        def load_state_dict(checkpoint_file, *arguments, **named):
            path = os.fspath(checkpoint_file)
            if not path.endswith(".safetensors"):
                self._refuse_or_warn(
                    f"loading {path}: the daemons read safetensors files only; convert it, for "
                    "example by save_pretrained, or allow fallback='native'",
                    "FORMAT_UNSUPPORTED",
                )
            elif "disable_mmap" in named:
                named["disable_mmap"] = False
            return original(checkpoint_file, *arguments, **named)

        return load_state_dict

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

        model.safetensors is always alone: if it exists, no index counts.
        """
        beside = pathlib.Path(path)
        indices = [] if beside.name == _folder.WHOLE else beside.parent.glob(_INDICES)
        for index in sorted(indices):
            try:
                source = self._source(str(index))
            except (SafetensorError, FileNotFoundError):
                continue  # an index of another checkpoint, or half written
            if path in source.files():
                return source
        return self._source(path)

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


def _signature(path: str):
    """Facts that change when the file does; None if only the daemon sees the file."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
