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

_INDICES = "*.safetensors.index*.json"  # those of a variant, too
_SILENCE = 10.0  # seconds for which nobody is asked again: a checkpoint may have many files


class Files:
    """How patched functions open files; holds no connection and no memory. Thread-safe.

    address, timeout, fallback: as in ckptd.safe_open.
    """

    def __init__(self, address: Optional[str], timeout: float, fallback: Optional[str]):
        _fallback.check(fallback)
        self.address, self.timeout, self.fallback = address, timeout, fallback
        self._silent: Optional[Error] = None  # that there is no daemon
        self._silent_until = 0.0
        # Those in use: the files of a sharded checkpoint are one source, asked for once.
        self._sources: "weakref.WeakValueDictionary" = weakref.WeakValueDictionary()

    def opener(self, original: Callable, by_index: bool = True) -> Callable:
        """What stands for safetensors' safe_open.

        by_index: a file of a sharded checkpoint is opened as a part of the whole, which
        will be one load.
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
        """What stands for load_state_dict: without files that the daemons do not read."""

        @functools.wraps(original)
        def load_state_dict(checkpoint_file, *arguments, **named):
            path = os.fspath(checkpoint_file)
            if not path.endswith(".safetensors"):
                self._go_past(
                    f"loading {path}: the daemons read safetensors files only; convert it, for "
                    "example by save_pretrained, or allow fallback='native'",
                    "FORMAT_UNSUPPORTED",
                )
            elif "disable_mmap" in named:
                named["disable_mmap"] = False
            return original(checkpoint_file, *arguments, **named)

        return load_state_dict

    def bytes_refuser(self, original: Callable) -> Callable:
        """What stands for the parser of files that transformers has read itself."""

        @functools.wraps(original)
        def load(data):
            self._go_past(
                "loading a checkpoint with disable_mmap=True: that reads files in this process, "
                "past the daemons; leave it out, for with daemons no file is mapped here",
                "NOT_FROM_DAEMONS",
            )
            return original(data)

        return load

    def _go_past(self, sentence: str, reason: str) -> None:
        """Refuses what would not come from the daemons, unless that is allowed."""
        error = Unimplemented(sentence, reason)
        if self.fallback is None:
            raise error
        _fallback.say("loading a checkpoint", error)

    def _source_of(self, path: str) -> Source:
        """The index that lists `path`, if one lies beside it; else the file alone.

        model.safetensors is alone: where it exists, no index counts.
        """
        beside = pathlib.Path(path)
        indices = [] if beside.name == _folder.WHOLE else beside.parent.glob(_INDICES)
        for index in sorted(indices):
            try:
                source = self._source(str(index))
            except (SafetensorError, FileNotFoundError):
                continue  # of another checkpoint, or half written
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
            if self.fallback is not None:  # else somebody may start one and try again
                self._silent, self._silent_until = error, time.monotonic() + _SILENCE
            raise
        return source


def _signature(path: str):
    """What changes when the file does; None where only the daemon sees it."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
