"""Loads of a process that is no rank of the job: evaluation, or the parent of spawned ranks.

Such a process has no process group and no RANK and WORLD_SIZE of a launcher. Its load is for one
daemon's rank alone, rank 0's unless the address names another. That rank gets every requested
tensor, whole. The load waits for no other rank, and other ranks get nothing.
"""

from typing import Any, Dict, List

from . import _address, _dtypes, _proto
from ._errors import InvalidArgument, NotFound
from ._layout import RankLayout
from ._types import Source


def fit_layout(client, source, layout: Any, deadline) -> Any:
    """`layout`; for a process outside of the group, the same layout for one rank of the group.

    Layouts that name ranks themselves, such as "fsdp:8", stay as they are.
    """
    if isinstance(layout, str) or not _address.is_outside():
        return layout
    request = _proto.message("ListCheckpointsRequest")(page_size=1)
    place = client._call("ListCheckpoints", request, "asking for the group's size", deadline)
    if place.world_size <= 1 or _size_of(layout) != 1:
        return layout
    whole = {"only_ranks": [place.rank]}
    if layout is None:
        return {"world_size": place.world_size, "default": whole}
    if isinstance(layout, RankLayout):
        layout.source_for_rules = found = client.inspect(source, deadline.for_call())
        return _by_rule(found, layout, place)
    rules = [{**rule, **({} if rule.get("drop") else whole)} for rule in layout.get("rules", [])]
    fitted = {**layout, "world_size": place.world_size, "rules": rules}
    if "default" in layout and not layout["default"].get("drop"):
        fitted["default"] = {**layout["default"], **whole}
    return fitted


def _size_of(layout: Any) -> int:
    if isinstance(layout, dict):
        return layout.get("world_size", 1)
    return layout.world_size if isinstance(layout, RankLayout) else 1


def stored(found: Source, layout: RankLayout) -> Dict[str, str]:
    """Names of `layout` that the source has, under whichever name -> its own name for them."""
    return {name: own[0] for name, own in stored_names(found, layout).items()}


def stored_names(found: Source, layout: RankLayout) -> Dict[str, List[str]]:
    """Name of `layout` -> the source's names for it. A tied tensor may have several."""
    known: List[List[str]] = [[name] for name in layout.names]
    for alias, index in layout.aliases.items():
        known[index].append(alias)
    held = {**dict(zip(found.tensors, found.tensors)), **found.aliases}
    own = ((names[0], list(dict.fromkeys(held[n] for n in names if n in held))) for names in known)
    return {name: names for name, names in own if names}


def unexpected(found: Source, layout: RankLayout) -> List[str]:
    """Names of the source that `layout` does not request."""
    asked = (name for names in stored_names(found, layout).values() for name in names)
    return sorted(set(found.tensors) - set(asked))


def _by_rule(found: Source, layout: RankLayout, place) -> Dict[str, Any]:
    """Rules for a RankLayout of whole tensors. Raises the errors that its load would."""
    own, optional, by_dtype = stored_names(found, layout), set(layout.optional), {}
    for index, (name, shape) in enumerate(zip(layout.names, layout.shapes)):
        if name not in own:
            if not (layout.skip_missing or index in optional):
                raise NotFound(
                    f"loading {found.source}: it holds no tensor {name!r}; compare with `ckptctl inspect "
                    f"{found.source}`",
                    "TENSOR_NOT_FOUND",
                    {"tensor": name},
                )
            continue
        wanted = layout.dtypes[index]
        for stored_name in own[name]:
            tensor = found.tensors[stored_name]
            if _fits(tensor, shape, wanted):
                by_dtype.setdefault(wanted if wanted in _dtypes.CASTABLE else 0, set()).add(stored_name)
            elif index not in optional:
                raise _mismatch(found.source, tensor, stored_name, shape, wanted)
    left = unexpected(found, layout) if layout.refuse_unexpected else []
    if left:
        raise InvalidArgument(
            f"loading {found.source}: it holds {len(left)} tensors that are not asked for ({', '.join(left[:5])}); "
            "load it into the model it was saved from, or with strict=False",
            "UNEXPECTED_TENSORS",
            {"tensor": left[0]},
        )
    rules = []
    for number, names in sorted(by_dtype.items()):
        dtype = {"dtype": _dtypes.BY_NUMBER[number].name} if number else {}
        rules.append({"match": sorted(names), "only_ranks": [place.rank], **dtype})
    return {"world_size": place.world_size, "rules": rules, "default": {"drop": True}}


def _fits(tensor, shape, wanted: int) -> bool:
    in_file = _dtypes.BY_NAME[tensor.dtype].number
    same = tuple(tensor.shape) == tuple(shape) or (tuple(tensor.shape), tuple(shape)) == ((1,), ())
    return same and (wanted in (0, in_file) or {wanted, in_file} <= _dtypes.CASTABLE)


def _mismatch(source: str, tensor, name: str, shape, wanted: int) -> InvalidArgument:
    row = _dtypes.BY_NUMBER.get(wanted)
    return InvalidArgument(
        f"loading {source}: {name!r} is {tensor.dtype} of shape {list(tensor.shape)} there, and {list(shape)}"
        f"{f' of {row.name}' if row else ''} is asked for; compare with `ckptctl inspect {source}`",
        "LAYOUT_MISMATCH",
        {"tensor": name},
    )
