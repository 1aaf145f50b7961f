"""Programs of other users, and containers, as a pod has them. Only root can make them."""

import ctypes
import json
import os
import pathlib
import sys
import tempfile

import warm

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 1 << 12, 1 << 13, 1 << 14, 1 << 18
PATIENCE = 120
MODULES = ("grpc", "google.protobuf.message_factory")  # most of what importing ckptd costs

# Becomes the user and runs the function that was given.
PROGRAM = """
import json, sys
who = json.loads(sys.argv[1])
sys.path[:0] = who["path"]
import users
users.unshare(users.CLONE_NEWNS)
users.show_python()
import ckptd, grpc, os
from ckptd import _client, _proto, _rpc
users.become(who["uid"], who["groups"], who["gid"])
scope = {"ckptd": ckptd, "grpc": grpc, "_proto": _proto, "_rpc": _rpc, "os": os}
try:
    exec(who["source"], scope)
    answer = {"value": scope["run"](*who["arguments"])}
except ckptd.Error as error:
    answer = {"code": error.code, "reason": error.reason, "message": error.message}
print(json.dumps(answer))
"""


def run_as(uid, groups, source, *arguments, gid=None, environment=None):
    """Calls run(*arguments), which `source` defines: {"value": ...}, or the error's code, reason and message."""
    who = {"uid": uid, "gid": uid if gid is None else gid, "groups": list(groups), "source": source,
           "arguments": [*map(str, arguments)], "path": sys.path}
    program = warm.spawn(["-c", PROGRAM, json.dumps(who)], dict(os.environ if environment is None else environment),
                         MODULES, stdout=warm.PIPE, stderr=warm.PIPE)
    try:
        said, complaint = program.communicate(PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 0, complaint
    return json.loads(said.splitlines()[-1])


def become(uid, groups, gid=None):
    gid = uid if gid is None else gid
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _libc(function, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), function, *(a for a in arguments[:2] if isinstance(a, bytes)))


def mount(source, target, kind=None, flags=0, options=None):
    as_bytes = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _libc("mount", *as_bytes, ctypes.c_ulong(flags), options)


def unshare(namespaces):
    """This process alone, and its children, have what they change from now on."""
    _libc("unshare", namespaces)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def show_python():
    """Everybody here may read this Python and these tests, which may lie in a folder that is root's alone."""
    needed = {pathlib.Path(p).resolve() for p in (sys.base_prefix, sys.prefix, pathlib.Path(__file__).parents[2])}
    closed = {path: next((way for way in reversed(path.parents) if not way.stat().st_mode & 0o001), None)
              for path in needed}
    hidden = {path: tempfile.mkdtemp() for path in needed if closed[path]}
    for path, kept in hidden.items():
        mount(path, kept, flags=MS_BIND | MS_REC)
    for folder in {closed[path] for path in hidden}:
        mount("none", folder, "tmpfs", options=b"mode=755")
    for path, kept in hidden.items():
        path.mkdir(parents=True, exist_ok=True)
        mount(kept, path, flags=MS_MOVE)
        os.rmdir(kept)


def enter_container(folders):
    """This process sees other processes, mounts and IPC objects from now on: it is PID 1, and each of `folders` is an
    empty file system. Its first process waits for it, and ends as it does."""
    unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID)
    init = os.fork()
    if init:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))
    mount("proc", "/proc", "proc")
    for folder in folders:
        mount("none", folder, "tmpfs")
    show_python()
