"""A trainer for tests of GPU memory: FSDP2 over gloo, seeing the fake GPU as host memory.

    python cuda_trainer.py FOLDER RANK WORLD ADDRESS SOURCE MODE HANDLE

Builds the model twice, once by PyTorch's own loader and once by load_into; then answers each
line of its input with a line of JSON. An error of the load is the first and last answer.
"""

import gc
import json
import os
import pathlib
import sys

import ckptd
import ckptd.torch
import host_view
import torch
import torch.distributed as dist
from fsdp_bench import Net, assert_in_daemon_memory, assert_same, copied, init_buffers, local, train
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, address, source, mode, handle):
        self.address, self.source, self.mode, self.handle = address, source, mode, handle or None
        self.theirs, self.ours = Net(), None
        self.result = None

    def load(self):
        path = pathlib.Path(self.source)
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        state = {name: tensor for file in files for name, tensor in load_file(file).items()}
        fully_shard(self.theirs)
        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.theirs, copied(state), options=whole)
        with torch.device("meta"):
            self.ours = Net()
        for model in (self.theirs, self.ours):
            model.requires_grad_(self.mode != "shared")
        fully_shard(self.ours)
        self.result = ckptd.torch.load_into(
            self.ours,
            self.source,
            mode=self.mode,
            handle=self.handle,
            address=self.address,
            init_buffers=init_buffers,
        )
        models = (self.ours, self.theirs)
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in models]
        return {
            "mode": self.result.mode,
            "device": self.result.device,
            "copied": self.result.copied,
            "copied_bytes": self.result.copied_bytes,
            "handle": self.result.handle,
        }

    def compare(self):
        assert_same(self.ours, self.theirs, self.mode)
        assert_in_daemon_memory(self.ours, skip=("freq",))
        return {"same": True}

    def train(self):
        ours, theirs = (
            train(model, optimizer)
            for model, optimizer in zip((self.ours, self.theirs), self.optimizers)
        )
        assert ours == theirs, (ours, theirs)
        return self.compare()

    def forward(self):
        with torch.no_grad():
            tokens = torch.arange(6)
            return {"same": torch.equal(self.ours(tokens), self.theirs(tokens))}

    def write(self):
        """What the driver says to a copy onto a parameter."""
        from cuda.bindings import driver as cu

        ordinal = next(
            i for i in range(cu.cuDeviceGetCount()[1]) if uuid_of(cu, i) in self.result.device
        )
        cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(ordinal)[1])
        pointer = local(self.ours.up.weight).data_ptr()
        return {"error": int(cu.cuMemcpyHtoD(pointer, b"1234", 4)[0])}

    def drop(self):
        """Lets go of the model, and of all that knows its parameters."""
        self.ours = self.optimizers = None
        gc.collect()
        return {}


def uuid_of(cu, ordinal):
    digits = bytes(cu.cuDeviceGetUuid(ordinal)[1].bytes).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def answer(value):
    print(json.dumps(value), flush=True)


def main(folder, rank, world, address, source, mode, handle):
    torch.set_num_threads(1)
    host_view.install()
    store = dist.FileStore(os.path.join(folder, "store"), int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    trainer = Trainer(address, source, mode, handle)
    try:
        answer(trainer.load())
    except ckptd.Error as error:
        answer({"reason": error.reason, "message": error.message})
        return
    for line in sys.stdin:
        answer(getattr(trainer, line.strip())())


if __name__ == "__main__":
    main(*sys.argv[1:])
