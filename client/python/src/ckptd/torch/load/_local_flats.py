"""Flat parameters of FSDP1 that a checkpoint has flat: those of LOCAL_STATE_DICT."""

import contextlib
from dataclasses import replace
from typing import List, Optional, Tuple

import torch

from ..._errors import Error, FailedPrecondition
from ..._types import Source
from ._source_match import SourceContents
from ._targets import Target


def look_up(targets: List[Target], contents: SourceContents) -> Tuple[List[Target], List[str]]:
    """(targets as such a checkpoint has them, names in it that are further views of these).

    Trainings with use_orig_params save a run of the flat parameter for each member, too. These fit
    any number of ranks, and trainings without it as well. A flat parameter alone fits where its
    members lie without gaps. Raises FailedPrecondition (MODEL_PART) where they do not.
    """
    flats = {target.name for target in targets if target.flat is not None}
    found = _found(contents) if flats and contents.names is None else None
    held = {name for name in flats if found is not None and name in found}
    if not held:
        return targets, []
    made = [_as_saved(target, found) if target.name in held else target for target in targets]
    return made, sorted(held - {name for target in made if target.flat is not None for name in _names(target)})


def _found(contents: SourceContents) -> Optional[Source]:
    with contextlib.suppress(Error):  # a rank that does not see the files gets their error from the load
        return contents.found
    return None


def _names(target: Target) -> List[str]:
    return [name for member in target.flat.members for name in member.names]


def _as_saved(target: Target, found: Source) -> Target:
    flat, names = target.flat, [f"{target.name}.local"]  # its own is that of a tensor there
    if all(any(name in found for name in member.names) for member in flat.members):
        members = [member._replace(shape=torch.Size([member.shape.numel()])) for member in flat.members]
        return replace(target, names=names, flat=flat.with_members(members))
    saved = found.find(target.name)
    count = sum(member.shape.numel() for member in flat.members)
    last = flat.members[-1]
    if saved.shape != (count,) or last.begin + last.shape.numel() != count:
        raise FailedPrecondition(
            f"filling {target.name}: FSDP1 has {count} elements in it, with gaps between some, and "
            f"{found.source} has it whole, in shape {list(saved.shape)}; wrap the model as the one that was "
            "saved, with use_orig_params=False",
            "MODEL_PART",
            {"tensor": target.name},
        )
    whole = last._replace(names=[target.name], shape=torch.Size([count]), begin=0)
    return replace(target, names=names, flat=flat.with_members([whole]))
