"""The system calls of a container under the seccomp profile RuntimeDefault, as crun takes them.

The rules are those that podman, CRI-O and buildah share (Debian's golang-github-containers-common). io_uring is not
among what they allow, as in containerd's. Containers here have no capability that would allow more.
"""

import json
import pathlib

PROFILE = pathlib.Path("/usr/share/containers/seccomp.json")
ARCHITECTURE = "amd64"


def _applies(rule):
    includes = rule.get("includes", {})
    return "caps" not in includes and ARCHITECTURE in includes.get("arches", [ARCHITECTURE])


def runtime_default():
    """`linux.seccomp` of the OCI runtime specification."""
    profile = json.loads(PROFILE.read_text())
    rules = [{"names": rule["names"], "action": rule["action"], "args": rule.get("args") or [],
              **({"errnoRet": rule["errnoRet"]} if "errnoRet" in rule else {})}
             for rule in profile["syscalls"] if _applies(rule)]
    return {"defaultAction": profile["defaultAction"], "defaultErrnoRet": profile["defaultErrnoRet"],
            "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules}
