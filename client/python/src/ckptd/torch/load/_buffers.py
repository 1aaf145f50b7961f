"""Buffers on meta that no checkpoint holds, such as rotary frequencies.

Hugging Face models compute them by their own initialisation, other models by the caller's
function. They are never guessed. Only batch norms' counts start at zero, as in torch.
"""

from typing import Callable, Container, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ..._errors import FailedPrecondition
from ..compat import _hugging_face, _torch_internals
from ._targets import Target

InitBuffers = Callable[[nn.Module, List[str]], None]


class _PendingBuffer:
    """An empty buffer in place of one on meta. It knows whether it has been filled."""

    def __init__(self, target: Target, device: torch.device):
        self.target = target
        self.meta = target.tensor
        self.device = device
        self.failure: Optional[Exception] = None  # of the model's own initialisation
        self._renew()
        if target.optional:
            self.empty.zero_()

    def _renew(self) -> None:
        meta = self.meta
        self.empty = torch.empty(meta.shape, dtype=meta.dtype, device=self.device)
        # For floats the pattern is NaN, so that an element that was never written shows.
        self.pattern = 0xFF if meta.is_floating_point() or meta.is_complex() else 0xA5
        _bytes_of(self.empty).fill_(self.pattern)
        self.version = _torch_internals.version_of(self.empty)

    def start_again(self, failure: Exception) -> None:
        """Discards what was written before `failure`: it may be incomplete."""
        self.failure = failure
        self._renew()
        self.place(self.empty)

    def place(self, value) -> None:
        for module, name in self.target.slots:
            _torch_internals.buffers_of(module)[name] = value

    def filled(self) -> bool:
        """Whether every module that holds it has it written, or replaced by another real tensor."""
        for module, name in self.target.slots:
            now = _torch_internals.buffers_of(module).get(name)
            if now is None or now.is_meta or (now is self.empty and not self._written()):
                return False
        return True

    def _written(self) -> bool:
        """Compares the version and then the bytes, because a write through .data has no version.

        A write of exactly the pattern through .data is missed. That raises an error without need;
        assuming a write would leave arbitrary values.
        """
        if self.empty.numel() == 0 or _torch_internals.version_of(self.empty) != self.version:
            return True
        return bool((_bytes_of(self.empty) != self.pattern).any())


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


@torch.inference_mode(False)  # inference mode counts no writes
def recompute(
    model: nn.Module,
    left: List[Target],
    init_buffers: Optional[InitBuffers],
    device: torch.device,
    held: Sequence[Target] = (),
) -> Tuple[List[str], List[Target]]:
    """Computes the buffers of `left` and `held`, all on meta, on `device`.

    held: buffers for which the checkpoint has a value. Returns the names of computed buffers, and
    those of `held` that could not be computed, which are on meta again. If one of `left` cannot be
    computed, it is on meta again and named in the error.
    """
    blanks = [_PendingBuffer(target, device) for target in (*left, *held)]
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
        failures = [blank.failure for blank in unfilled if blank.failure]
        for blank in blanks:
            blank.failure = None  # its traceback would keep the model alive
    spared = {id(target) for target in held}
    lost = [blank for blank in unfilled if id(blank.target) not in spared]
    if lost:
        raise _not_computed(lost, failures)
    open_ones = {id(blank) for blank in unfilled}
    made = sorted(blank.target.name for blank in blanks if id(blank) not in open_ones)
    return made, [blank.target for blank in unfilled]


def _not_computed(unfilled: List[_PendingBuffer], failures: List[Exception]) -> FailedPrecondition:
    """The error for buffers that were not computed, caused by the first of `failures`. Clears the list."""
    names = sorted(blank.target.name for blank in unfilled)
    cause = failures[0] if failures else None
    failures.clear()
    raised = ""
    if cause is not None:
        said = f"{type(cause).__name__}: {cause}"
        said = said if len(said) <= 300 else f"{said[:300]}..."
        raised = f"; the model's own initialisation raised {said}"
    error = FailedPrecondition(
        f"filling the model: {len(names)} buffers are in no checkpoint and still without "
        f"values ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}); pass "
        f"init_buffers=, a function of (model, names) that computes them{raised}",
        "BUFFERS_LEFT",
        {"buffers": ",".join(names)},
    )
    error.__cause__ = cause
    return error


def _by_hugging_face(model: nn.Module, blanks: List[_PendingBuffer]) -> None:
    """Lets transformers models compute the open buffers inside of them.

    Only outermost models are asked: they know which inner model initialises which module. A
    module that two of them share is left to the first.
    """
    rest = [blank for blank in blanks if not blank.filled()]  # counts are filled already
    reached: set = set()
    for root in _hugging_face.roots(model) if rest else ():
        fresh = {id(module) for module in root.modules()} - reached
        own = [b for b in rest if any(id(module) in fresh for module, _ in b.target.slots)]
        if own:
            _ask(model, root, own, fresh)
        asked = {id(blank) for blank in own}
        rest = [blank for blank in rest if id(blank) not in asked]
        reached |= fresh


def _ask(model: nn.Module, root: nn.Module, own: List[_PendingBuffer], fresh: Container[int]) -> None:
    """Has `root` fill the buffers `own`, if it can. Notes its error in them.

    fresh: ids of the modules that it may initialise. Older transformers initialise the modules
    that they are given: these are the buffers' owners.
    """
    but = {id(blank.empty) for blank in own}
    plain = _torch_internals.without_fsdp2_classes(model.modules())
    with torch.no_grad(), _hugging_face.protected(model, but, fresh), plain:
        try:
            owners = {id(m): m for blank in own for m, _ in blank.target.slots if id(m) in fresh}
            _hugging_face.initialise(root, owners.values())
        except Exception as error:
            for blank in own:
                blank.start_again(error)
