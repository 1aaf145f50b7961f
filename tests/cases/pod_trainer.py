"""A trainer in a container of its own: python pod_trainer.py CHECKPOINT

Does what each line on stdin asks, and answers with a line of JSON. It has the checkpoint's file to compare with.
"""

import json
import os
import signal
import sys

import ckptd
import safetensors.numpy


class Trainer:
    def __init__(self, path):
        self.path, self.shard = path, None

    def attach(self):
        """Maps the whole checkpoint, which its daemon loads if it is not resident."""
        client = ckptd.connect()
        checkpoint = client.load(self.path, layout="replicate:1")
        self.shard = client.acquire(checkpoint)
        return {"resident": checkpoint.resident, **self.compare()}

    def compare(self):
        """How many bytes in the shard are the file's; all of them, or this fails."""
        expected = safetensors.numpy.load_file(self.path)
        assert set(expected) == set(self.shard.tensors)
        for name, array in expected.items():
            assert bytes(self.shard.tensors[name].buffer) == array.tobytes(), name
        return {"bytes": sum(array.nbytes for array in expected.values())}

    def train(self):
        """A step of an FSDP2 module on the checkpoint's weights: the loss before and after."""
        import ckptd.torch
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with torch.device("meta"):
            module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 8))
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        ckptd.torch.load_into(module, self.path)
        given = safetensors.numpy.load_file(self.path)
        same = all((parameter.to_local().detach().numpy() == given[name]).all()
                   for name, parameter in module.named_parameters())
        optimizer, losses = torch.optim.SGD(module.parameters(), 0.01), []
        for _ in range(2):
            loss = module(torch.ones(4, 64)).square().mean()
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        return {"same": same, "losses": losses}

    def where(self):
        """What this process can see of others, and who it is."""
        shown = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        return {"uid": os.getuid(), "groups": os.getgroups(), "processes": len(shown), "pid": os.getpid()}


def main(path):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which a namespace's first process would not hear
    trainer = Trainer(path)
    for line in sys.stdin:
        print(json.dumps(getattr(trainer, line.strip())()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
