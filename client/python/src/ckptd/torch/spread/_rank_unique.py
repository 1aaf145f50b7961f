"""Finds tensors of which each rank may have its own values, although their names are equal.

Experts that a rank keeps for itself are an example. Values cannot tell: ranks that started from
one seed have equal values, and models on meta have none. Wrapping tells: if FSDP or
DistributedDataParallel ignores a parameter, nothing keeps it equal on all ranks.
"""

from typing import List

from torch import nn

from ..._errors import FailedPrecondition
from ..compat import _fsdp1_internals, _torch_internals
from ..load import _load_hooks
from ..load._targets import Target

_SHOWN = 5


def refuse(doing: str, model: nn.Module, modules: _load_hooks.Modules, targets: List[Target]) -> None:
    """Raises FailedPrecondition (RANK_UNIQUE) for tensors that may need other values than rank 0's."""
    found = _left_out(model, modules, targets) + _on_fewer_ranks(targets)
    if not found:
        return
    names = sorted({target.name for target in found})
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise FailedPrecondition(
        f"{doing}: {', '.join(names[:_SHOWN])}{more}: FSDP or DistributedDataParallel leaves them out "
        "(ignored_params), or shards them over fewer ranks than the rest, so each rank may have values of its "
        "own there, as of experts, and rank 0's would take their place; pass allow_rank0_values=True where rank 0's "
        "are right for all, or to give ranks theirs afterwards",
        "RANK_UNIQUE",
        {"tensor": names[0]},
    )


def _left_out(model: nn.Module, modules: _load_hooks.Modules, targets: List[Target]) -> List[Target]:
    """Plain parameters inside FSDP modules or ignored by DDP, and buffers of the same modules."""
    inside, ignored = set(), _torch_internals.ignored_by_ddp(model)
    for _, module in modules:
        if id(module) not in inside and (_torch_internals.is_fsdp2(module) or _fsdp1_internals.is_unit(module)):
            inside.update(map(id, module.modules()))
    plain = [t for t in targets if t.spec is None and t.flat is None]
    own = [
        target
        for target in plain
        if not ignored.isdisjoint(target.names)
        or (not target.is_buffer and any(id(module) in inside for module, _ in target.slots))
    ]
    owners = {id(module) for target in own if not target.is_buffer for module, _ in target.slots}
    beside = [t for t in plain if t.is_buffer and any(id(module) in owners for module, _ in t.slots)]
    return own + beside


def _on_fewer_ranks(targets: List[Target]) -> List[Target]:
    """Targets with fewer ranks in their whole mesh than the largest mesh over which FSDP2 shards.

    Under tensor parallelism all targets have the mesh that remains for FSDP2, or a larger one.
    """
    managed = [target for target in targets if target.fsdp is not None]
    largest = max((_torch_internals.mesh_of(target.fsdp).size() for target in managed), default=0)
    return [target for target in managed if target.spec.mesh.size() < largest]
