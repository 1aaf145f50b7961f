"""Finds users who could put something else in the place that a path names."""

import grp
import os
import pwd
import stat
from typing import Iterable, Optional

_MAX_LINKS = 40  # as the kernel's


def _is_private(group: int, owner: int) -> bool:
    """Whether that is the group of a user in which nobody else is: some systems let it write by default.

    Root's group is no such one.
    """
    try:
        user, found = pwd.getpwuid(owner), grp.getgrgid(group)
    except KeyError:
        return False
    alone = set(found.gr_mem) <= {user.pw_name}
    return owner != 0 and user.pw_gid == group and user.pw_name == found.gr_name and alone


def _in_folder(path: str, info: os.stat_result, trusted: set, mounted: bool) -> Optional[str]:
    if info.st_uid not in trusted:
        return f"{path} belongs to user {info.st_uid}"
    others = info.st_mode & 0o022
    if not others or info.st_mode & stat.S_ISVTX or mounted:
        return None
    if others == 0o020 and _is_private(info.st_gid, info.st_uid):
        return None
    return (
        f"other users may write in {path} (mode {stat.S_IMODE(info.st_mode):04o}; `chmod go-w` or "
        "`chmod +t` ends that)"
    )


def why_unsafe(path: str, trusted: Iterable[int]) -> Optional[str]:
    """Why a user who is neither root nor in `trusted` could change what `path` leads to; None if nobody could.

    The rules are those of common/base/trusted_path.h: each folder and link on the way, and the path
    itself, belong to a trusted user, and others than its private group may write only in sticky folders
    and in mount points of root's, such as volumes of pods. Names may be used again, since each is looked at in a folder
    that was found safe.
    """
    root = os.stat("/")
    roots = {0, root.st_uid}  # a user namespace without root shows its files as nobody's
    trusted = roots.union(trusted)
    why = _in_folder("/", root, trusted, False)
    at, device, links = "", root.st_dev, 0
    left = os.path.join(os.getcwd(), path).split("/")[::-1]
    while left and why is None:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at).rstrip("/")
            continue
        here = f"{at}/{name}"
        try:
            info = os.lstat(here)
            if info.st_uid not in trusted:
                return f"{here} belongs to user {info.st_uid}"
            if stat.S_ISLNK(info.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    return f"{here} is a link that leads nowhere"
                target = os.readlink(here)
                at = "" if target.startswith("/") else at
                left += target.split("/")[::-1]
                continue
            if stat.S_ISDIR(info.st_mode):
                info = os.stat(f"{here}/.")  # mounts what is mounted on demand
                mounted = info.st_uid in roots and info.st_dev != device
                why = _in_folder(here, info, trusted, mounted)
                device = info.st_dev
        except OSError as error:
            return f"{here} cannot be looked at ({error.strerror})"
        at = here
    return why
