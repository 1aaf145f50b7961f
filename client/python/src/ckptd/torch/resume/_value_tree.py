"""Plain values of a source as nested dicts and lists, from the paths that lead to them."""

import json
from typing import Any, Dict, List, Optional, Tuple

from ..._errors import Unimplemented
from ..._types import Source
from ..spread import _plain_values

# Among the values of the part "extra": what the name and the JSON of a value do not tell of its types.
_TYPES = ".types."
_KINDS = ("dict", "list", "tuple")

Path = List[Tuple[Optional[str], Any]]  # (kind of container if it is known, key) from the root on


class _Container(dict):
    """What lies below a part of a path. Items of lists and tuples have texts as keys."""

    kind: Optional[str] = None


class Types:
    """What a source tells of types of its values and tensors."""

    def __init__(self, found: Source) -> None:
        self._found = found

    def path(self, name: str) -> Path:
        """The path of a value or tensor, of which the name alone tells the parts between its dots."""
        below, path, _ = self._of(name)
        return [(None, part) for part in below.split(".")] * bool(below) + path

    def value(self, name: str, text: str) -> Any:
        """The value of a text of JSON. See `parsed` for errors."""
        told = self._of(name)[2]
        return parsed(self._found, name, text) if told is None else told[0]

    def _of(self, name: str) -> Tuple[str, Path, Optional[list]]:
        """(name that is split at its dots, the path below it, [value] where JSON does not tell it)."""
        try:
            told = json.loads(self._found.values.get(_TYPES + name, "null"))
            path = [(kind, _key(kind, key)) for kind, key in told["path"]]
            value = [_plain_values.decode(told["value"])] if "value" in told else None
            return str(told["below"]), path, value
        except (KeyError, TypeError, ValueError, RecursionError):  # nothing is told, or nonsense
            return name, [], None


def _key(kind: str, key: Any) -> Any:
    if kind not in _KINDS:
        raise ValueError(f"there is no container {kind!r:.40}")
    made = _plain_values.decode(key)
    hash(made)
    return made if kind == "dict" else str(int(made))


def tree(found: Source) -> Dict[Any, Any]:
    """All values of a source, with types. See `parsed` for errors."""
    types, root = Types(found), _Container()
    for name, text in found.values.items():
        if not name.startswith(_TYPES):
            put_at(root, types.path(name), types.value(name, text))
    return root


def put_at(root: Dict[Any, Any], path: Path, value: Any) -> None:
    """Adds a value at a path."""
    at = root
    for number, (kind, key) in enumerate(path):
        at.kind = kind or at.kind
        if number == len(path) - 1:
            at[key] = value
        else:
            inner = at.get(key)
            at[key] = at = inner if isinstance(inner, _Container) else _Container()


def of(found: Source, prefix: str) -> Dict[str, Any]:
    """Values below a prefix, nested by the parts of their paths. See `parsed` for errors."""
    tree: Dict[str, Any] = {}
    for name, text in found.values.items():
        if name.startswith(prefix):
            put(tree, name[len(prefix):], parsed(found, name, text))
    return tree


def put(tree: Dict[str, Any], path: str, value: Any) -> None:
    """Adds a value at a path of parts with dots between them."""
    *parents, last = path.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
    tree[last] = value


def parsed(found: Source, name: str, text: str) -> Any:
    """The value of a text of JSON. Raises Unimplemented (VALUE_TOO_LONG) for one that was left out."""
    if text:
        return json.loads(text)
    raise Unimplemented(
        f"reading {name} of {found.source}: it is longer than 64 KiB, and longer values are not "
        "handed over; load this file with torch",
        "VALUE_TOO_LONG",
        {"name": name},
    )


def with_lists(value: Any) -> Any:
    """`value` with lists and tuples for what is one, and else for dicts whose keys are 0, 1, 2 and so on."""
    if not isinstance(value, dict):
        return value
    kind = getattr(value, "kind", None)
    if value and kind != "dict" and all(str(i) in value for i in range(len(value))):
        items = [with_lists(value[str(i)]) for i in range(len(value))]
        return tuple(items) if kind == "tuple" else items
    return {key: with_lists(each) for key, each in value.items()}
