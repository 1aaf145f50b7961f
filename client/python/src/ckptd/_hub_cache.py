"""Finds models of the Hugging Face hub in its local cache.

Repeats ckptctl's rule, which common/source/hub_cache.h describes.
"""

import os
import re
from typing import NamedTuple, Optional
from urllib.parse import unquote

from ._errors import NotFound, Unimplemented

_HUB = "hf://"
_FILES = (".safetensors", ".json", ".bin", ".pt", ".pth", ".ckpt", ".gguf")  # no model's name
_SCHEME = re.compile(r"([A-Za-z0-9]{2,})://", re.ASCII)
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
# Revisions with a slash, as huggingface_hub has them; in others it is written %2F.
_REVISION = r"refs/(?:pr|convert)/[^/]+|[^/]+"
_NAME = re.compile(
    rf"({_PART}(?:/{_PART})?)(?:@({_REVISION}))?((?:/.*)?)", re.ASCII | re.DOTALL
)


class _Name(NamedTuple):
    repo: str
    revision: str
    file: str  # inside of it, with a slash in front; may be empty


def path_of_name(text: str) -> str:
    """The path in the local cache for hf://ORG/NAME[@REVISION][/FILE], or for ORG/NAME[@REVISION]
    and NAME if there is no such path. Other text is returned as it is.

    Nothing is downloaded. Raises NotFound for a model that the cache does not hold, and
    Unimplemented for other schemes, such as s3://.
    """
    if text.startswith(_HUB):
        name = _parse(text[len(_HUB) :])
        if name is None:
            raise _not_read(text, "hf")
        return _in_cache(text, name)
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1] != "file":
        raise _not_read(text, scheme[1])
    name = None if text.endswith(_FILES) else _parse(text)
    if name is None or name.file or os.path.exists(text):
        return text
    try:
        return _in_cache(text, name)
    except NotFound:
        org, slash, _ = name.repo.partition("/")
        if slash and not os.path.exists(org):
            raise
        return text  # "folder/mistyped" is no model's name, nor is "mistyped"


def _parse(text: str) -> Optional[_Name]:
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    name = _Name(found[1], unquote(found[2] or "main"), found[3].rstrip("/"))
    return None if ".." in name.revision or ".." in name.file else name


def _cache() -> str:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return os.environ[variable]
    if os.environ.get("HF_HOME"):
        return os.environ["HF_HOME"] + "/hub"
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "") + "/.cache"
    return cache + "/huggingface/hub"


def _in_cache(text: str, name: _Name) -> str:
    folder = os.path.join(_cache(), "models--" + name.repo.replace("/", "--"))
    if not os.path.exists(folder):
        raise _not_cached(text, name, "it is not")
    commit = name.revision
    try:
        with open(os.path.join(folder, "refs", name.revision), encoding="utf-8") as file:
            commit = file.read(200).split()[0]
    except (OSError, ValueError, IndexError):
        pass
    snapshot = os.path.join(folder, "snapshots", commit)
    if "/" in commit or commit == ".." or not os.path.exists(snapshot):
        slash = " (a slash inside of a revision is written %2F)" if name.file else ""
        raise _not_cached(text, name, f'its revision "{name.revision}" is not{slash}')
    return snapshot + name.file


def _not_cached(text: str, name: _Name, why: str) -> NotFound:
    return NotFound(
        f"opening {text}: there is no such path, and as a model of the Hugging Face hub {why} in "
        f"the cache {_cache()}; download it first (`hf download {name.repo} --revision "
        f"{name.revision}`), or set HF_HOME",
        "SOURCE_NOT_FOUND",
        {"file": text},
    )


def _not_read(text: str, scheme: str) -> Unimplemented:
    what_to_try = (
        "write hf://ORG/NAME, hf://ORG/NAME@REVISION or the path of a snapshot"
        if scheme == "hf"
        else "copy it to a local or mounted folder and name that"
    )
    return Unimplemented(
        f"opening {text}: sources of {scheme}:// are not read; {what_to_try}",
        "SOURCE_UNSUPPORTED",
        {"file": text},
    )
