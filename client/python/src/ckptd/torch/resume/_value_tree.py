"""Plain values of a source as nested dicts and lists, from the paths that lead to them."""

import json
from typing import Any, Dict

from ..._errors import Unimplemented
from ..._types import Source


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
    """`value` with lists in place of dicts whose keys are 0, 1, 2 and so on."""
    if not isinstance(value, dict):
        return value
    if value and all(str(i) in value for i in range(len(value))):
        return [with_lists(value[str(i)]) for i in range(len(value))]
    return {key: with_lists(each) for key, each in value.items()}
