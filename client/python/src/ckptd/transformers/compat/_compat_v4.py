"""Patch points of transformers 4: functions through which its from_pretrained reads files.

Tried with 4.57. `_load_state_dict_into_meta_model` opens one file and takes, casts and places
its tensors one by one. It is run twice: over probes, which leave the model on meta and only note
what this rank needs, and then over the daemon's memory. Each file is a load of its own, because
transformers goes from file to file.
"""

import contextvars
import functools
import inspect
from typing import Callable, List, Optional

import torch

from ..._safe_open import Slice, safe_open
from .. import _collective_choice, _deferred_load
from .._files import Files
from ._compat_v5 import MODEL, MODELING, PatchPoint, from_pretrained

_pass: contextvars.ContextVar = contextvars.ContextVar("ckptd_pass", default=None)


def patch_points(files: Files) -> List[PatchPoint]:
    """(module, or module:class, name, function from the original to its replacement)."""
    return [
        (MODELING, "safe_open", lambda original: _opener(files.opener(original, by_index=False))),
        (MODELING, "load_state_dict", lambda original: files.reader(original, lambda: False)),
        from_pretrained(files),
        (MODEL, "_load_pretrained_model", _counting_rounds),
        (MODELING, "_infer_parameter_dtype", _noting_dtypes),
        (MODELING, "_load_state_dict_into_meta_model", lambda original: _run_twice(original, files)),
    ]


class _Pass:
    """One of the two runs over a file, in one thread."""

    def __init__(self, feed: _deferred_load.DeferredLoad, noting: bool):
        self.feed, self.noting = feed, noting
        self.dtype: Optional[torch.dtype] = None  # dtype of the current tensor

    def stand_in(self, part: Slice):
        if not self.noting:
            return _deferred_load.LoadedSlice(part, self.feed)

        def note(box) -> None:
            self.feed.note(part, lambda probe: probe.request_box(box), self.dtype)

        return _deferred_load.Probe(part, note)


class _Opened(safe_open):
    """An open file whose slices belong to the current run in this thread, if there is one."""

    def get_slice(self, name: str):
        part, run = super().get_slice(name), _pass.get()
        return part if run is None or not isinstance(part, Slice) else run.stand_in(part)


def _opener(open_: Callable) -> Callable:
    @functools.wraps(open_)
    def opened(filename, framework="pt", device="cpu"):
        # The run over probes passes the device meta, which safetensors does not know.
        file = open_(filename, framework, "cpu" if device == "meta" else device)
        return _Opened.over(file.file) if isinstance(file, safe_open) else file

    return opened


def _counting_rounds(original: classmethod) -> classmethod:
    """Counts rounds: each file is a round of the ranks."""
    function = original.__func__

    @functools.wraps(function)
    def _load_pretrained_model(cls, model, state_dict, checkpoint_files, *arguments, **named):
        call = _collective_choice.current.get()
        if call is not None and checkpoint_files:
            call.left = len(checkpoint_files)
        return function(cls, model, state_dict, checkpoint_files, *arguments, **named)

    return classmethod(_load_pretrained_model)


def _noting_dtypes(original: Callable) -> Callable:
    @functools.wraps(original)
    def _infer_parameter_dtype(*arguments, **named):
        found = original(*arguments, **named)
        run = _pass.get()
        if run is not None:
            run.dtype = found[1]
        return found

    return _infer_parameter_dtype


def _run_twice(original: Callable, files: Files) -> Callable:
    parameters = inspect.signature(original)

    def run(feed: _deferred_load.DeferredLoad, noting: bool, arguments: dict):
        token = _pass.set(_Pass(feed, noting))
        try:
            return original(**arguments)
        finally:
            _pass.reset(token)

    @functools.wraps(original)
    def _load_state_dict_into_meta_model(*given, **named):
        arguments = parameters.bind(*given, **named).arguments
        if not arguments["shard_file"].endswith(".safetensors") or _reads_immediately(arguments):
            return original(**arguments)
        distributed = arguments.get("device_mesh") is not None
        distributed_call = _collective_choice.current.get() if distributed else None
        feed = _deferred_load.DeferredLoad(files.timeout, distributed, distributed_call)
        run(feed, True, {**arguments, "device_map": {"": "meta"}})
        if distributed_call is not None:
            feed.use_native(distributed_call.announce_native())
        return run(feed, False, arguments)

    return _load_state_dict_into_meta_model


def _reads_immediately(arguments: dict) -> bool:
    """Whether tensors must be read at once: quantisers keep the tensors that they get."""
    from transformers.integrations import is_fsdp_enabled

    return arguments.get("hf_quantizer") is not None or is_fsdp_enabled()
