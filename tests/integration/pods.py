"""Pods on one machine: containers by crun, each with an image's file tree, in one network namespace.

The classes' fields are those of a pod's specification, in Python's spelling. What a node does with them is done here:
init containers one after the other, sidecars until their startup probe passes, then the containers; restarts by policy,
at once; SIGTERM to containers first and to sidecars after them, in reverse. Each container has its own mount, PID, IPC
and UTS namespaces, the user that it asks for, no capability and no way to new privileges. Nothing of a pod is left when
the process that made it ends.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import threading
import time

import seccomp
from group import PATIENCE, SOON, wait_until
from images import Image

HIDDEN = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# What containers have besides their image's files and the pod's volumes.
MOUNTS = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
     "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
)
SANDBOX = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
# crun refuses machines with both versions of cgroups, and no container has limits here: it is shown one version.
PREPARE = "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; ip link set lo up"


@dataclasses.dataclass(frozen=True)
class EmptyDir:
    """A folder of the pod; in memory where `medium` says so."""

    medium: str = ""
    size_limit: str = "64m"


@dataclasses.dataclass(frozen=True)
class HostPath:
    """A folder of this machine."""

    path: str


@dataclasses.dataclass(frozen=True)
class VolumeMount:
    name: str
    mount_path: str
    read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Probe:
    """A command that is run in the container (`exec`)."""

    command: tuple
    period_seconds: float = 1
    failure_threshold: int = 60


@dataclasses.dataclass(frozen=True)
class Container:
    """`command` takes the place of the image's entry point, `args` of its command."""

    name: str
    image: Image
    command: tuple = ()
    args: tuple = ()
    env: dict = dataclasses.field(default_factory=dict)
    volume_mounts: tuple = ()
    run_as_user: int = None  # the image's, unless it is given
    run_as_group: int = None
    read_only_root_filesystem: bool = True
    seccomp_profile: str = "RuntimeDefault"  # or "Unconfined"
    startup_probe: Probe = None
    restart_policy: str = ""  # "Always" makes a sidecar of an init container; the pod's, unless it is given
    stdin: bool = False  # whether tests write to it, and read what it says


class Run:
    """One run of a container."""

    def __init__(self, process, identity, log):
        self.process, self.identity, self.log = process, identity, log

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        return self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"{self.identity} ended with {self.process.wait()}:\n{self.log.read_text()}"
        return line.strip()


class Pod:
    def __init__(self, folder, *, containers, init_containers=(), volumes=None, restart_policy="Always", fs_group=None,
                 supplemental_groups=(), hostname="pod", termination_grace_period_seconds=SOON):
        """volumes: name -> EmptyDir or HostPath, which containers' volume_mounts name."""
        self.folder, self.hostname = pathlib.Path(folder), hostname
        self.folder.mkdir(exist_ok=True)
        self.init_containers, self.containers = init_containers, containers
        self.volumes, self.restart_policy, self.fs_group = volumes or {}, restart_policy, fs_group
        self.groups = [*supplemental_groups, *([fs_group] if fs_group else [])]
        self.grace = termination_grace_period_seconds
        self.events = []  # (container, what) as they came: "started", "passed", "ended CODE"
        self.runs, self._keepers, self._stopping, self._lock = {}, [], set(), threading.RLock()

    def __enter__(self):
        self._sandbox = self._make_sandbox()
        try:
            for container in self.init_containers:
                self._start_init(container)
            for container in self.containers:
                self._start(container, self.restart_policy)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            self._sandbox.stdin.close()
            self._sandbox.wait(PATIENCE)

    # --- what tests do ---------------------------------------------------------

    def execute(self, name, *command):
        """A command in a container, as its user: the finished process."""
        run = self.runs[name]
        config = json.loads((self.folder / run.identity / "config.json").read_text())
        with tempfile.NamedTemporaryFile("w", dir=self.folder) as file:
            json.dump({**config["process"], "args": command}, file)
            file.flush()
            return self._run("crun", *self._crun, "exec", "--process", file.name, run.identity)

    def proc(self, name, file):
        """What a file of a container's first process says, such as status: key -> value."""
        lines = self._run("cat", f"/proc/{self._pid(name)}/{file}").stdout.splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def namespaces(self, name):
        """kind -> identity, of a container's first process."""
        kinds = ("pid", "ipc", "mnt", "net", "uts", "user")
        shown = self._run("readlink", *(f"/proc/{self._pid(name)}/ns/{kind}" for kind in kinds)).stdout.split()
        return dict(zip(kinds, shown, strict=True))

    def passes(self, name, probe):
        return self.execute(name, *probe.command).returncode == 0

    def kill(self, name, number=signal.SIGKILL):
        self._run("crun", *self._crun, "kill", self.runs[name].identity, str(int(number)))

    def wait_event(self, name, what, count=1):
        wait_until(lambda: self.events.count((name, what)) >= count,
                   f"{name} to have {what} {count} times, not {self.events}\n{self.log(name)}")

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def stop(self):
        """Ends containers, and then sidecars one by one: SIGTERM, and SIGKILL when the grace is over."""
        groups = [self.containers, *([one] for one in reversed(self.init_containers))]
        for names in ([one.name for one in group if one.name in self.runs] for group in groups):
            with self._lock:  # nothing starts any more
                self._stopping |= set(names)
            for name in names:
                self.kill(name, signal.SIGTERM)
                if self.runs[name].process.stdin:  # one that is no further than its imports reads that it is over
                    self.runs[name].process.stdin.close()
            self._end(names)
        for keeper in self._keepers:
            keeper.join(PATIENCE)

    def _pid(self, name):
        """Of a container's first process, in the sandbox."""
        return json.loads(self._run("crun", *self._crun, "state", self.runs[name].identity).stdout)["pid"]

    # --- what a node does ------------------------------------------------------

    def _end(self, names):
        deadline = time.monotonic() + self.grace
        for name in names:
            try:
                self.runs[name].process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(name)
                self.runs[name].process.wait(PATIENCE)

    def _make_sandbox(self):
        """The namespaces of the pod, which end with a process that ends with this one."""
        script = [PREPARE]
        for name, volume in self.volumes.items():
            if not isinstance(volume, EmptyDir):
                continue
            path = self._host_path(name)
            path.mkdir()
            group = self.fs_group or 0
            os.chown(path, 0, group)
            path.chmod(0o2777)
            if volume.medium == "Memory":
                options = f"size={volume.size_limit},mode=2777,gid={group},nosuid,nodev"
                script.append(f"mount -t tmpfs -o {options} none {shlex.quote(str(path))}")
        words = [*SANDBOX, "sh", "-c", " && ".join([*script, "echo ready && exec cat"])]
        sandbox = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert sandbox.stdout.readline() == "ready\n", f"the pod's namespaces: {sandbox.wait(PATIENCE)}"
        self._inside = ("nsenter", f"--mount=/proc/{sandbox.pid}/ns/mnt", f"--net=/proc/{sandbox.pid}/ns/net",
                        f"--pid=/proc/{sandbox.pid}/ns/pid_for_children")
        self._crun = ("--root", str(self.folder / "state"), "--cgroup-manager=disabled")
        return sandbox

    def _host_path(self, name):
        volume = self.volumes[name]
        return pathlib.Path(volume.path) if isinstance(volume, HostPath) else self.folder / f"volume-{name}"

    def _run(self, *command):
        return subprocess.run([*self._inside, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)

    def _start_init(self, container):
        """Sidecars are left running once they have started up, others have ended well."""
        self._start(container, container.restart_policy or "Never")
        if container.restart_policy != "Always":
            code = self.runs[container.name].process.wait(PATIENCE)
            assert code == 0, f"{container.name} ended with {code}:\n{self.log(container.name)}"
        elif container.startup_probe:
            self._await(container.name, container.startup_probe)

    def _await(self, name, probe):
        for _ in range(probe.failure_threshold):
            began = time.monotonic()
            done = self.execute(name, *probe.command)
            if done.returncode == 0:
                self.events.append((name, "passed"))
                return
            time.sleep(max(0, probe.period_seconds - (time.monotonic() - began)))  # as a node does
        raise AssertionError(f"{name} did not start up: {done.stderr or done.stdout}\n{self.log(name)}")

    def _start(self, container, policy):
        self._spawn(container)
        keeper = threading.Thread(target=self._keep, args=(container, policy), daemon=True)
        self._keepers.append(keeper)
        keeper.start()

    def _keep(self, container, policy):
        """Starts it again as long as the policy says so."""
        while True:
            code = self.runs[container.name].process.wait()
            self.events.append((container.name, f"ended {code}"))
            with self._lock:
                if container.name in self._stopping or policy == "Never" or (policy == "OnFailure" and code == 0):
                    return
                self._spawn(container)

    def _spawn(self, container):
        identity = f"{container.name}-{sum(name == container.name for name, _ in self.events)}"
        bundle = self.folder / identity
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self._specification(container)))
        command = [*self._inside, "crun", *self._crun, "run", "--bundle", bundle, "--pid-file", bundle / "pid", identity]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1} if container.stdin else {}
        path = self.folder / f"{container.name}.log"
        with open(path, "a") as log:
            process = subprocess.Popen(command, text=True, stderr=log,
                                       **{"stdin": subprocess.DEVNULL, "stdout": log, **pipes})
        self.runs[container.name] = Run(process, identity, path)
        wait_until(lambda: (bundle / "pid").exists() or process.poll() is not None, f"{identity} to start")
        self.events.append((container.name, "started"))

    # --- what a container is, for crun -----------------------------------------

    def _specification(self, container):
        image = container.image
        said = container.args or (() if container.command else image.config.get("Cmd", ()))
        environment = {**image.environment, "HOSTNAME": self.hostname, **container.env}
        uid, gid = image.user
        return {
            "ociVersion": "1.0.0",
            "hostname": self.hostname,
            "root": {"path": str(image.tree), "readonly": container.read_only_root_filesystem},
            "process": {
                "args": [*map(str, container.command or image.config.get("Entrypoint", ())), *map(str, said)],
                "env": [f"{name}={value}" for name, value in environment.items()],
                "cwd": "/",
                "user": {"uid": uid if container.run_as_user is None else container.run_as_user,
                         "gid": gid if container.run_as_group is None else container.run_as_group,
                         "additionalGids": self.groups},
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "mounts": [*MOUNTS, *self._binds(container)],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                      "maskedPaths": HIDDEN, "readonlyPaths": READ_ONLY,
                      **({"seccomp": seccomp.runtime_default()} if container.seccomp_profile == "RuntimeDefault" else {})},
        }

    def _binds(self, container):
        for path in container.image.binds:
            yield {"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"]}
        for mount in container.volume_mounts:
            access = "ro" if mount.read_only else "rw"
            yield {"destination": mount.mount_path, "source": str(self._host_path(mount.name)), "type": "bind",
                   "options": ["rbind", access, "nosuid", "nodev"]}
