"""CKPTD_AUTO=1: a trainer that finds no daemons on its host starts them.

They go on in the background, so the next run of the same program finds its weights resident.
"""

import os
import subprocess

from . import _address, _programs
from ._errors import DeadlineExceeded, Unavailable

LINGER = "15m"  # unless CKPTD_LINGER says otherwise
_START_SECONDS = 60
_MORE_SECONDS = 30  # until it has noticed that its time is up, and has ended its daemons


def wanted() -> bool:
    return os.environ.get("CKPTD_AUTO", "") not in ("", "0")


def start_daemons(address: _address.Address) -> None:
    """Returns once all daemons of this host are ready, whichever of its trainers has started them.

    `ckptd launch --detach` reads how many there are to be, and where rank 0 is, from the variables
    of torchrun, Slurm or MPI. Raises Unavailable (DAEMON_UNREACHABLE) with what it said.
    """
    command = [
        *(_program(address), "launch", "--detach", f"--start-timeout={_START_SECONDS}"),
        *("--linger", os.environ.get("CKPTD_LINGER") or LINGER),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=_START_SECONDS + _MORE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(
            f"starting the ckptd daemons of this host (CKPTD_AUTO is set): {' '.join(command)} has "
            f"not ended within {error.timeout:g} s; see its log beside {address.path}",
            "DEADLINE",
            {"address": address.path},
        ) from None
    if done.returncode != 0:
        raise Unavailable(
            f"starting the ckptd daemons of this host (CKPTD_AUTO is set): {' '.join(command)} ended "
            f"with code {done.returncode}: {done.stderr.strip() or 'it said nothing'}",
            "DAEMON_UNREACHABLE",
            {"address": address.path},
        )


def _program(address: _address.Address) -> str:
    """The ckptd of this installation, else the one in PATH."""
    try:
        return _programs.find("ckptd")
    except FileNotFoundError:
        raise Unavailable(
            "starting the ckptd daemons of this host (CKPTD_AUTO is set): there is no program ckptd "
            "in PATH; install the wheel for your platform, or put it into PATH",
            "DAEMON_UNREACHABLE",
            {"address": address.path},
        ) from None
