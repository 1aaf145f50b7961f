"""Python programs that begin with PyTorch imported already: importing it is most of what they would compute.

    process = warm.spawn(["-c", code, *arguments], environment, stdout=PIPE)

A server of this file has imported the modules, in one thread, and forks itself for each
program. Whatever libraries read from the environment while they are loaded, programs of one
server have in common. All else is as in a process of its own: descriptors, environment,
arguments, __main__, exit status; but programs of one server hash strings alike, unless
PYTHONHASHSEED gives them servers of their own. ckptd is never among the modules. At its end a
program waits for its threads and runs its exit handlers. Its modules are not taken apart: that
would write to all memory it has in common with the server, and cost more than most programs do.

Processes that run tests beside each other have their servers in common, of a broker, once the
first of them has called share().
"""

import atexit
import collections
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

TORCH = (
    "numpy", "torch", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor", "torch.distributed.device_mesh", "safetensors.torch",
    "torch._dynamo",  # what FSDP2 and DTensor import when they are first used
    "accelerate",
)  # fmt: skip
TRANSFORMERS = (*TORCH, "transformers", "transformers.models.llama.modeling_llama")
# What is read while libraries are loaded.
AT_START = ("LD_", "OMP_", "HF_", "TRANSFORMERS_", "TORCH_", "PYTORCH_", "PYTHONHASHSEED")
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
LARGEST = 1 << 17  # bytes of a request
PATIENCE = 180  # seconds for a server to fork
VARIABLE = "CKPTD_TESTS_WARM"  # where the broker listens


def _left(deadline):
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Process:
    """A program that was spawned, to be used like a subprocess.Popen with text pipes."""

    def __init__(self, arguments, pid, status, stdin, stdout, stderr):
        self.args, self.pid, self.returncode = arguments, pid, None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._status = status

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            status = os.read(self._status, 16)
            os.close(self._status)
            self.returncode = os.waitstatus_to_exitcode(int(status or signal.SIGKILL))
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end is about to be told
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """(all of stdout, all of stderr), None for what is no pipe, once the program has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        said = {}

        def read(pipe):
            said[pipe] = pipe.read()

        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [threading.Thread(target=read, args=[pipe], daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(_left(deadline))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(_left(deadline))
        return said.get(self.stdout), said.get(self.stderr)


class _Server:
    def __init__(self, modules, environment):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        self._socket.settimeout(PATIENCE)
        # It ends with its socket, when this process does.
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *modules], pass_fds=[theirs.fileno()],
            env={k: v for k, v in environment.items() if k != "PYTHONPATH"}, stdin=DEVNULL, stdout=DEVNULL)  # fmt: skip
        theirs.close()

    def fork(self, request, descriptors):
        socket.send_fds(self._socket, [request], descriptors)
        answer = self._socket.recv(16)
        assert answer, f"the server of programs ended with {self._process.wait()}"
        return int(answer)


def _ends(how, default, theirs_reads):
    """(the program's descriptor, our file or None) of one of its standard streams."""
    if how is None:
        return os.dup(default), None
    if how == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    if how != PIPE:
        return os.dup(how.fileno()), None
    read, write = os.pipe()
    if theirs_reads:
        return read, open(write, "w", buffering=1)
    return write, open(read)


class _Servers:
    """One server for each kind of programs. Threads may fork at once."""

    def __init__(self):
        self._servers, self._locks = {}, collections.defaultdict(threading.Lock)

    def fork(self, kind, request, descriptors):
        modules, environment = request["modules"], request["environment"]
        with self._locks[kind]:
            server = self._servers.pop(kind, None) or _Server(modules, environment)
            pid = server.fork(json.dumps(request).encode(), descriptors)
            self._servers[kind] = server  # one that failed is not asked again
        return pid


class _Broker:
    """The servers of another process."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(path)
        self._lock = threading.Lock()

    def fork(self, _, request, descriptors):
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(16)
        assert int(answer or 0), "no server of programs began: its error is on the broker's stderr"
        return int(answer)


# Read now, as tests take such variables away.
_servers = _Broker(os.environ[VARIABLE]) if VARIABLE in os.environ else _Servers()
_brokers = []


def share():
    """Lets processes that this one starts from now on have their servers in common.

    All of it ends with this process. A process that has servers in common with others already
    starts nothing.
    """
    if VARIABLE in os.environ:
        return
    path = os.path.join(tempfile.mkdtemp(prefix="ckptd-warm."), "socket")
    # It ends when its stdin does.
    _brokers.append(subprocess.Popen([sys.executable, __file__, "broker", path], stdin=PIPE, stdout=PIPE))
    assert _brokers[-1].stdout.readline() == b"listens\n", "the broker of programs did not begin"
    os.environ[VARIABLE] = path


def spawn(arguments, environment, modules=TORCH, stdin=DEVNULL, stdout=None, stderr=None):
    """Runs `python *arguments`, a file or -c and code, where the modules are imported. A Process."""
    request = {"arguments": list(map(str, arguments)), "environment": environment, "modules": modules,
               "cwd": os.getcwd()}  # fmt: skip
    assert len(json.dumps(request)) <= LARGEST, f"a request of {len(json.dumps(request))} bytes"
    streams = [_ends(stdin, 0, True), _ends(stdout, 1, False), _ends(stderr, 2, False)]
    status, theirs = os.pipe()
    descriptors = [*(end for end, _ in streams), theirs]
    try:
        pid = _servers.fork(_kind(request), request, descriptors)
    except BaseException:
        os.close(status)
        for file in filter(None, (file for _, file in streams)):
            file.close()
        raise
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return Process(arguments, pid, status, *(file for _, file in streams))


def _kind(request):
    """What programs of one server have in common."""
    at_start = ((k, v) for k, v in request["environment"].items() if k.startswith(AT_START))
    return (*request["modules"], *sorted(at_start))


def _answer(client, servers):
    """One process's requests, in a thread of the broker."""
    with client:
        while True:
            message, descriptors, _, _ = socket.recv_fds(client, LARGEST, 4)
            if not message:
                return
            request = json.loads(message)
            try:
                pid = servers.fork(_kind(request), request, descriptors)
            except (AssertionError, OSError) as error:
                print(f"warm.py: {error}", file=sys.stderr, flush=True)
                pid = 0
            finally:
                client.send(str(pid).encode())
                for descriptor in descriptors:
                    os.close(descriptor)


def _end_with_stdin(folder):
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _be_broker(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        servers = _Servers()
        threading.Thread(target=_end_with_stdin, args=[os.path.dirname(path)], daemon=True).start()
        print("listens", flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_answer, args=(client, servers), daemon=True).start()


def serve(requests):
    """Forks for each request. Returns in the children alone: what was asked, and the descriptors."""
    running = {}  # pidfd -> (pid, where its end is told)
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready in running:
                pid, status = running.pop(ready)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(os.waitpid(pid, 0)[1]).encode())
                os.close(status)
                os.close(ready)
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 4)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                return json.loads(message), descriptors
            running[os.pidfd_open(pid)] = (pid, descriptors.pop())
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(str(pid).encode())


def become(request, descriptors):
    """Makes this process one that was started so, and returns its code, file name and __main__."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one of the listing is closed
            if descriptor > 2:
                os.close(descriptor)
    os.chdir(request["cwd"])
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    program, *rest = request["arguments"]
    main = types.ModuleType("__main__")
    if program == "-c":
        code, name, folder = rest.pop(0), "<string>", ""
    else:
        with open(program) as file:
            code, name, folder = file.read(), program, os.path.dirname(os.path.abspath(program))
        main.__file__ = program
    sys.argv = [program, *rest]
    sys.path[0:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = main
    return code, name, main


def run_to_the_end(code, name, main):
    """Runs the program and ends this process, as an interpreter would."""
    status = 0
    try:
        exec(compile(code, name, "exec"), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # waits for threads that are no daemons, as an interpreter's end does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone, or it is closed
            stream.flush()
    # Handlers of libraries in C run too. Python's own threads stand still meanwhile.
    ctypes.PyDLL(None).exit(status & 0xFF)


if __name__ == "__main__":
    if sys.argv[1] == "broker":
        _be_broker(sys.argv[2])
    for module in sys.argv[2:]:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a module has started a thread, which a fork would lose"
    gc.collect()
    gc.freeze()  # no program looks through these modules for garbage
    code, name, main = become(*serve(socket.socket(fileno=int(sys.argv[1]))))
    run_to_the_end(code, name, main)
