"""Views: sources with other names, axes and tensors. Rules are read and applied by the daemon."""

import json
import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence, Union

from ._source import Path

# The rules as a dict {"rules": [...]} or a list, their JSON, or a path (PathLike, or "....json") of it.
View = Union[None, str, os.PathLike, Mapping[str, Any], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class ViewedPath(os.PathLike):
    """A source together with the view through which it is read."""

    path: Union[str, bytes]
    view: str

    def __fspath__(self) -> Union[str, bytes]:
        return self.path

    def __str__(self) -> str:
        return os.fsdecode(self.path)


def through(source: Path, view: View) -> Path:
    """`source`, seen through `view`. Raises OSError for a file of rules that cannot be read."""
    return source if view is None else ViewedPath(os.fspath(source), _text(view))


def view_of(source: Path) -> str:
    return source.view if isinstance(source, ViewedPath) else ""


def _text(view: View) -> str:
    if isinstance(view, os.PathLike) or (isinstance(view, str) and view.endswith(".json")):
        with open(view, encoding="utf-8") as file:
            return file.read()
    if isinstance(view, str):
        return view
    # Equal rules have equal texts, by which daemons know them again.
    rules = view if isinstance(view, Mapping) else {"rules": list(view)}
    return json.dumps(rules, sort_keys=True, separators=(",", ":"))
