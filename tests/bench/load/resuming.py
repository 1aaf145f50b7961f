"""What puts a training back, one function each: model and AdamW as they were saved.

The model has memory of its own, as after a restart, and the optimizer has no states yet.
"""

import os
import types

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

KINDS = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}


def prepare(job):
    """Before the clock."""
    job.model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.zero_()
    job.optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-3)


def save(job):
    """Not a contender: a training whose numbers say where they belong, in each form that is loaded."""
    import torch.distributed.checkpoint as dcp
    from accelerate.utils import fsdp_utils

    prepare(job)
    for number, parameter in enumerate(job.model.parameters()):
        local = parameter.to_local()
        values = torch.arange(local.numel()).reshape(local.shape) % 251 + number + 7 * dist.get_rank()
        with torch.no_grad():
            local.copy_(values * 1e-3)
        parameter.grad = parameter.detach() * 0.5
    job.optimizer.step()
    job.optimizer.zero_grad()
    model, optimizer = get_state_dict(job.model, job.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=str(job.training / "dcp"))
    for folder, kind in KINDS.items():
        os.makedirs(job.training / folder, exist_ok=True)
        how = _accelerate(kind)
        fsdp_utils.save_fsdp_model(*how, job.model, str(job.training / folder))
        fsdp_utils.save_fsdp_optimizer(*how, job.optimizer, job.model, str(job.training / folder))


def _accelerate(kind):
    """The plugin and what its functions ask an Accelerator for."""
    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin

    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        os.environ.setdefault(name, value)  # asked for, though the group is there
    PartialState(cpu=True)
    rank = dist.get_rank()
    return FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind), types.SimpleNamespace(
        wait_for_everyone=dist.barrier, is_fsdp2=True, process_index=rank, num_processes=dist.get_world_size(),
        is_main_process=rank == 0)


def states(job):
    """name -> this rank's part of a state of the optimizer."""
    found = {}
    for name, parameter in job.model.named_parameters():
        for key, value in job.optimizer.state[parameter].items():
            found[f"{name}.{key}"] = value.to_local() if isinstance(value, DTensor) else value
    return found


def ckptd_training(job):
    import ckptd.torch

    result = ckptd.torch.load_training_state(
        job.model, job.optimizer, job.training / "dcp", timeout=120, digest=False)
    job.keep.append(result)


def ckptd_weights(job):
    import ckptd.torch

    job.keep.append(ckptd.torch.load_into(job.model, f"{job.training}/dcp#model", timeout=120, digest=False))


def torch_training(job):
    import torch.distributed.checkpoint as dcp

    model, optimizer = get_state_dict(job.model, job.optimizer)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=str(job.training / "dcp"))
    set_state_dict(job.model, job.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def by_accelerate(folder):
    """What Accelerator.load_state calls for an FSDP plugin."""
    def load(job):
        from accelerate.utils import fsdp_utils

        how, path = _accelerate(KINDS[folder]), str(job.training / folder)
        fsdp_utils.load_fsdp_model(*how, job.model, path)
        fsdp_utils.load_fsdp_optimizer(*how, job.optimizer, job.model, path)

    return load


def by_ckptd(folder):
    def load(job):
        import ckptd.accelerate

        with ckptd.accelerate.patch(timeout=120, digest=False):
            by_accelerate(folder)(job)

    return load


SAVE = "save a training"
OURS, WEIGHTS, TORCH = "ckptd load_training_state", "ckptd load_into, weights of the same folder", "dcp.load and set_state_dict"
CONTENDERS = {
    OURS: ckptd_training, WEIGHTS: ckptd_weights, TORCH: torch_training,
    **{f"ckptd load_state, {folder}": by_ckptd(folder) for folder in KINDS},
    **{f"accelerate load_state, {folder}": by_accelerate(folder) for folder in KINDS},
}
