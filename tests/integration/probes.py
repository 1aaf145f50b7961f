"""Probes of containers as kubelet makes them, for pods on one machine (pods.py).

The startup probe comes first, and the others begin once it has passed. A probe counts as failed after
`failure_threshold` tries in a row, and as passed after one. Kubelet begins at a random time of the period; here
a probe begins at once.
"""

import dataclasses
import pathlib
import threading
import time

import users
import warm

# In the network namespace of a process: answers each line "ADDRESS TIMEOUT SERVICE" with that service's status.
PROGRAM = """
import ctypes, os, sys
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open(f"/proc/{sys.argv[1]}/ns/net", os.O_RDONLY), CLONE_NEWNET) != 0:
    raise OSError(ctypes.get_errno(), "entering the pod's network")
sys.path.append(sys.argv[2])
import probe
for line in sys.stdin:
    address, timeout, service = line.rstrip("\\n").split(" ", 2)
    print(probe.check(address, service, float(timeout)), flush=True)
"""
PATIENCE = 60


@dataclasses.dataclass(frozen=True)
class Probe:
    """A command that is run in the container (`exec`), or a service of grpc.health.v1 that is asked."""

    command: tuple = ()
    period_seconds: float = 1
    failure_threshold: int = 600  # no busy machine fails so often in a row
    grpc: tuple = ()  # (port, service), in place of a command
    initial_delay_seconds: float = 0


class GrpcProber:
    """A process in a pod's network that asks for health there, as kubelet does from the node.

    It waits PATIENCE for an answer: the timeouts of manifests are for machines that do nothing else."""

    def __init__(self, process):
        """process: one in the network."""
        arguments = ["-c", PROGRAM, process, pathlib.Path(__file__).parent]
        self._lock = threading.Lock()
        self._program = warm.spawn(arguments, {"PATH": "/usr/bin"}, users.MODULES, stdin=warm.PIPE, stdout=warm.PIPE)

    def passes(self, host, probe):
        port, service = probe.grpc
        with self._lock:
            self._program.stdin.write(f"{host}:{port} {PATIENCE} {service}\n")
            self._program.stdin.flush()
            return self._program.stdout.readline().strip() == "SERVING"

    def stop(self):
        self._program.kill()


class Watch:
    """The probes of one run of a container, each in a thread of its own.

    `passes(probe)` tries one. `tell(what)` hears of changes: "passed" (startup), "ready", "unready", and
    "startup failed" or "unhealthy", after which the container is to be ended. Periods are multiplied by `scale`."""

    def __init__(self, container, passes, tell, scale):
        self._passes, self._tell, self._scale = passes, tell, scale
        self._startup, self._ended = container.startup_probe, threading.Event()
        self._later = [(probe, change) for probe, change in ((container.readiness_probe, self._change_readiness),
                                                             (container.liveness_probe, self._change_liveness)) if probe]
        self.started, self.ready = not self._startup, False
        self._threads = []
        self._run(self._start_up) if self._startup else self._begin()

    def end(self):
        """The run is over, and so is its readiness."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        if self.ready:
            self._change_readiness(False)

    def _run(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _begin(self):
        for probe, change in self._later:
            self._run(self._repeat, probe, change)

    def _start_up(self):
        for passed in self._results(self._startup):
            if passed:
                self._tell("passed")
                self.started = True  # once it is told: the next container may start
                self._begin()
            else:
                self._tell("startup failed")
            return

    def _repeat(self, probe, change):
        for passed in self._results(probe):
            change(passed)

    def _change_readiness(self, ready):
        if ready != self.ready:
            self._tell("ready" if ready else "unready")
            self.ready = ready

    def _change_liveness(self, alive):
        if not alive:
            self._ended.set()
            self._tell("unhealthy")

    def _results(self, probe):
        """True for each try that passes, False once so many have failed in a row, until the run ends."""
        failures, pause = 0, probe.initial_delay_seconds * self._scale
        while not self._ended.wait(pause):
            began = time.monotonic()
            passed = self._passes(probe)
            failures = 0 if passed else failures + 1
            if self._ended.is_set():
                return
            if passed or failures >= probe.failure_threshold:
                yield passed
            pause = max(0, probe.period_seconds * self._scale - (time.monotonic() - began))
