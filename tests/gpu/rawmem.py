"""Device memory without ckptd, in processes of its own; checks_driver.py runs it.

python rawmem.py make UUID BYTES SOCKET_FD   allocates, writes a mark, sends the descriptor
python rawmem.py read UUID BYTES FD [UID]    as that user: imports, reads the mark back
python rawmem.py hold UUID BYTES             has them made and read, and never opens the driver
"""

import array
import json
import os
import socket
import subprocess
import sys

MARK = bytes(range(256)) * 16


def make(uuid, nbytes, socket_fd):
    import gpu

    device = gpu.Gpu(uuid)
    handle = device.create(nbytes)
    address = device.map(handle, nbytes, True)
    device.write(address, MARK)
    device.write(address + nbytes - len(MARK), MARK)
    fd = device.export(handle)
    with socket.socket(fileno=socket_fd) as stream:
        fds = array.array("i", [fd])
        stream.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        stream.recv(1)  # until it has arrived
    os._exit(0)  # all is left to the kernel, as by a kill


def read(uuid, nbytes, fd, uid=None):
    import gpu

    gpu.driver()  # read from the disk while this user still may
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    device = gpu.Gpu(uuid)
    address = device.map(device.take(fd), nbytes, False)
    first, last = device.read(address, len(MARK)), device.read(
        address + nbytes - len(MARK), len(MARK)
    )
    print(
        json.dumps({"same": first == MARK and last == MARK, "pid": os.getpid(), "uid": os.getuid()})
    )


def receive(uuid, nbytes):
    """The descriptor of memory whose maker has ended."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, "make", uuid, str(nbytes), str(theirs.fileno())]
    maker = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        ours.settimeout(60)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        ours.send(b"x")
        maker.wait(timeout=30)
    finally:
        maker.kill()
        maker.wait()
        ours.close()
    return fds[0]


def reading(uuid, nbytes, fd, *arguments, wrapper=()):
    """What a process says that imports it."""
    command = [
        *wrapper,
        sys.executable,
        __file__,
        "read",
        uuid,
        str(nbytes),
        str(fd),
        *map(str, arguments),
    ]
    done = subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-600:] or f"ended with {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def hold(uuid, nbytes):
    fd = receive(uuid, nbytes)
    print(json.dumps({"held": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(reading(uuid, nbytes, fd)), flush=True)


if __name__ == "__main__":
    verb, uuid, nbytes, *rest = sys.argv[1:]
    {"make": make, "read": read, "hold": hold}[verb](uuid, int(nbytes), *map(int, rest))
