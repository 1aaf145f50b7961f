"""Which daemon to call, and which rank this process is.

Addresses are Unix sockets: unix:///path, unix:/path or /path. The memory of a
shard travels as file descriptors, which no other transport carries.
"""

import contextlib
import glob
import os
import pwd
import socket
import struct
import sys
import time
from typing import NamedTuple, Optional

from ._errors import InvalidArgument, PermissionDenied, Unavailable
from ._trusted_path import why_unsafe

# torchrun, Slurm, Open MPI, MPICH: the first that is set counts.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MAX_SOCKET_PATH = 107  # bytes in sockaddr_un, less the terminator
_DAEMON_UID = "CKPTD_DAEMON_UID"


class Address(NamedTuple):
    path: str
    chosen_by: str  # for error sentences
    is_default: bool = False  # nobody named it

    @property
    def target(self) -> str:
        """Target for gRPC."""
        from urllib.parse import quote

        return "unix:" + quote(os.fsencode(self.path))

    def __str__(self) -> str:
        return f"unix:{self.path} ({self.chosen_by})"


def _number(*names: str) -> Optional[int]:
    for name in names:
        text = os.environ.get(name, "")
        if not text:
            continue
        if not (text.isascii() and text.isdigit()) or int(text) > 1_000_000:
            raise InvalidArgument(
                f"reading this process's rank: the environment says {name}={text!r}, which is no "
                "number; unset it or pass the address",
                "INVALID_REQUEST",
                {name: text},
            )
        return int(text)
    return None


def _process_group():
    """torch.distributed, where this program has made a process group; else None.

    Never imports torch: a program without it has no process group.
    """
    dist = sys.modules.get("torch.distributed")
    initialized = getattr(dist, "is_initialized", None)  # builds without it have none
    return dist if initialized is not None and initialized() else None


def rank() -> int:
    """Global rank: the process group's, else by torchrun's, Slurm's or MPI's environment; 0 alone."""
    group = _process_group()
    return group.get_rank() if group else _number(*_RANK) or 0


def local_rank() -> int:
    return _number("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID") or 0


def world_size() -> int:
    """Ranks of the job, found as rank() is; 1 alone."""
    group = _process_group()
    return group.get_world_size() if group else _number(*_WORLD_SIZE) or 1


def is_outside() -> bool:
    """Whether this process is no rank of a job: it has no process group, and no launcher's variables."""
    return _process_group() is None and not any(map(os.environ.get, _RANK + _WORLD_SIZE))


def _run_dir() -> str:
    explicit = os.environ.get("CKPTD_RUN_DIR")
    if explicit:
        return explicit
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return os.path.join(runtime, "ckptd")
    if os.geteuid() == 0:
        return "/run/ckptd"
    return os.path.join(os.path.expanduser("~"), ".ckptd", "run")


def _socket_path(text: str, chosen_by: str) -> str:
    path = text
    if path.startswith("unix:"):
        path = path[len("unix:") :]
        if path.startswith("//"):
            path = path[2:]
    if not path.startswith("/"):
        raise InvalidArgument(
            f"reading the daemon's address {text!r} ({chosen_by}): it is no absolute path of a "
            "Unix socket; use unix:///run/ckptd/JOB/rank-0.sock, or the path alone",
            "INVALID_REQUEST",
            {"address": text},
        )
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise InvalidArgument(
            f"reading the daemon's address {path} ({chosen_by}): it is longer than the "
            f"{_MAX_SOCKET_PATH} bytes a Unix socket can have; give the daemon a shorter run "
            "folder",
            "INVALID_REQUEST",
            {"address": path},
        )
    return path


def resolve(address: Optional[str] = None, of_rank: Optional[int] = None) -> Address:
    """The workload socket: argument, CKPTD_ADDRESS, or the default place.

    {rank} and {local_rank} are replaced. `of_rank` beats rank().
    """
    is_default = not address and not os.environ.get("CKPTD_ADDRESS")
    if address:
        text, chosen_by = os.fspath(address), "given as address"
    elif not is_default:
        text, chosen_by = os.environ["CKPTD_ADDRESS"], "from CKPTD_ADDRESS"
    else:
        job = os.environ.get("CKPTD_JOB") or os.environ.get("SLURM_JOB_ID") or "default"
        text = os.path.join(_run_dir(), job, "rank-{rank}.sock")
        chosen_by = "the default; CKPTD_ADDRESS is not set"
    if "{rank}" in text:
        text = text.replace("{rank}", str(rank() if of_rank is None else of_rank))
    if "{local_rank}" in text:
        text = text.replace("{local_rank}", str(local_rank()))
    return Address(_socket_path(text, chosen_by), chosen_by, is_default)


def _why(address: Address, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        others = glob.glob(os.path.join(glob.escape(os.path.dirname(address.path)), "rank-*[0-9].sock"))
        if others and os.path.basename(address.path).startswith("rank-"):
            return (
                f"no socket is there, beside those of {len(others)} other daemons: the group may "
                "have fewer than the job has ranks"
            )
        return "no socket is there"
    if isinstance(error, ConnectionRefusedError):
        return "a socket is there but no daemon listens on it"
    return error.strerror or str(error)


def unreachable(address: Address, error: OSError, waited: float = 0.0) -> Exception:
    """The error for a daemon that could not be reached, after `waited` seconds."""
    facts = {"address": address.path, "chosen_by": address.chosen_by}
    if isinstance(error, PermissionError):
        return PermissionDenied(
            f"connecting to the ckptd daemon at {address}: this user may not open that socket; "
            "run as the daemon's user, as root, or in the group that the daemon's --allow-gid names",
            "DAEMON_UNREACHABLE",
            facts,
        )
    why = _why(address, error)
    if waited > 0:
        why += f", and none came within {waited:g} s (`ckptd.connect(wait=60)` waits longer)"
    return Unavailable(
        f"connecting to the ckptd daemon at {address}: {why}; start the job's daemons with `ckptd "
        "launch --nproc N`, or name another with address= or CKPTD_ADDRESS",
        "DAEMON_UNREACHABLE",
        facts,
    )


def lost(address: Address, details: str) -> Exception:
    """The error for a call whose connection failed: the daemon is gone, or does not answer.

    details: gRPC's text, which is hard to understand if the daemon does not run.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.05)
            probe.connect(address.path)
    except (BlockingIOError, socket.timeout):
        pass  # its queue of connections is full
    except OSError as error:
        return unreachable(address, error)
    return Unavailable(
        f"calling the ckptd daemon at {address}: it listens there and does not answer ({details}); it "
        "is stopped, kept from running or just starting again; see its log and try again",
        "DAEMON_UNREACHABLE",
        {"address": address.path, "chosen_by": address.chosen_by},
    )


def _trusted_uids() -> set:
    """Users of whose daemons this process takes weights. Root has to name others, too."""
    named = os.environ.get(_DAEMON_UID, "")
    if not named:
        return {0, os.geteuid()}
    try:
        return {0, os.geteuid(), int(named) if named.isdigit() else pwd.getpwnam(named).pw_uid}
    except KeyError:
        raise InvalidArgument(
            f"reading the environment: {_DAEMON_UID}={named!r} is no user of this system; check "
            "the name, or write the number",
            "INVALID_REQUEST",
            {_DAEMON_UID: named},
        ) from None


def _check_owner(address: Address, connection: socket.socket) -> bool:
    """Refuses weights of another user, who made a socket where a daemon's was expected.

    Refuses a path that such a user could put another socket in, too: gRPC connects by it again.
    Whether the daemon is a foreign one: it has another user, or is in another PID namespace.
    """
    pid, uid, _ = struct.unpack(
        "3I", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    trusted = _trusted_uids()
    facts = {"address": address.path, "chosen_by": address.chosen_by, "uid": str(uid)}
    if uid not in trusted:
        raise PermissionDenied(
            f"connecting to the ckptd daemon at {address}: user {uid} listens there, neither this "
            "user nor root; start the daemon as this user, name another with address=, or say that "
            f"user {uid} is to be trusted with the weights of this process ({_DAEMON_UID}={uid})",
            "DAEMON_UNREACHABLE",
            facts,
        )
    why = why_unsafe(address.path, trusted)
    if why:
        raise PermissionDenied(
            f"connecting to the ckptd daemon at {address}: {why}, so another user could put a socket "
            "there; choose a run directory in folders of this user or root's (CKPTD_RUN_DIR), or name "
            f"a user to trust ({_DAEMON_UID})",
            "DAEMON_UNREACHABLE",
            facts,
        )
    return uid != os.geteuid() or pid == 0 or _is_in_inner_namespace(pid)


def listens(address: Address) -> bool:
    """Whether something accepts connections at `address`, or may not be asked by this user."""
    try:
        wait_until_listening(address, 0)
    except Unavailable:
        return False
    except PermissionDenied:
        pass  # the caller's own attempt says so
    return True


def _is_in_inner_namespace(pid: int) -> bool:
    """Whether a process has further ids in PID namespaces inside of this one."""
    with contextlib.suppress(OSError):  # where /proc does not show it
        with open(f"/proc/{pid}/status") as file:
            return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in file)
    return False


def wait_until_listening(address: Address, timeout: float) -> bool:
    """Returns once something accepts connections at `address`: whether that is a foreign daemon.

    Waits up to `timeout` seconds for a daemon that is still starting. It uses a plain connect,
    which needs no gRPC and tells exactly why it fails. Raises PermissionDenied for a socket of a
    user other than this one, root, and the one in CKPTD_DAEMON_UID, and for one in a folder that
    another user could change.
    """
    deadline = time.monotonic() + timeout
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(max(0.05, min(1.0, timeout)))
            try:
                probe.connect(address.path)
                return _check_owner(address, probe)
            except OSError as error:
                left = deadline - time.monotonic()
                if isinstance(error, PermissionError) or left <= 0:
                    raise unreachable(address, error, timeout) from None
        time.sleep(min(0.05, left))
