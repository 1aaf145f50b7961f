"""What loads a checkpoint into an FSDP2 model, one function each.

Every function gets a Job whose model is sharded and on meta, and returns when the
model's parameters hold this rank's bytes. What a user would have prepared before
(a saved DCP checkpoint, running daemons) is prepared before the clock starts.
"""

import contextlib
import dataclasses
import functools
import json
import mmap
import os
import pathlib
import warnings
from typing import Optional

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

import peers
import resuming


@dataclasses.dataclass
class Job:
    model: torch.nn.Module
    source: pathlib.Path  # folder of safetensors files
    saved: pathlib.Path  # DCP checkpoint of the same number of ranks
    saved_elsewhere: pathlib.Path  # DCP checkpoint of another number of ranks
    pickled: pathlib.Path  # folder of one file of torch
    training: pathlib.Path  # folder of what resuming.save writes
    of_peer: pathlib.Path  # folder of what peers.save writes
    optimizer: Optional[torch.optim.Optimizer] = None  # of those that put a training back
    keep: list = dataclasses.field(default_factory=list)  # outlives the clock
    state: dict = dataclasses.field(default_factory=dict)  # rank 0's, by PREPARE


def weight_map(source):
    return json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]


def files_of(source):
    return [source / name for name in sorted(set(weight_map(source).values()))]


def full_state(source):
    """The whole checkpoint on rank 0, nothing elsewhere: what the full-state-dict loaders start from."""
    state = {}
    if dist.get_rank() == 0:
        for path in files_of(source):
            state.update(load_file(path))
    return state


class Accelerator:
    """What fsdp2_load_full_state_dict looks at."""

    def __init__(self):
        self.is_main_process = dist.get_rank() == 0


def state_in_memory(job):
    """Before the clock: rank 0 has the values, not views of a file that is read later."""
    job.state = {name: tensor.clone() for name, tensor in full_state(job.source).items()}


def of_path(load):
    return lambda job: load(job, job.source)


def of_file(load):
    """What the originals need: rank 0 reads all of it first."""
    return lambda job: load(job, full_state(job.source))


def of_memory(load):
    return lambda job: load(job, job.state)


def accelerate(job, given):
    from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict

    fsdp2_load_full_state_dict(Accelerator(), job.model, given)


def ckptd_full_state_dict(job, given, digest=False):
    import ckptd.torch

    ckptd.torch.fsdp2_load_full_state_dict(Accelerator(), job.model, given, timeout=120, digest=digest)


def from_rank_0():
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def torch_broadcast(job, given):
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    job.model.to_empty(device="cpu")
    set_model_state_dict(job.model, given, options=from_rank_0())


def ckptd_set_model_state_dict(job, given):
    import ckptd.torch

    ckptd.torch.set_model_state_dict(job.model, given, options=from_rank_0(), timeout=120, digest=False)


def ckptd_dist_module(job, given):
    import ckptd.torch

    ckptd.torch.DistModule(job.model, timeout=120, digest=False).load_state_dict(given)


def accelerate_in_model(job, path):
    from accelerate.utils import load_checkpoint_in_model

    job.model.to_empty(device="cpu")
    load_checkpoint_in_model(job.model, path, broadcast_from_rank0=True)


def ckptd_in_model(job, path):
    import ckptd.accelerate

    ckptd.accelerate.load_checkpoint_in_model(job.model, path, broadcast_from_rank0=True, timeout=120, digest=False)


def _dcp(job, reader):
    import torch.distributed.checkpoint as dcp

    job.model.to_empty(device="cpu")
    state = job.model.state_dict()
    dcp.load(state, storage_reader=reader)
    job.model.load_state_dict(state, assign=True)


def dcp_same(job):
    from torch.distributed.checkpoint import FileSystemReader

    _dcp(job, FileSystemReader(job.saved))


def dcp_resharded(job):
    from torch.distributed.checkpoint import FileSystemReader

    _dcp(job, FileSystemReader(job.saved_elsewhere))


def real_memory(job):
    """Before the clock: the model has memory of its own, as that of a training that goes on."""
    job.model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.zero_()


def dcp_in_place(reader_of, what):
    """dcp.load into that memory."""
    def load(job):
        import torch.distributed.checkpoint as dcp

        dcp.load(job.model.state_dict(), storage_reader=reader_of(getattr(job, what)))

    return load


def ckptd_reader(path):
    import ckptd.torch

    return ckptd.torch.StorageReader(path, timeout=120)


def torch_reader(path):
    from torch.distributed.checkpoint import FileSystemReader

    return FileSystemReader(path)


def dcp_hugging_face(job):
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    _dcp(job, HuggingFaceStorageReader(str(job.source)))


def rows(parameter):
    """This rank's rows of a parameter that is sharded over its first dimension."""
    chunk = -(-parameter.shape[0] // dist.get_world_size())
    begin = min(parameter.shape[0], dist.get_rank() * chunk)
    return begin, min(parameter.shape[0], begin + chunk)


def assign(job, local_of):
    state = {
        name: DTensor.from_local(
            local_of(name, parameter), parameter.device_mesh, parameter.placements,
            run_check=False, shape=parameter.shape, stride=parameter.stride())
        for name, parameter in job.model.named_parameters()
    }
    job.model.load_state_dict(state, assign=True)


def slice_and_clone(job):
    names = weight_map(job.source)
    with contextlib.ExitStack() as stack:
        opened = {p.name: stack.enter_context(safe_open(p, "pt")) for p in files_of(job.source)}

        def local_of(name, parameter):
            begin, end = rows(parameter)
            return opened[names[name]].get_slice(name)[begin:end].clone()

        assign(job, local_of)


def mmap_views(job):
    names, opened = weight_map(job.source), {}
    for path in files_of(job.source):
        with open(path, "rb") as file:
            # Read-only: populating a private, writable mapping would copy the whole file.
            data = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        size = int.from_bytes(data[:8], "little")
        opened[path.name] = (data, 8 + size, json.loads(data[8:8 + size]))
        job.keep.append(data)

    def local_of(name, parameter):
        data, base, header = opened[names[name]]
        begin, end = rows(parameter)
        if begin == end:
            return torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype)
        row = parameter[0:1].numel() if parameter.ndim == 0 else int(
            torch.Size(parameter.shape[1:]).numel())
        at = base + header[name]["data_offsets"][0] + begin * row * 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is read-only
            flat = torch.frombuffer(data, dtype=parameter.dtype, count=(end - begin) * row, offset=at)
        return flat.view(end - begin, *parameter.shape[1:])

    assign(job, local_of)


def _ckptd(job, source=None, **options):
    import ckptd.torch
    import model as llama

    def buffers(module, names):
        rotary = module.model.rotary_emb
        rotary.inv_freq = llama.inverse_frequencies(rotary.head_size)

    result = ckptd.torch.load_into(job.model, source or job.source, timeout=120, init_buffers=buffers, **options)
    assert not result.copied, result.copied
    job.keep.append(result)


def ckptd_digests(job):
    _ckptd(job)


def ckptd_no_digests(job):
    _ckptd(job, digest=False)


def ckptd_from(what):
    return lambda job: _ckptd(job, getattr(job, what), digest=False)


def save_for_dcp(job):
    """Not a contender: writes what the dcp.load ones read."""
    import torch.distributed.checkpoint as dcp

    slice_and_clone(job)
    dcp.save(job.model.state_dict(), checkpoint_id=str(job.saved))


SAVE, SAFETENSORS = "save for dcp.load", "ckptd, digests off"
# The same load from other formats, without digests, too.
SOURCES = ("ckptd, torch zip", "ckptd, DCP of as many ranks", "ckptd, DCP of another number of ranks")
# dcp.load by our reader and by torch's, into memory that is there: name -> reader, folder.
READERS = {
    "ckptd StorageReader, same layout": (ckptd_reader, "saved"),
    "ckptd StorageReader, resharded": (ckptd_reader, "saved_elsewhere"),
    "FileSystemReader, same layout": (torch_reader, "saved"),
    "FileSystemReader, resharded": (torch_reader, "saved_elsewhere"),
}
CONTENDERS = {
    SAVE: save_for_dcp,
    resuming.SAVE: resuming.save,
    SAFETENSORS: ckptd_no_digests,
    "ckptd, digests on": ckptd_digests,
    "ckptd, re-attach": ckptd_digests,
    "ckptd fsdp2_load_full_state_dict": of_path(ckptd_full_state_dict),
    "ckptd fsdp2_load_full_state_dict, digests on": of_path(functools.partial(ckptd_full_state_dict, digest=True)),
    "ckptd, state dict in memory": of_memory(ckptd_full_state_dict),
    "ckptd, state dict in memory, used arena": of_memory(ckptd_full_state_dict),
    "ckptd set_model_state_dict": of_path(ckptd_set_model_state_dict),
    "ckptd set_model_state_dict, in memory": of_memory(ckptd_set_model_state_dict),
    "ckptd DistModule": of_path(ckptd_dist_module),
    "ckptd load_checkpoint_in_model": of_path(ckptd_in_model),
    **{name: dcp_in_place(*how) for name, how in READERS.items()},
    **dict(zip(SOURCES, map(ckptd_from, ("pickled", "saved", "saved_elsewhere")))),
    "accelerate fsdp2_load_full_state_dict": of_file(accelerate),
    "accelerate, state dict in memory": of_memory(accelerate),
    "accelerate load_checkpoint_in_model": of_path(accelerate_in_model),
    "torch set_model_state_dict, broadcast": of_file(torch_broadcast),
    "torch set_model_state_dict, in memory": of_memory(torch_broadcast),
    "dcp.load, same layout": dcp_same,
    "dcp.load, resharded": dcp_resharded,
    "DCP Hugging Face reader": dcp_hugging_face,
    "safetensors get_slice + clone": slice_and_clone,
    "mmap views": mmap_views,
    **resuming.CONTENDERS,
    **peers.CONTENDERS,
}
# Checkpoints that are read in place of the source.
READS = {"dcp.load, same layout": "saved", "dcp.load, resharded": "saved_elsewhere",
         **{name: what for name, (_, what) in READERS.items()},
         **dict(zip(SOURCES, ("pickled", "saved", "saved_elsewhere"))), **dict.fromkeys(resuming.CONTENDERS, "training"),
         "torch_checkpointing": "of_peer"}
# What is done before the clock starts.
PREPARE = {**{name: state_in_memory for name in CONTENDERS if "in memory" in name}, **dict.fromkeys(READERS, real_memory),
           **dict.fromkeys(resuming.CONTENDERS, resuming.prepare), "torch_checkpointing": real_memory}


def is_ours(name):
    """Whether the daemons load it."""
    return name.startswith("ckptd")


# What loads weights.
OURS = [name for name in CONTENDERS if is_ours(name) and name not in resuming.CONTENDERS]
RIVALS = [name for name in CONTENDERS
          if not is_ours(name) and name not in (SAVE, resuming.SAVE, *resuming.CONTENDERS, *peers.CONTENDERS)]
# Of ours, those that run accelerate's own code, or look for it.
OVER_ACCELERATE = ["ckptd load_checkpoint_in_model"]
# What these load is handed over for good. Memory that was lent to be read cannot be, and has to be
# made anew: they have daemons that lend nothing, and once those of the others.
APART = ["ckptd, state dict in memory", "ckptd set_model_state_dict, in memory"]
COLD = ["ckptd, digests off", "safetensors get_slice + clone", "mmap views"]


def drop_from_page_cache(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
