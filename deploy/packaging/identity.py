"""What a build was made from: version, commit and when that was."""

import pathlib
import re
import subprocess
import time

import elf

ROOT = pathlib.Path(__file__).resolve().parents[2]


def version() -> str:
    """The project's; the wheel must bear the same one."""
    project = re.search(
        r"^project\(ckptd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M
    ).group(1)
    client = re.search(
        r'^version = "(.+)"', (ROOT / "client/python/pyproject.toml").read_text(), re.M
    ).group(1)
    if project != client:
        raise elf.Unfit(
            f"CMakeLists.txt says version {project} and client/python/pyproject.toml {client}; "
            "make them one"
        )
    return project


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    name = git("rev-parse", "HEAD") or "unknown"
    return f"{name} and changes" if git("status", "--porcelain") else name


def epoch() -> int:
    """When the commit was made, in seconds: the time of all that is packed, so that it comes out the same."""
    return int(git("log", "-1", "--format=%ct") or time.time())
