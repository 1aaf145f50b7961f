"""Buffers that no checkpoint holds, such as rotary frequencies, left on meta.

They are computed again by whoever knows how: Hugging Face models by their own
_init_weights, other models by the caller's function. Never guessed, and never zeros but for
batch norms' counts, which torch starts there, too.
"""

from typing import Callable, List, Optional

import torch
from torch import nn

from .._errors import FailedPrecondition
from . import _private
from ._targets import Target

InitBuffers = Callable[[nn.Module, List[str]], None]


class _Blank:
    """An empty buffer put in place of one on meta, and whether it has been filled."""

    def __init__(self, target: Target, device: torch.device):
        self.target = target
        self.meta = target.tensor
        self.empty = torch.empty(self.meta.shape, dtype=self.meta.dtype, device=device)
        self.version = _private.version_of(self.empty)
        if target.may_lack:
            self.empty.zero_()

    def place(self, value) -> None:
        for module, name in self.target.slots:
            _private.buffers_of(module)[name] = value

    def filled(self) -> bool:
        """Written in place, or replaced by another real tensor."""
        module, name = self.target.slots[0]
        now = _private.buffers_of(module).get(name)
        if now is None or now.is_meta:
            return False
        if now is self.empty:
            return _private.version_of(now) != self.version or now.numel() == 0
        return True


def remake(
    model: nn.Module,
    left: List[Target],
    init_buffers: Optional[InitBuffers],
    device: torch.device,
) -> List[str]:
    """Fills the buffers of `left`, all on meta, on `device`. Returns their names.

    Those nobody filled go back to meta and are named in the error.
    """
    blanks = [_Blank(target, device) for target in left]
    for blank in blanks:
        blank.place(blank.empty)
    done = False
    try:
        _by_hugging_face(model, blanks)
        open_names = [name for b in blanks if not b.filled() for name in b.target.names]
        if open_names and init_buffers is not None:
            init_buffers(model, open_names)
        done = True
    finally:
        unfilled = [blank for blank in blanks if not blank.filled()]
        for blank in unfilled if done else blanks:
            blank.place(blank.meta)
    if unfilled:
        names = sorted(blank.target.name for blank in unfilled)
        raise FailedPrecondition(
            f"filling the model: {len(names)} buffers are in no checkpoint and still without "
            "values "
            f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}); pass init_buffers=, a "
            "function "
            "of (model, names) that computes them",
            "BUFFERS_LEFT",
            {"buffers": ",".join(names)},
        )
    return sorted(blank.target.name for blank in blanks)


def _by_hugging_face(model: nn.Module, blanks: List[_Blank]) -> None:
    """Lets a transformers model compute the buffers of modules that own open ones."""
    owners = {}
    for blank in blanks:
        if blank.filled():  # a count, which is no business of theirs
            continue
        for module, _ in blank.target.slots:
            owners[id(module)] = module
    roots = [
        m
        for m in model.modules()
        if callable(getattr(m, "_init_weights", None)) and hasattr(m, "config")
    ]
    if not owners or not roots:
        return
    # The flag by which transformers knows weights that hold values already.
    marked = [p for p in model.parameters() if not getattr(p, "_is_hf_initialized", False)]
    for param in marked:
        param._is_hf_initialized = True
    buffers = (b for owner in owners.values() for b in _private.buffers_of(owner).values())
    kept = {id(b): b for b in buffers if b is not None}
    empties = {id(blank.empty) for blank in blanks}
    real = [
        b
        for key, b in kept.items()
        if key not in empties and not getattr(b, "_is_hf_initialized", False)
    ]
    for buffer in real:
        buffer._is_hf_initialized = True
    try:
        with torch.no_grad(), _private.set_aside(owners.values(), empties):
            for owner in owners.values():
                roots[0]._init_weights(owner)
    finally:
        for tensor in (*marked, *real):
            del tensor._is_hf_initialized
