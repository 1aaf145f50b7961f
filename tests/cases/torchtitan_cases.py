"""torchtitan's CheckpointManager resumes with StorageReader in place of FileSystemReader, beside one that does not."""

import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_bench import Net, assert_same, local, train
from resume_bench import by_layer, path_of
from torchtitan.components.checkpointer.dcp import MODEL, CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw


class Loader:
    """It stands for data: each rank keeps bytes of its own."""

    def __init__(self, rank):
        self.key, self.at = f"dp_rank_{rank}", 0

    def state_dict(self):
        return {self.key: bytes([self.at]), "at": self.at}

    def load_state_dict(self, state):
        assert state[self.key] == bytes([state["at"]])
        self.at = state["at"]


class Step:
    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step, dtype=torch.int32)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


class Training:
    """One of torchtitan's parts. reader: function of a folder, for the manager to load by."""

    def __init__(self, bench, folder, seed, reader=None):
        class Manager(CheckpointManager):
            def dcp_load(self, state_dict, checkpoint_id, from_hf, from_quantized):
                if reader is None:
                    return super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
                dcp.load(state_dict, storage_reader=reader(checkpoint_id))
                self.states[MODEL].load_state_dict(state_dict)

        torch.manual_seed(seed)
        self.model = by_layer(Net())
        config = default_adamw(lr=0.05)
        config.implementation = "for-loop"
        self.optimizers = config.build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=self.optimizers, training_steps=20)
        self.loader, self.step = Loader(bench.rank), Step()
        self.manager = Manager(
            Manager.Config(enable=True, folder="checkpoint", interval=1, keep_latest_k=0), dataloader=self.loader,
            model_parts=[self.model], optimizers=self.optimizers, lr_schedulers=self.schedulers,
            states={"train_state": self.step}, sd_adapter=None, base_folder=folder,
        )

    def train(self, steps):
        losses = []
        for _ in range(steps):
            losses += train(self.model, self.optimizers, 1)
            self.schedulers.step()
            self.step.step += 1
            self.loader.at += 5
        return losses


def a_training_of_torchtitan(bench):
    folder = path_of(bench)
    first = Training(bench, folder, 5)
    first.train(3)
    first.manager.save(3)
    dist.barrier()
    theirs = Training(bench, folder, 6)
    ours = Training(bench, folder, 7, lambda path: ckptd.torch.StorageReader(path, address=bench.address))
    assert theirs.manager.load(3) and ours.manager.load(3)
    assert_same(ours.model, theirs.model, "after the load")
    mine, others = ours.optimizers.state_dict(), theirs.optimizers.state_dict()
    assert mine.keys() == others.keys()
    for key, value in mine.items():
        is_tensor = isinstance(value, torch.Tensor)
        assert torch.equal(local(value), local(others[key])) if is_tensor else value == others[key], key
    assert (ours.step.step, ours.loader.at) == (theirs.step.step, theirs.loader.at) == (3, 15)
    assert ours.train(4) == theirs.train(4) == first.train(4), "losses differ"


CASES = {2: [a_training_of_torchtitan]}
