"""Views: sources with other names, axes and tensors. Rules are read and applied by the daemon."""

import json
import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence, Union

from ._source import Path, local_path, split_part

_INVERSE = "inverse:"
_NUMBERS = ("num_attention_heads", "num_key_value_heads")  # of a config.json, for sets of rules
# The rules as a dict {"rules": [...]} or a list, their JSON, or a path (PathLike, or "....json") of it.
# Or the name of a set of rules (deploy/formats.md). Text may begin with "inverse:" for the view that leads back.
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
    return source if view is None else ViewedPath(os.fspath(source), _text(view, source))


def view_of(source: Path) -> str:
    return source.view if isinstance(source, ViewedPath) else ""


def _text(view: View, source: Path) -> str:
    if isinstance(view, (str, os.PathLike)):
        prefix, text = "", os.fsdecode(view)
        if text.startswith(_INVERSE):
            prefix, text = _INVERSE, text[len(_INVERSE):]
        if not isinstance(view, os.PathLike) and not text.endswith(".json"):
            return prefix + (text if set("{:") & set(text) else _with_config(text, source))
        with open(text, encoding="utf-8") as file:
            return prefix + file.read()
    # Equal rules have equal texts, by which daemons know them again.
    rules = view if isinstance(view, Mapping) else {"rules": list(view)}
    return json.dumps(rules, sort_keys=True, separators=(",", ":"))


def _with_config(name: str, source: Path) -> str:
    """The name of a set with the numbers of the config.json beside the source, where there is one."""
    path, _ = split_part(local_path(source))
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return name
    numbers = [f"{key}={config[key]}" for key in _NUMBERS if isinstance(config.get(key), int)]
    return f"{name}:{','.join(numbers)}" if numbers else name
