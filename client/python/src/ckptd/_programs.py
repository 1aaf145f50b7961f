"""`ckptd` and `ckptctl`, which a wheel for a platform carries, as commands of the environment."""

import os
import sys

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def path(name: str) -> str:
    """Where this installation keeps the program. Raises FileNotFoundError if it has none."""
    found = os.path.join(_FOLDER, name)
    if not os.path.exists(found):
        raise FileNotFoundError(
            f"there is no {found}: this installation of ckptd holds the Python client alone; "
            "install the wheel for your platform, or build the programs from the repository"
        )
    if not os.access(found, os.X_OK):
        raise FileNotFoundError(
            f"{found} may not be executed: what unpacked it dropped its mode; chmod +x it"
        )
    return found


def _become(name: str) -> None:
    """The same process goes on as the program: its pid, signals and descriptors stay."""
    try:
        program = path(name)
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {error}")


def ckptd() -> None:
    _become("ckptd")


def ckptctl() -> None:
    _become("ckptctl")
