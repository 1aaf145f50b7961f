"""Paths of checkpoints. Messages hold them as text, or as file URIs (RFC 8089)."""

import os
import re
from typing import AnyStr, Mapping, Optional, Tuple, Union
from urllib.parse import quote, unquote_to_bytes

from ._hub_cache import path_of_name

Path = Union[str, bytes, os.PathLike]
_SCHEME = "file://"
_PART = re.compile(r"(.*)#([A-Za-z0-9_.-]+)", re.DOTALL | re.ASCII)


def check_path(doing: str, source: object) -> None:
    """Raises TypeError for an argument that is no path, with advice."""
    if isinstance(source, (str, bytes, os.PathLike)):
        return
    what_to_try = "pass the path of a .safetensors file, of an index or of a folder"
    if isinstance(source, (list, tuple, set)):
        what_to_try = "for several files pass the folder that holds them, or their index"
    elif isinstance(source, Mapping):
        what_to_try = "a dict of tensors goes into set_model_state_dict, or model.load_state_dict"
    raise TypeError(
        f"{doing}: the checkpoint is of type {type(source).__name__}, no path; {what_to_try}"
    )


def local_path(source: Path) -> str:
    """The local path for `source`. If there is no such path, "~" and variables are expanded as in
    a shell, and models of the Hugging Face hub are found in their local cache. "#part" stays
    behind it.

    Raises TypeError, and ckptd.Error as path_of_name does.
    """
    check_path("opening a checkpoint", source)
    text = path_of(os.fsdecode(source))
    if ("~" in text[:1] or "$" in text) and not os.path.lexists(text):
        text = os.path.expandvars(os.path.expanduser(text))
    path, part = split_part(text)
    return join_part(path_of_name(path), part)


def split_part(path: str) -> Tuple[str, str]:
    """A path and the part behind its "#", which is "" where there is none, or a file of that name."""
    found = _PART.fullmatch(path)
    if found is None or os.path.lexists(path):
        return path, ""
    return found[1].rstrip("/") or "/", found[2]


def join_part(path: str, part: Optional[str]) -> str:
    return f"{path}#{part}" if part else path


def of_part(source: Path, part: Optional[str]) -> Path:
    """`source` with the part that an argument names. It may be named in one way only."""
    if part is None:
        return source
    path, named = split_part(local_path(source))
    if named:
        raise ValueError(
            f"opening {path}: part={part!r} and its name, which ends in #{named}, ask for two parts; "
            "name one of them"
        )
    return join_part(path, part)


def of_variant(source: Path, variant: Optional[str]) -> Path:
    """The file or index of a folder that transformers reads for a `variant` such as "fp16"."""
    if variant is None:
        return source
    folder = local_path(source)
    names = (
        f"model.{variant}.safetensors",
        f"model.safetensors.index.{variant}.json",
        f"pytorch_model.{variant}.bin",
        f"pytorch_model.bin.index.{variant}.json",
    )
    paths = [os.path.join(folder, name) for name in names]
    return next(filter(os.path.exists, paths), paths[0])


def source_text(source: Path) -> str:
    """local_path as an absolute path, or as a file URI if it is not UTF-8.

    An empty path stays empty, and the daemon refuses it.
    """
    given = os.fsencode(local_path(source))
    if not given:
        return ""
    path = absolute(given)
    try:
        return path.decode()
    except UnicodeDecodeError:
        return _SCHEME + quote(path)


def absolute(path: AnyStr) -> AnyStr:
    """Like os.path.abspath, but links before ".." are resolved.

    Links behind the last ".." stay, because names of files may tell their format.
    """
    slash, up = (b"/", b"..") if isinstance(path, bytes) else ("/", "..")
    parts = path.split(slash)
    if up not in parts:
        path = os.path.abspath(path)
    else:
        behind = len(parts) - parts[::-1].index(up)
        path = os.path.join(os.path.realpath(slash.join(parts[:behind])), *parts[behind:])
        path = os.path.normpath(path)
    # Python keeps two leading slashes, which have no meaning on Linux. Daemons do not keep them.
    return path[1:] if path.startswith(2 * slash) else path


def path_of(text: str) -> str:
    """The path for `text`: the path of a file:/// URI, or the text itself."""
    if not text.startswith(_SCHEME + "/"):
        return text
    return os.fsdecode(unquote_to_bytes(os.fsencode(text[len(_SCHEME) :])))
