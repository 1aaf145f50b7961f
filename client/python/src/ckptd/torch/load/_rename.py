"""rename= and ignore=: maps names of a checkpoint to names of a model. Pure, without torch."""

import re
from typing import Callable, Dict, Iterable, List, Mapping, Pattern, Tuple, Union

from ..._errors import InvalidArgument

Regex = Union[str, Pattern[str]]
# A dict from the checkpoint's names to the model's, a function that does the same, or
# (pattern, replacement) pairs for re.sub, applied in turn.
Rename = Union[Mapping[str, str], Callable[[str], str], Iterable[Tuple[Regex, str]]]


def renamed(names: Iterable[str], rename: Rename) -> Dict[str, str]:
    """Each of a checkpoint's `names` -> the name that `rename` gives it, in their order.

    Other names stay. Raises InvalidArgument (INVALID_REQUEST) if two names become one, if the
    checkpoint lacks a name of a dict, and for arguments of another kind. Errors of a function are
    passed on.
    """
    names = list(names)
    rule = _rule_of(rename, names)
    found: Dict[str, str] = {}
    first: Dict[str, str] = {}
    for name in names:
        new = rule(name)
        if not isinstance(new, str):
            raise _arrangement_reason(f"it made {new!r:.200} of {name!r}; return a name, {name!r} itself to keep it")
        if new in first:
            raise _arrangement_reason(f"it makes {new!r} of both {first[new]!r} and {name!r}; give each its own name")
        found[name], first[new] = new, name
    return found


def _rule_of(rename: Rename, names: List[str]) -> Callable[[str], str]:
    if isinstance(rename, Mapping):
        lacking = sorted(set(rename) - set(names), key=str)
        if lacking:
            raise _arrangement_reason(
                f"the checkpoint has no {lacking[0]!r:.200}, the name that is to become "
                f"{rename[lacking[0]]!r:.200}; keys are names of the checkpoint, values those of the model"
            )
        return lambda name: rename.get(name, name)
    if callable(rename):
        return rename
    pairs = [_pair(each) for each in _listed(rename)]

    def by_pairs(name: str) -> str:
        for pattern, replacement in pairs:
            name = pattern.sub(replacement, name)
        return name

    return by_pairs


def _listed(rename: Iterable) -> List:
    if isinstance(rename, (str, bytes)) or not isinstance(rename, Iterable):
        raise _arrangement_reason(f"{rename!r:.200} is none; {_FORMS}")
    return list(rename)


def _pair(pair) -> Tuple[Pattern[str], str]:
    if isinstance(pair, (str, bytes)) or not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise _arrangement_reason(f"{pair!r:.200} is no pair; {_FORMS}")
    return _compiled(pair[0], "rename"), pair[1]


def ignored(names: Iterable[str], patterns: Iterable[Regex]) -> List[str]:
    """Names of `names` in which re.search finds one of `patterns`.

    Raises InvalidArgument (INVALID_REQUEST) if `patterns` is no list of patterns.
    """
    if isinstance(patterns, (str, bytes)):
        raise _arrangement_reason(f"{patterns!r:.200} is no list of patterns; pass [{patterns!r:.200}]", "ignore")
    compiled = [_compiled(pattern, "ignore") for pattern in patterns]
    return [name for name in names if any(pattern.search(name) for pattern in compiled)]


def _compiled(pattern: Regex, argument: str) -> Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise _arrangement_reason(f"{pattern!r:.200} is no regular expression: {error}", argument) from None


_FORMS = (
    "pass a dict of the checkpoint's names to the model's, a function of a name, or a list of "
    "(pattern, replacement)"
)


def _arrangement_reason(what: str, argument: str = "rename") -> InvalidArgument:
    return InvalidArgument(f"reading {argument}=: {what}", "INVALID_REQUEST")
