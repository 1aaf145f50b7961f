"""Models that transformers converts when it loads them: names or tensors differ from the checkpoint's.

Mixtral's experts are stacked, gemma3's names differ, gpt_neox's projections are fused. A checkpoint
from save_pretrained then lacks the model's names, and from_pretrained converts it.
"""

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator, Optional, Tuple

from torch import nn

from ..._errors import Error

_REASONS = ("TENSOR_NOT_FOUND", "UNEXPECTED_TENSORS", "LAYOUT_MISMATCH")


@contextlib.contextmanager
def with_conversion_advice(model: nn.Module, names: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Adds advice to errors about names if transformers would convert one of the source's `names()`."""
    try:
        yield
    except Error as error:
        found = _first(model, names) if error.reason in _REASONS else None
        if found is None:
            raise
        raise _explained(error, *found) from error


def _explained(error: Error, kind: str, name: str, new: str) -> Error:
    return type(error)(
        f"{error.message}; transformers converts checkpoints of {kind} ({name!r} goes into {new!r}), "
        f"and load_into does not: use {kind}.from_pretrained under ckptd.patch(), or with "
        "CKPTD_PATCH=transformers in the environment",
        error.reason,
        error.facts,
    )


def _first(model: nn.Module, names: Callable[[], Iterable[str]]) -> Optional[Tuple[str, str, str]]:
    """(class, name in the source, name in the model) of the first converted name."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    converters = list(_converters(model))
    for name in names() if converters else ():
        for kind, converter in converters:
            new, _ = converter.rename_source_key(name)
            if new != name and name not in known:
                return kind, name, new
    return None


def _converters(model: nn.Module) -> Iterator[Tuple[str, Any]]:
    """(class, converter) of the Hugging Face models in `model`, if this transformers has converters."""
    library = sys.modules.get("transformers.conversion_mapping")
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    of = getattr(library, "get_checkpoint_conversion_mapping", None)
    if base is None or of is None:
        return
    for module in model.modules():
        if not isinstance(module, base):
            continue
        # FSDP2 adds classes with names of its own.
        kinds = [each.__name__ for each in type(module).__mro__ if issubclass(each, base) and each is not base]
        keys = [*kinds, getattr(module.config, "model_type", None)]
        for converter in next(filter(None, map(of, filter(None, keys))), ()):
            yield next((kind for kind in kinds if not kind.startswith("FSDP")), kinds[0]), converter
