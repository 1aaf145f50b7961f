"""Paths of checkpoints, and how messages hold them: as text, or as file URIs (RFC 8089)."""

import os
from typing import AnyStr, Union
from urllib.parse import quote, unquote_to_bytes

Path = Union[str, bytes, os.PathLike]
_SCHEME = "file://"


def source_text(source: Path) -> str:
    """`source`, a path or a file:/// URI, as an absolute path; where that is not UTF-8, a URI.

    An empty one stays empty, for the daemon to refuse.
    """
    given = os.fsencode(source)
    if not given:
        return ""
    path = absolute(os.fsencode(path_of(os.fsdecode(given))))
    try:
        return path.decode()
    except UnicodeDecodeError:
        return _SCHEME + quote(path)


def absolute(path: AnyStr) -> AnyStr:
    """As os.path.abspath, but what follows a link before ".." is where the link leads.

    Links behind the last ".." stay: names of files may say what they are.
    """
    slash, up = (b"/", b"..") if isinstance(path, bytes) else ("/", "..")
    parts = path.split(slash)
    if up not in parts:
        path = os.path.abspath(path)
    else:
        behind = len(parts) - parts[::-1].index(up)
        path = os.path.join(os.path.realpath(slash.join(parts[:behind])), *parts[behind:])
        path = os.path.normpath(path)
    # Python keeps two slashes in front, which mean no other place on Linux, and daemons do not.
    return path[1:] if path.startswith(2 * slash) else path


def path_of(text: str) -> str:
    """The path that `text` stands for: itself, or a file:/// URI's."""
    if not text.startswith(_SCHEME + "/"):
        return text
    return os.fsdecode(unquote_to_bytes(os.fsencode(text[len(_SCHEME) :])))
