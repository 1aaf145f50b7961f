"""Matches a model's targets with a checkpoint: names, and dtypes that daemons do not cast.

The checkpoint's list of tensors is fetched only if something here needs it.
"""

import contextlib
import functools
from dataclasses import replace
from typing import Container, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ... import _client, _dtypes
from ..._errors import Error, FailedPrecondition, InvalidArgument, NotFound
from ..._rpc import Deadline
from ..._types import Source
from . import _extra_state, _memory, _tied_weights
from ._rename import Regex, Rename, ignored, renamed
from ._targets import Target, checkpoint_tensors

_SHOWN = 5  # names in a sentence


class SourceContents:
    """The contents of a source, fetched at most once. rename: see _rename.Rename."""

    def __init__(
        self, own: _client.Client, source, deadline: Deadline, rename: Optional[Rename] = None
    ):
        self.own, self.source, self.deadline, self._rename = own, source, deadline, rename

    @functools.cached_property
    def found(self) -> Source:
        return self.own.inspect(self.source, timeout=self.deadline.for_call())

    @functools.cached_property
    def names(self) -> Optional[Dict[str, str]]:
        """The model's name -> the checkpoint's, for a renamed checkpoint; else None."""
        if self._rename is None:
            return None
        every = (*self.found.tensors, *self.found.aliases)
        return {new: old for old, new in renamed(every, self._rename).items()}

    def of(self, name: str) -> Optional[str]:
        """The checkpoint's name for a name of the model, or None."""
        if self.names is not None:
            return self.names.get(name)
        return name if name in self.found else None


def look_up(targets: List[Target], contents: SourceContents, strict: bool) -> List[Target]:
    """`targets` with the checkpoint's names and dtypes, where the layout needs them.

    That is so for renamed checkpoints, for flat parameters of FSDP1 that may be missing, and for
    real tensors, into which PyTorch copies values of any dtype. Raises NotFound
    (TENSOR_NOT_FOUND) if strict and a renamed checkpoint lacks a tensor, and FailedPrecondition
    (MODEL_PART) for parts of flat parameters.
    """
    if contents.names is not None:
        targets = [_named(target, contents) for target in targets]
        _check_found(targets, strict)
    elif not strict and any(target.flat is not None for target in targets):
        targets = [_named(t, contents) if t.flat is not None else t for t in targets]
    if any(target.persistent and not target.tensor.is_meta for target in targets):
        with contextlib.suppress(Error):  # a rank that does not see the files gets their error from the load
            targets = [_local_cast_of(target, contents.found) for target in targets]
    return targets


def _named(target: Target, contents: SourceContents) -> Target:
    held = [list(filter(None, map(contents.of, names))) for names, _ in checkpoint_tensors(target)]
    if target.flat is None:
        return replace(target, stored_names=held[0])
    named = all_members_or_none("filling a model", target, held)
    return replace(target, stored_names=sum(named, []), flat=target.flat.with_names(named) if named else target.flat)


def first_names(
    targets: List[Target], contents: SourceContents, tied: Optional[str]
) -> Tuple[List[Target], List[str]]:
    """(targets with the names that `tied` selects, names of the checkpoint left out for that)."""
    if tied != "first":
        return targets, []
    if contents.names is None:
        return _tied_weights.only_first(targets, contents.found.tensors)
    firsts = [replace(t, stored_names=t.requested_names[:1]) if t.flat is None else t for t in targets]
    return firsts, [name for t in targets if t.flat is None for name in t.requested_names[1:]]


def _check_found(targets: List[Target], strict: bool) -> None:
    lacking = [t.names[0] for t in targets if not t.requested_names and t.persistent and not t.optional]
    if lacking and (strict or not any(target.requested_names for target in targets)):
        raise NotFound(
            f"filling a model: the renamed checkpoint lacks {len(lacking)} of its tensors: "
            f"{_shown(lacking)}; rename= gives names of the "
            "checkpoint those of the model",
            "TENSOR_NOT_FOUND",
            {"tensor": lacking[0], "missing": str(len(lacking))},
        )


def all_members_or_none(doing: str, target: Target, held: List[List[str]]) -> List[List[str]]:
    """`held`, the existing names of each member of a target; empty if there is no member.

    Raises FailedPrecondition (MODEL_PART) if only some members of a flat parameter exist.
    """
    lacks = [names[0] for (names, _), found in zip(checkpoint_tensors(target), held) if not found]
    if lacks and len(lacks) < len(held):
        raise FailedPrecondition(
            f"{doing}: {target.name} is one flat parameter of FSDP1, and {lacks[0]} of it is not "
            "in the state dict; pass all of its members",
            "MODEL_PART",
            {"tensor": lacks[0]},
        )
    return [] if lacks else held


def _local_cast_of(target: Target, found: Source) -> Target:
    """`target` with the checkpoint's dtype, if the daemons do not cast it."""
    if target.flat is not None or not target.persistent or target.tensor.is_meta:
        return target
    entry = next(filter(None, map(found.find, target.requested_names)), None)
    number = _dtypes.BY_NAME[entry.dtype].number if entry and entry.dtype in _dtypes.BY_NAME else 0
    if not _memory.has_type(number):
        return target
    return with_local_cast(target, _memory.dtype_of(number, target.name))


def with_local_cast(target: Target, source) -> Target:
    """`target` requested in `source`, its dtype in the checkpoint, if the daemons do not cast it."""
    wish = target.dtype
    if wish == source or (_memory.is_castable(wish) and _memory.is_castable(source)):
        return target
    return replace(target, dtype=source, cast=target.cast or wish)


def shapes_of(extras: _extra_state.Extras, contents: SourceContents) -> List[Tuple[str, Sequence[int]]]:
    """(name, shape) of modules' extra states. Any shape is right, so it is the checkpoint's, or () if missing."""
    held = ((name, contents.found.find(name)) for name, _ in extras)
    return [(name, () if entry is None else entry.shape) for name, entry in held]


def extras_of(extras: _extra_state.Extras, contents: SourceContents) -> _extra_state.Extras:
    """`extras` under the checkpoint's names."""
    if not extras or contents.names is None:
        return extras
    return [(contents.names.get(name, name), module) for name, module in extras]


def check_counts(targets: List[Target], contents: SourceContents, held: Container[str]) -> None:
    """Refuses batch norms' counts of another shape: the daemon treats them as missing."""
    counts = (t for t in targets if t.optional and t.requested_names and t.requested_names[0] not in held)
    for name in (name for target in counts for name in target.requested_names):
        entry = contents.found.find(name)
        if entry is not None:
            raise InvalidArgument(
                f"filling {name}: the checkpoint has it in shape {list(entry.shape)}, and "
                "batch norms count in shape []; save the checkpoint with PyTorch's own counts, or "
                "without them",
                "LAYOUT_MISMATCH",
                {"tensor": name},
            )


def check_unexpected(names: List[str], source, patterns: Sequence[Regex]) -> None:
    """Refuses names that no rank requests and no pattern matches, if the daemons did not check that."""
    left = sorted(set(names) - set(ignored(names, patterns)))
    if left:
        raise InvalidArgument(
            f"{source} has {len(left)} tensor(s) that no rank asks for: {_shown(left)}; it may be another "
            "model's: load with strict=False to take what both have, or name them in ignore=",
            "UNEXPECTED_TENSORS",
            {"tensor": left[0], "unexpected": str(len(left))},
        )


def _shown(names: List[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def with_advice(error: Error, targets: Iterable[Target], contents: SourceContents) -> Error:
    """The error of a load, with advice for load_into: rename=, or a model that is not on meta."""
    name = error.facts.get("tensor", "")
    target = next((t for t in targets if name in t.names), None)
    advice = None
    with contextlib.suppress(Error):
        if error.reason == "TENSOR_NOT_FOUND":
            advice = _prefix_advice(name, contents.found.tensors)
        elif error.reason == "LAYOUT_MISMATCH" and target is not None:
            advice = _type_advice(target, contents.found)
    if advice is None:
        return error
    return type(error)(f"{error.message}; {advice}", error.reason, error.facts)


def _prefix_advice(name: str, held: Mapping[str, object]) -> Optional[str]:
    longer = next((other for other in held if other.endswith(f".{name}")), None)
    if longer is not None:
        prefix = longer[: -len(name)].replace(".", r"\.")
        return f"load_into does that by rename=[(r'^{prefix}', '')]"
    parts = name.split(".")
    for at in range(1, len(parts)):
        if ".".join(parts[at:]) in held:
            return f"load_into does that by rename=[(r'^', '{'.'.join(parts[:at])}.')]"
    return None


def _type_advice(target: Target, found: Source) -> Optional[str]:
    entry = found.find(target.name)
    wish = _dtypes.BY_NUMBER.get(_memory.number_of(target.dtype)) if target.dtype else None
    if entry is None or wish is None or wish.name == entry.dtype or not target.tensor.is_meta:
        return None
    return (
        f"PyTorch's load_state_dict(assign=True) would make it {entry.dtype}: build the model with that "
        "type, or on the host instead of on meta, where values of any type are cast"
    )
