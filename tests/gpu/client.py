"""A client without PyTorch: answers each line of JSON with one. python client.py ADDRESS"""

import hashlib
import json
import sys
import time

import ckptd
import ckptd._cuda_driver as cuda


class Holder:
    def __init__(self, address):
        self.client = ckptd.connect(address)
        self.checkpoint = self.shard = self.gpu = None

    def warm(self, uuid):
        """Opens the driver and a context, as a trainer has them long before it loads."""
        import gpu

        self.gpu = gpu.Gpu(uuid)
        return {}

    def load(self, source, layout, mode="shared", digest=True):
        self.checkpoint = self.client.load(
            source, layout=layout, mode=mode, digest=digest, timeout=120
        )
        return {"name": self.checkpoint.name, "resident": self.checkpoint.resident}

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


assert cuda.importable(), "the package cuda-bindings is missing"
