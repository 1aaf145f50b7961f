"""A client without PyTorch: answers each line of JSON with one. python client.py ADDRESS"""

import hashlib
import json
import os
import signal
import sys
import time

import ckptd
import ckptd._cuda as memory

# When a client may die while it attaches -> before which step of its own.
DEATHS = {
    "with the descriptor in hand": (memory._Allocation, "import_from"),
    "after the import": (memory._Allocation, "map"),
    "with the memory mapped": (memory.DeviceMemory, "complete"),
}


class Holder:
    def __init__(self, address):
        self.client = ckptd.connect(address)
        self.checkpoint = self.shard = self.gpu = None

    def warm(self, uuid):
        """Opens the driver and a context, as a trainer has them long before it loads."""
        import gpu

        self.gpu = gpu.Gpu(uuid)
        return {}

    def load(self, source, layout, mode="shared", digest=True, handle=None):
        self.checkpoint = self.client.load(
            source, layout=layout, mode=mode, digest=digest, handle=handle, timeout=120
        )
        return {"name": self.checkpoint.name, "resident": self.checkpoint.resident}

    def die_at(self, point):
        """From now on, dies by SIGKILL when it comes there."""
        setattr(*DEATHS[point], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        return {}

    def acquire(self, mode="shared"):
        before = self.gpu.free() if self.gpu else 0
        begin = time.perf_counter()
        self.shard = self.client.acquire(self.checkpoint, mode)
        return {
            "seconds": time.perf_counter() - begin,
            "taken": before - self.gpu.free() if self.gpu else None,
            "copied": self.shard.copied_bytes,
            "tensors": len(self.shard.tensors),
        }

    def digest(self):
        """Of every tensor's bytes, as the driver reads them back."""
        import gpu

        device = gpu.Gpu(self.shard.device)
        sums = {}
        for name, view in self.shard.tensors.items():
            sums[name] = hashlib.sha256(device.read(view.pointer, view.nbytes)).hexdigest()
        return sums

    def arrays(self, library):
        """name -> how far from the daemon's bytes an array of that library lies, and its digest."""
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX takes most of the GPU otherwise
        found = {}
        for name, view in self.shard.tensors.items():
            pointer, host = getattr(Holder, f"_{library}")(view)
            digest = hashlib.sha256(host.tobytes()).hexdigest()
            found[name] = {"moved": pointer - view.pointer, "digest": digest}
        return found

    @staticmethod
    def _cupy(view):
        import cupy

        array = cupy.from_dlpack(view)
        return array.data.ptr, cupy.asnumpy(array)

    @staticmethod
    def _jax(view):
        import jax
        import numpy

        jax.config.update("jax_enable_x64", True)
        array = jax.dlpack.from_dlpack(view)
        return array.unsafe_buffer_pointer(), numpy.asarray(array)

    def drop(self):
        self.shard.close()
        self.shard = None
        return {}


def main(address):
    holder = Holder(address)
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        try:
            answer = getattr(holder, verb)(**arguments)
        except ckptd.Error as error:
            answer = {"reason": error.reason, "message": error.message}
        print(json.dumps(answer), flush=True)


def ask(program, verb, **arguments):
    """What the process says to one verb."""
    return json.loads(program.ask(json.dumps([verb, arguments])))


def tell(program, verb, **arguments):
    """The same, without waiting: several are told before the first is heard."""
    program.process.stdin.write(json.dumps([verb, arguments]) + "\n")


def hear(program):
    return json.loads(program.hear())
