"""What packages that specialise in loading do, one function each; rivals.py installs them apart from everything else.

Ranks of fastsafetensors read different files and scatter rows to each other. torch_checkpointing reads what the same
number of ranks saved by it, into memory that is there.
"""

import pathlib
import sys

import torch.distributed as dist

PACKAGES = {"fastsafetensors": "0.5.0", "torch_checkpointing": "0.1.1"}
FOLDER = pathlib.Path(__file__).resolve().parents[3] / "build" / "bench-rivals"
sys.path.append(str(FOLDER))  # last: nothing of theirs replaces what is installed


def fastsafetensors(job):
    import contenders
    from fastsafetensors import SafeTensorsFileLoader

    files = [str(path) for path in contenders.files_of(job.source)]
    loader = SafeTensorsFileLoader(dist.group.WORLD, device="cpu", nogds=True)
    ranks = dist.get_world_size()
    loader.add_filenames({rank: files[rank::ranks] for rank in range(ranks)})
    buffers = loader.copy_files_to_device()
    job.keep.append((loader, buffers))

    def local_of(name, parameter):
        if parameter.shape[0] % ranks == 0:
            return buffers.get_sharded(name, 0)
        begin, end = contenders.rows(parameter)
        return buffers.get_tensor(name)[begin:end].clone()

    contenders.assign(job, local_of)


def _manager():
    from torch_checkpointing import CheckpointManager, SyncCheckpointSaverConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    # It writes by O_DIRECT unless told, and buffers that are not aligned end in EINVAL.
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    return CheckpointManager(CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage))


def torch_checkpointing(job):
    _manager().load(str(job.of_peer), into={"model": job.model.state_dict()}, strict=True)


def save(job):
    """Not a contender: writes what torch_checkpointing reads."""
    import contenders

    contenders.slice_and_clone(job)
    _manager().save(str(job.of_peer / "saved"), {"model": job.model.state_dict()})


SAVE = "save for torch_checkpointing"
LOADS = {"fastsafetensors": fastsafetensors, "torch_checkpointing": torch_checkpointing}
CONTENDERS = {SAVE: save, **LOADS}
