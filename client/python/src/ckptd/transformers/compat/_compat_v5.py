"""Patch points of transformers 5: functions through which its from_pretrained reads files.

Tried with 5.23. `_load_pretrained_model` opens each file by `safe_open` and takes a lazy slice
of every tensor. `convert_and_load_state_dict_in_model` passes each slice to `spawn_materialize`
with this rank's sharding and dtype, and reads values only when all are passed. Later conversions
(renames, stacked and fused experts) are transformers' own and run unchanged.
"""

import contextvars
import functools
import inspect
from typing import Callable, List, Tuple

from ..._safe_open import Slice
from .. import _collective_choice, _deferred_load
from .._files import Files

PatchPoint = Tuple[str, str, Callable[[Callable], Callable]]

MODELING = "transformers.modeling_utils"
MODEL = "transformers.modeling_utils:PreTrainedModel"
LOADING = "transformers.core_model_loading"


def patch_points(files: Files) -> List[PatchPoint]:
    """(module, or module:class, name, function from the original to its replacement)."""
    return [
        (MODELING, "safe_open", lambda original: files.opener(original)),
        (MODELING, "_is_on_hf_mount", lambda original: functools.wraps(original)(_return_false)),
        (MODELING, "load_state_dict", lambda original: files.reader(original, _reads_slices.get)),
        (MODEL, "_load_pretrained_model", _reading_slices),
        (MODELING, "_safe_load_bytes", lambda original: files.bytes_refuser(original)),
        (MODELING, "convert_and_load_state_dict_in_model", lambda original: _with_deferred_load(original, files)),
        from_pretrained(files),
        (LOADING, "spawn_materialize", _deferring_spawn),
    ]


# Whether load_state_dict is called for convert_and_load_state_dict_in_model, which takes slices.
_reads_slices: contextvars.ContextVar = contextvars.ContextVar("ckptd_reads_slices", default=False)


def _reading_slices(original: staticmethod) -> staticmethod:
    function = original.__func__

    @functools.wraps(function)
    def _load_pretrained_model(*arguments, **named):
        from transformers.integrations import is_deepspeed_zero3_enabled

        token = _reads_slices.set(not is_deepspeed_zero3_enabled())
        try:
            return function(*arguments, **named)
        finally:
            _reads_slices.reset(token)

    return staticmethod(_load_pretrained_model)


def from_pretrained(files: Files) -> PatchPoint:
    """The patch point from_pretrained of models. Automatic classes call it as well."""
    how = files.address, files.timeout, files.fallback
    return MODEL, "from_pretrained", lambda found: _collective_choice.wrapped(found, *how)


def _return_false(path) -> bool:
    """Replaces _is_on_hf_mount: no file is mapped here, so no mapping must be avoided."""
    return False


def _with_deferred_load(original: Callable, files: Files) -> Callable:
    """Makes one DeferredLoad for each model."""
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def convert_and_load_state_dict_in_model(*given, **named):
        arguments = parameters.bind(*given, **named).arguments
        distributed = arguments["load_config"].device_mesh is not None
        distributed_call = _collective_choice.current.get() if distributed else None
        feed = _deferred_load.DeferredLoad(files.timeout, distributed, distributed_call)
        if distributed_call is not None:
            feed.use_native(distributed_call.announce_native())
        token = _deferred_load.current.set(feed)
        try:
            return original(**arguments)
        finally:
            _deferred_load.current.reset(token)

    return convert_and_load_state_dict_in_model


def _deferring_spawn(original: Callable) -> Callable:
    @functools.wraps(original)
    def spawn_materialize(
        thread_pool, tensor, device=None, dtype=None, sharding_op=None, tensor_idx=None
    ):
        feed = _deferred_load.current.get()
        if feed is None or not isinstance(tensor, Slice):
            return original(thread_pool, tensor, device, dtype, sharding_op, tensor_idx)

        def ask(source, at):
            return original(None, source, at, dtype, sharding_op, tensor_idx)()

        def wish(probe):
            if sharding_op is None:
                probe.request_all()  # same effect as the original, but quicker
            else:
                ask(probe, "meta")

        if not feed.note(tensor, wish, dtype, device):
            return lambda: None  # a part of another rank
        return lambda: ask(_deferred_load.LoadedSlice(tensor, feed), device)

    return spawn_materialize
