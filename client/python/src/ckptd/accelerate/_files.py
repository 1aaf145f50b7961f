"""Which files `checkpoint` means to accelerate's load_checkpoint_in_model."""

import json
import os
from typing import List, NamedTuple

from .._errors import InvalidArgument

_WHOLE = ("pytorch_model.bin", "model.safetensors")  # in a folder, the first one counts
_INDEX = ".index.json"


class Files(NamedTuple):
    """source: the file, or the index that lists `files`; these are paths, sorted."""

    source: str
    files: List[str]

    @property
    def by_daemons(self) -> bool:
        """Whether there is something to read, and all of it safetensors."""
        return bool(self.files) and all(path.endswith(".safetensors") for path in self.files)


def resolve(path: str) -> Files:
    """A file, an index, or a folder with a whole model's file or just one index.

    The rule is accelerate's. Raises ValueError where it does, OSError and ValueError for
    an index that cannot be read; InvalidArgument SOURCE_INVALID for one that names
    safetensors files outside of its folder, which accelerate would follow.
    """
    if os.path.isdir(path):
        path = os.path.join(path, _in_folder(path))
    elif not os.path.isfile(path):
        raise ValueError(
            f"loading {path}: there is no such file or folder; pass a file of weights, the index "
            "of a sharded checkpoint, or a folder with either"
        )
    if not path.endswith(".json"):
        return Files(path, [path])
    with open(path, encoding="utf-8") as file:
        listed = json.load(file)
    names = sorted(set(listed.get("weight_map", listed).values()))
    found = Files(path, [os.path.join(os.path.dirname(path), name) for name in names])
    away = [name for name in names if os.path.isabs(name) or ".." in name.split("/")]
    if away and found.by_daemons:
        raise InvalidArgument(
            f"loading {path}: it names {away[0]!r}, which is not below its folder; daemons do not follow "
            "that, because an index comes with a checkpoint from anywhere and must not choose what they "
            "read; put the files, or symbolic links to them, beside the index, and name those",
            "SOURCE_INVALID",
            {"file": path},
        )
    return found


def _in_folder(folder: str) -> str:
    names = sorted(os.listdir(folder))
    whole = [name for name in _WHOLE if name in names]
    indices = [name for name in names if name.endswith(_INDEX)]
    if whole:
        return whole[0]
    if len(indices) == 1:
        return indices[0]
    what = f"{len(indices)} of them, {', '.join(indices[:3])}" if indices else "none"
    raise ValueError(
        f"loading {folder}: it needs {' or '.join(_WHOLE)}, or one file *{_INDEX}, and has {what}; "
        "pass the file or the index itself"
    )
