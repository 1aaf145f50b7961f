"""Chooses the files of a folder that are its checkpoint, for who reads them without a daemon.

Repeats the daemons' rule for weights of transformers, which common/source/formats/safetensors/choose.h
and config_json.h describe, and formats/torch/choose.h for files with its names.
"""

import json
import os
import re
from typing import Callable, Dict, List, Tuple

from ._errors import InvalidArgument

_WHOLE = "model.safetensors"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_USUAL_INDEX = "model.safetensors.index.json"
_SAFETENSORS, _INDEX = ".safetensors", ".safetensors.index.json"
_SERIES = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", re.DOTALL)
_NO_PART = re.compile(
    r"(adapter_model|consolidated|optimizer|pytorch_lora_weights|random_states|rng_state|scaler"
    r"|scheduler|training_state)([.-]|_[0-9])"
)
_MOST_CONFIG_BYTES = 10_000_000


def holds_safetensors(folder: str) -> bool:
    return any(name.endswith((_SAFETENSORS, _INDEX)) for name in _names(folder))


def choose(folder: str) -> List[str]:
    """Names of the files, sorted, or of the index alone. Raises ckptd.Error and OSError."""
    named = _named_by_config(folder)
    if named:
        return [named]
    names = _names(folder)
    for usual in (_WHOLE, _USUAL_INDEX):
        if usual in names:
            return [usual]
    for pickled in PICKLES:
        if pickled in names:
            return [pickled]
    files = [name for name in names if name.endswith(_SAFETENSORS)]
    indices = [name for name in names if name.endswith(_INDEX)]
    if not files and not indices:
        raise FileNotFoundError(
            f"opening {folder}: no .safetensors file in this folder; name the file of the weights, or an "
            "index.json"
        )
    indices = _of_model(indices) or indices
    if len(indices) > 1:
        raise _ambiguous(folder, "indices", indices)
    return indices or _among_files(folder, files)


def _names(folder: str) -> List[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def _of_model(names: List[str]) -> List[str]:
    return [name for name in names if not _NO_PART.match(name)]


def _among_files(folder: str, files: List[str]) -> List[str]:
    of_model = _of_model(files)
    names = of_model or files
    chosen = _series(names)
    if not chosen:
        if not of_model and len(names) > 1:
            raise _ambiguous(folder, "files", names)
        chosen = names
    _check_complete(folder, chosen)
    return chosen


_Series = Dict[Tuple[str, int], List[str]]


def _all_series(names: List[str]) -> _Series:
    series: _Series = {}
    for name in names:
        part = _SERIES.fullmatch(name)
        if part is not None:
            series.setdefault((part[1], int(part[3])), []).append(name)
    return series


def _series(names: List[str]) -> List[str]:
    """The series that counts: the only one, or the only one named "model"; [] if there is none."""
    series = _all_series(names)
    if len(series) != 1:
        series = {key: files for key, files in series.items() if key[0] == "model"}
    return next(iter(series.values())) if len(series) == 1 else []


def _check_complete(folder: str, names: List[str]) -> None:
    for (stem, count), files in _all_series(names).items():
        name_of: Callable[[int], str] = f"{stem}-{{:05}}-of-{count:05}.safetensors".format
        first = 0 if name_of(0) in files else 1
        for number in range(first, first + count):
            if name_of(number) not in files:
                raise FileNotFoundError(
                    f"opening {folder}: {name_of(number)} is missing, the other files of its "
                    "series are there; finish the download, or name the files by an index"
                )


def _ambiguous(folder: str, what: str, names: List[str]) -> InvalidArgument:
    return InvalidArgument(
        f"opening {folder}: it holds {len(names)} {what} ({names[0]}, {names[1]} ...), each "
        "another checkpoint; name the one to load",
        "SOURCE_INVALID",
        {"file": folder},
    )


def _named_by_config(folder: str) -> str:
    """The file that "transformers_weights" in config.json names, or ""."""
    path = os.path.join(folder, "config.json")
    try:
        with open(path, "rb") as file:
            config = json.loads(file.read(_MOST_CONFIG_BYTES))
        name = config.get("transformers_weights")
    except (OSError, ValueError, RecursionError, AttributeError):
        return ""
    if not isinstance(name, str):
        return ""
    inside = not os.path.isabs(name) and ".." not in name.replace("\\", "/").split("/")
    if inside and name.endswith((_SAFETENSORS, _INDEX)):
        return name
    raise InvalidArgument(
        f"reading {path}: its transformers_weights is {name!r}, no .safetensors file and no index "
        "of such files in that folder; name the file to load by its own path, or correct the config",
        "SOURCE_INVALID",
        {"file": path},
    )
