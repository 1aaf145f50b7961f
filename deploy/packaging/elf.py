"""What a program or library asks of the machine it runs on, as binutils reads it."""

import pathlib
import re
import subprocess
from typing import List, Tuple

# The parts of the C library, which every machine has.
OF_THE_SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
}
# How a fat binary of the CUDA compiler begins: mark, version, size of its head.
KERNELS = b"\x50\xed\x55\xba\x01\x00\x10\x00"


class Unfit(Exception):
    """A sentence: which file asks for what."""


def _readelf(option: str, path: pathlib.Path) -> str:
    done = subprocess.run(
        ["readelf", "-W", option, str(path)], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise Unfit(f"reading {path}: readelf says {done.stderr.strip()}")
    return done.stdout


def needed(path: pathlib.Path) -> List[str]:
    """Shared libraries that must be there when it starts."""
    return re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", _readelf("-d", path))


def glibc(path: pathlib.Path) -> Tuple[int, int]:
    """The oldest C library that has every symbol it uses."""
    versions = _readelf("-V", path)
    found = re.findall(r"\bGLIBC_(\d+)\.(\d+)", versions)
    if "GLIBC_ABI_DT_RELR" in versions:  # compact relocations, which 2.36 was the first to read
        found.append(("2", "36"))
    return max(((int(major), int(minor)) for major, minor in found), default=(2, 0))


def stripped(path: pathlib.Path) -> bool:
    return ".symtab" not in _readelf("-S", path)


def bound_at_start(path: pathlib.Path) -> bool:
    """Whether its table of functions is read-only once it runs."""
    return "GNU_RELRO" in _readelf("-l", path) and "BIND_NOW" in _readelf("-d", path)


def has_kernels(path: pathlib.Path) -> bool:
    return KERNELS in path.read_bytes()


def check(path: pathlib.Path, newest: Tuple[int, int]) -> Tuple[int, int]:
    """The C library it needs; raises Unfit if that is later than `newest`, or something else."""
    foreign = sorted(set(needed(path)) - OF_THE_SYSTEM)
    if foreign:
        raise Unfit(
            f"{path} needs {', '.join(foreign)}, which other machines may lack; link it statically"
        )
    version = glibc(path)
    if version > newest:
        raise Unfit(
            f"{path} needs glibc {version[0]}.{version[1]}, later than {newest[0]}.{newest[1]}; "
            "build on an older system"
        )
    if not stripped(path):
        raise Unfit(f"{path} still has its symbols")
    if not bound_at_start(path):
        raise Unfit(f"{path} has a table of functions that stays writable; link it with -z relro -z now")
    return version
