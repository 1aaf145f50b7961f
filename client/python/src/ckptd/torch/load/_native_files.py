"""Reads checkpoints by safetensors and torch, without a daemon, where a caller allowed that."""

import json
import os
from typing import Any, Callable, Container, Dict, Iterable, List, Mapping

from ... import _folder
from ..._errors import FailedPrecondition, InvalidArgument


def load_file(path: str) -> Mapping[str, Any]:
    """name -> tensor of a file, further names of tied tensors included."""
    if not _is_safetensors(path):
        return _load_pickled(path)
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file
    except ImportError as error:
        raise FailedPrecondition(
            f"reading {path} without the daemons: safetensors is not installed; install it, or "
            "start the daemons",
            "NO_SAFETENSORS",
        ) from error
    found = load_file(path)
    with safe_open(path, framework="pt") as file:
        for alias, name in (file.metadata() or {}).items():
            if name in found:
                found.setdefault(alias, found[name])
    return found


def _is_safetensors(path: str) -> bool:
    """Whether it has the name of such a file, or begins as one: the length of JSON, then JSON."""
    if path.endswith(".safetensors"):
        return True
    with open(path, "rb") as file:
        return file.read(9)[8:] == b"{"


def _load_pickled(path: str) -> Mapping[str, Any]:
    import torch

    found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise FailedPrecondition(
            f"reading {path} without the daemons: it is no plain dict of tensors, which is what torch alone "
            "can be asked for here; start the daemons",
            "DAEMON_UNREACHABLE",
        )
    return found


def read(
    path: str, read_file: Callable[[str], Mapping[str, Any]]
) -> Dict[str, Any]:
    """name -> value from a file, from all files of an index, or from a folder."""
    found: Dict[str, Any] = {}
    for file in _files_of(path):
        found.update(read_file(file))
    return found


def read_some(files: Iterable[str], names: Container[str]) -> Dict[str, Any]:
    """name -> tensor for each of `names` that the files hold."""
    from safetensors import safe_open

    found: Dict[str, Any] = {}
    for path in files:
        if not _is_safetensors(path):
            found.update((name, value) for name, value in _load_pickled(path).items() if name in names)
            continue
        with safe_open(path, framework="pt") as file:
            found.update((name, file.get_tensor(name)) for name in file.keys() if name in names)
    return found


def _files_of(path: str) -> List[str]:
    """Files of the checkpoint `path`, chosen by the daemons' rules."""
    if os.path.isdir(path):
        files = [os.path.join(path, name) for name in _folder.choose(path)]
    else:
        files = [path]
    return _files_of_index(files[0]) if files[0].endswith(".json") else files


def _files_of_index(path: str) -> List[str]:
    with open(path, encoding="utf-8") as file:
        try:
            named = json.load(file)["weight_map"].values()
            return [os.path.join(os.path.dirname(path), name) for name in sorted(set(named))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"opening {path}: it has no weight_map of names and files; name the index of a "
                "sharded checkpoint, a file of tensors or a folder",
                "SOURCE_INVALID",
                {"file": path},
            ) from error
