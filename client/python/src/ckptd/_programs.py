"""`ckptd` and `ckptctl` as commands of the environment. Wheels for a platform contain the programs."""

import os
import shutil
import sys

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def path(name: str) -> str:
    """Path of the program in this installation. Raises FileNotFoundError if there is none."""
    found = os.path.join(_FOLDER, name)
    if not os.path.exists(found):
        raise FileNotFoundError(
            f"there is no {found}: this installation of ckptd holds the Python client alone; "
            "install the wheel for your platform, or build the programs from the repository"
        )
    if not os.access(found, os.X_OK):
        raise FileNotFoundError(
            f"{found} may not be executed: it lost its mode when it was unpacked; chmod +x it"
        )
    return found


def find(name: str) -> str:
    """The program of this installation, else the one in PATH. Raises FileNotFoundError if there is none."""
    try:
        return path(name)
    except FileNotFoundError:
        found = shutil.which(name)
        if found is None:
            raise
    return found


def _exec_program(name: str) -> None:
    """Replaces this process by the program. Its pid, signals and descriptors stay."""
    try:
        program = path(name)
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {error}")


def ckptd() -> None:
    _exec_program("ckptd")


def ckptctl() -> None:
    _exec_program("ckptctl")
