"""Pods on one machine: containers by crun, each with an image's file tree, in one network namespace.

The classes' fields are those of a pod's specification, in Python's spelling. What a node does with them is done here:
init containers one after the other, sidecars until their startup probe passes, then the containers; restarts by policy;
preStop hooks of all, then SIGTERM to containers, and to sidecars after them, in reverse; the same once all containers
have ended for good. Each container has its own mount, PID, IPC and UTS namespaces, the user that it asks for, no capability
and no way to new privileges. Nothing of a pod is left when the process that made it ends.

It is not a node in these points. Restarts come at once, where kubelet waits longer each time. Resources are not limited.
Names come from /etc/hosts, where a cluster has DNS. `time_scale` shortens the periods of probes. Answers to them may take long.
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
from probes import GrpcProber, Probe, Watch

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
SHORTEST_GRACE = 2  # seconds that kubelet gives a container in any case


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
class Secret:
    """Values by key, each in a file of the volume."""

    data: dict
    default_mode: int = 0o644


@dataclasses.dataclass(frozen=True)
class VolumeMount:
    name: str
    mount_path: str
    read_only: bool = False


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
    readiness_probe: Probe = None
    liveness_probe: Probe = None
    pre_stop: tuple = ()  # a command
    restart_policy: str = ""  # "Always" makes a sidecar of an init container; the pod's, unless it is given
    stdin: bool = False  # whether tests write to it, and read what it says


class Run:
    """One run of a container."""

    def __init__(self, process, identity, log):
        self.process, self.identity, self.log = process, identity, log
        self.watch = None  # its probes

    @property
    def started(self):
        return bool(self.watch and self.watch.started)

    @property
    def ready(self):
        return bool(self.watch and self.watch.ready)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        return self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"{self.identity} ended with {self.process.wait()}:\n{self.log.read_text()}"
        return line.strip()


class Pod:
    def __init__(self, folder, *, containers, init_containers=(), volumes=None, restart_policy="Always", fs_group=None,
                 supplemental_groups=(), hostname="pod", subdomain="", termination_grace_period_seconds=SOON, network=None,
                 time_scale=1):
        """volumes: name -> EmptyDir, HostPath or Secret, which containers' volume_mounts name.
        network: a PodNetwork; without one, the pod has the loopback alone."""
        self.folder, self.hostname, self.subdomain = pathlib.Path(folder), hostname, subdomain
        self.folder.mkdir(exist_ok=True)
        self.init_containers, self.containers = init_containers, containers
        self.volumes, self.restart_policy, self.fs_group = volumes or {}, restart_policy, fs_group
        self.groups = [*supplemental_groups, *([fs_group] if fs_group else [])]
        self.grace, self.network, self.time_scale = termination_grace_period_seconds, network, time_scale
        self.events = []  # (container, what) as they came: "started", what probes say, "preStop CODE", "ended CODE"
        self.runs, self._keepers, self._stopping, self._lock = {}, {}, set(), threading.RLock()
        self._done, self._stopped, self._stop_lock, self._prober = set(), False, threading.Lock(), None
        self._deaf, self._hearing = False, threading.Lock()

    def __enter__(self):
        self._sandbox = self._make_sandbox()
        try:
            self._join_network()
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            if self._prober:
                self._prober.stop()
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

    def kill_commands(self):
        """Kills what runs commands in containers, not the commands: 0, or 1 where there are none."""
        return self._run("pkill", "-KILL", "-f", "crun .* exec --process").returncode

    def proc(self, name, file):
        """What a file of a container's first process says, such as status: key -> value."""
        lines = self._run("cat", f"/proc/{self._pid(name)}/{file}").stdout.splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def namespaces(self, name):
        """kind -> identity, of a container's first process."""
        kinds = ("pid", "ipc", "mnt", "net", "uts", "user")
        shown = self._run("readlink", *(f"/proc/{self._pid(name)}/ns/{kind}" for kind in kinds)).stdout.split()
        return dict(zip(kinds, shown, strict=True))

    def processes(self):
        """The numbers of all processes of its containers, in the pod's namespace."""
        return {int(name) for name in self._run("ls", "/proc").stdout.split() if name.isdigit()} - {1}

    def passes(self, name, probe):
        if probe.grpc:
            return self._prober.passes(self.address, probe)
        return self.execute(name, *probe.command).returncode == 0

    def ready(self, name):
        return self.runs[name].ready

    def kill(self, name, number=signal.SIGKILL):
        """Sends a signal, unless its run has ended meanwhile."""
        run = self.runs[name]
        said = []

        def sent():
            said.append(self._run("crun", *self._crun, "kill", run.identity, str(int(number))))
            return said[-1].returncode == 0 or run.process.poll() is not None

        self._wait_for(sent, f"signal {number} to reach {run.identity}", lambda: said[-1].stderr)

    def wait_event(self, name, what, count=1):
        self.wait_until(lambda: self.events.count((name, what)) >= count, f"{name} to have {what} {count} times")

    def wait_until(self, condition, what, seconds=PATIENCE):
        return self._wait_for(condition, what, lambda: "".join(map(self.log, self.runs)), seconds)

    def _wait_for(self, condition, what, why, seconds=PATIENCE):
        try:
            return wait_until(condition, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}, not {self.events}\n{why()}") from None

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def stop(self):
        """Calls all hooks, ends containers, and then sidecars one by one: SIGTERM, and SIGKILL when the grace is over."""
        with self._stop_lock:
            if not self._stopped:
                self._stop(time.monotonic() + self.grace)
            self._stopped = True

    def restart_all(self):
        """As the action RestartAllContainers of Kubernetes 1.35 (KEP-5532): kills all at once, without hooks or grace, and
        starts them as at first. Volumes, network and names are kept."""
        with self._lock:
            self._stopping |= set(self.runs)
        for name in self.runs:
            self.kill(name)
        self._join_keepers(self.runs)
        self._stopping.clear()
        self._done.clear()
        self._start_all()

    def _pid(self, name):
        """Of a container's first process, in the sandbox."""
        return json.loads(self._run("crun", *self._crun, "state", self.runs[name].identity).stdout)["pid"]

    # --- what a node does ------------------------------------------------------

    def _stop(self, deadline):
        with self._hearing:
            self._deaf = True
        hooks = {name: self._begin_hook(name) for name in self.runs}
        groups = [self.containers, *([one] for one in reversed(self.init_containers))]
        for names in ([one.name for one in group if one.name in self.runs] for group in groups):
            with self._lock:  # nothing starts any more
                self._stopping |= set(names)
            for name in names:
                hooks[name].join(max(0, deadline - time.monotonic()))
                self._terminate(name)
            for name in names:
                self._await_end(name, deadline)
            self._join_keepers(names)

    def _begin_hook(self, name):
        hook = threading.Thread(target=self._call_hook, args=(name,), daemon=True)
        hook.start()
        return hook

    def _call_hook(self, name):
        container = next(one for one in (*self.init_containers, *self.containers) if one.name == name)
        if container.pre_stop and self.runs[name].process.poll() is None:
            done = self.execute(name, *container.pre_stop)
            self.events.append((name, f"preStop {done.returncode}"))

    def _terminate(self, name):
        self.kill(name, signal.SIGTERM)
        if self.runs[name].process.stdin:  # one that is no further than its imports reads that it is over
            self.runs[name].process.stdin.close()

    def _await_end(self, name, deadline):
        run = self.runs[name]
        try:
            run.process.wait(max(SHORTEST_GRACE, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill(name)
            self._wait_for(lambda: run.process.poll() is not None, f"{run.identity} to end",
                           lambda: self._run("ps", "-ef").stdout)

    def _join_keepers(self, names):
        """Once they have said how these containers ended."""
        for keeper in filter(None, map(self._keepers.get, names)):
            keeper.join(PATIENCE)

    def _make_sandbox(self):
        """The namespaces of the pod, which end with a process that ends with this one.

        Commands whose parent was killed become its children. As it waits for none, the kernel has to forget them
        when they end: else the container that they ran in never does.
        """
        script = [PREPARE]
        group = self.fs_group or 0
        for name, volume in self.volumes.items():
            path = self._host_path(name)
            if isinstance(volume, Secret):
                self._write_secret(path, volume)
            if not isinstance(volume, EmptyDir):
                continue
            path.mkdir()
            os.chown(path, 0, group)
            path.chmod(0o2777)
            if volume.medium == "Memory":
                options = f"size={volume.size_limit},mode=2777,gid={group},nosuid,nodev"
                script.append(f"mount -t tmpfs -o {options} none {shlex.quote(str(path))}")
        words = [*SANDBOX, "sh", "-c", " && ".join([*script, "echo ready && exec env --ignore-signal=CHLD cat"])]
        sandbox = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert sandbox.stdout.readline() == "ready\n", f"the pod's namespaces: {sandbox.wait(PATIENCE)}"
        self._inside = ("nsenter", f"--mount=/proc/{sandbox.pid}/ns/mnt", f"--net=/proc/{sandbox.pid}/ns/net",
                        f"--pid=/proc/{sandbox.pid}/ns/pid_for_children")
        self._crun = ("--root", str(self.folder / "state"), "--cgroup-manager=disabled")
        return sandbox

    def _join_network(self):
        names = [self.hostname, *([f"{self.hostname}.{self.subdomain}"] if self.subdomain else [])]
        if self.network:
            self.address, self._hosts_file = self.network.attach(self._sandbox.pid, names), self.network.hosts_file
        else:
            self.address, self._hosts_file = "127.0.0.1", self.folder / "hosts"
            self._hosts_file.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
        if any(probe and probe.grpc for one in (*self.init_containers, *self.containers)
               for probe in (one.startup_probe, one.readiness_probe, one.liveness_probe)):
            self._prober = GrpcProber(self._sandbox.pid)

    def _write_secret(self, path, secret):
        """As kubelet does: files of the pod's group, behind a link that it changes when the Secret has changed."""
        group, kept = self.fs_group or 0, path / "..1"
        kept.mkdir(parents=True)
        (path / "..data").symlink_to("..1")
        for key, value in secret.data.items():
            (kept / key).write_bytes(value)
            (kept / key).chmod(secret.default_mode)
            os.chown(kept / key, 0, group)
            (path / key).symlink_to(f"..data/{key}")

    def _host_path(self, name):
        volume = self.volumes[name]
        return pathlib.Path(volume.path) if isinstance(volume, HostPath) else self.folder / f"volume-{name}"

    def _run(self, *command):
        return subprocess.run([*self._inside, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)

    def _start_all(self):
        for container in self.init_containers:
            self._start_init(container)
        for container in self.containers:
            self._start(container, self.restart_policy)

    def _start_init(self, container):
        """Sidecars are left running once they have started up, others have ended well."""
        self._start(container, container.restart_policy or "Never")
        name = container.name
        if container.restart_policy == "Always":
            self.wait_until(lambda: self.runs[name].started, f"{name} to start up")
        else:
            code = self.runs[name].process.wait(PATIENCE)
            self._join_keepers([name])
            assert code == 0, f"{name} ended with {code}:\n{self.log(name)}"

    def _start(self, container, policy):
        self._spawn(container)
        keeper = threading.Thread(target=self._keep, args=(container, policy), daemon=True)
        self._keepers[container.name] = keeper
        keeper.start()

    def _keep(self, container, policy):
        """Starts it again as long as the policy says so."""
        while True:
            run = self.runs[container.name]
            code = run.process.wait()
            run.watch.end()
            self.events.append((container.name, f"ended {code}"))
            with self._lock:
                if container.name in self._stopping:
                    return
                if policy == "Never" or (policy == "OnFailure" and code == 0):
                    self._finished(container)
                    return
                self._spawn(container)

    def _finished(self, container):
        """Nothing else runs on when the last container has ended for good."""
        self._done.add(container.name)
        if self.containers and self._done >= {one.name for one in self.containers}:
            threading.Thread(target=self.stop, daemon=True).start()

    def _hear(self, container, what):
        """From its probes, which nobody hears any more once the pod stops."""
        with self._hearing:
            if self._deaf or container.name in self._stopping:
                return
            self.events.append((container.name, what))
        if what in ("startup failed", "unhealthy"):
            self._call_hook(container.name)
            self._terminate(container.name)
            self._await_end(container.name, time.monotonic() + self.grace)

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
        run = self.runs[container.name] = Run(process, identity, path)
        wait_until(lambda: (bundle / "pid").exists() or process.poll() is not None, f"{identity} to start")
        self.events.append((container.name, "started"))
        run.watch = Watch(container, lambda probe: self.passes(container.name, probe), lambda what: self._hear(container, what),
                          self.time_scale)

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
        yield {"destination": "/etc/hosts", "source": str(self._hosts_file), "type": "bind", "options": ["rbind", "ro"]}
        for mount in container.volume_mounts:
            access = "ro" if mount.read_only else "rw"
            yield {"destination": mount.mount_path, "source": str(self._host_path(mount.name)), "type": "bind",
                   "options": ["rbind", access, "nosuid", "nodev"]}
        # Last, as volumes may lie above them: this repository below /tmp, for one.
        for path in container.image.binds:
            yield {"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"]}
