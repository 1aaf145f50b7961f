"""Finds the files that `checkpoint` means to accelerate's load_checkpoint_in_model."""

import json
import logging
import os
from typing import List, NamedTuple

from .. import _folder
from .._errors import InvalidArgument

_LOG = logging.getLogger("ckptd")
_PICKLED = "pytorch_model.bin"
_INDEX = ".index.json"


class Files(NamedTuple):
    """source: a file, the index that lists `files`, or their folder. files: sorted paths."""

    source: str
    files: List[str]

    @property
    def without_index(self) -> bool:
        """Whether they are several files of a folder, which accelerate does not support."""
        return len(self.files) > 1 and not self.source.endswith(".json")



def resolve(path: str) -> Files:
    """A file, an index, or a folder.

    In a folder the daemons' rule counts, or accelerate's if that finds no safetensors.
    Raises ValueError where accelerate does, OSError and ValueError for an index that cannot be
    read; InvalidArgument SOURCE_INVALID for one that names files outside of its folder, which
    accelerate would follow.
    """
    if os.path.isdir(path):
        names = _in_folder(path)
        if len(names) > 1:
            return Files(path, [os.path.join(path, name) for name in names])
        path = os.path.join(path, names[0])
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
    if away:
        raise InvalidArgument(
            f"loading {path}: it names {away[0]!r}, which is not below its folder; daemons do not follow "
            "that, because an index comes with a checkpoint from anywhere and must not choose what they "
            "read; put the files, or symbolic links to them, beside the index, and name those",
            "SOURCE_INVALID",
            {"file": path},
        )
    return found


def _in_folder(folder: str) -> List[str]:
    """Names of the files, or of one file or index."""
    if not _folder.holds_safetensors(folder):
        return [_by_accelerate(folder)]
    try:
        names = _folder.choose(folder)
    except InvalidArgument as error:
        raise ValueError(str(error)) from error
    if names[0] not in _folder.PICKLES and os.path.exists(os.path.join(folder, _PICKLED)):
        _LOG.warning(
            "loading %s: %s counts, as for transformers, and %s is left out, which accelerate "
            "alone would read; pass a file's own path to choose",
            folder,
            names[0],
            _PICKLED,
        )
    return names


def _by_accelerate(folder: str) -> str:
    names = sorted(os.listdir(folder))
    if _PICKLED in names:
        return _PICKLED
    indices = [name for name in names if name.endswith(_INDEX)]
    if len(indices) == 1:
        return indices[0]
    what = f"{len(indices)} of them, {', '.join(indices[:3])}" if indices else "none"
    raise ValueError(
        f"loading {folder}: it needs {_PICKLED} or model.safetensors, or one file *{_INDEX}, and has "
        f"{what}; pass the file or the index itself"
    )
