"""Cases of what spreading costs: memory of trainers, and bytes that are read, by each function."""

import contextlib
import gc
import os
import re

import ckptd
import ckptd.accelerate
import ckptd.torch
import torch
from accelerate_cases import OnTheHost
from ckptd.torch import _stage
from fsdp_cases import assert_in_daemon_memory, numbers
from spread_bench import BROADCAST, Accelerator, assert_same_bytes, only_on_first, sharded
from torch import nn

WIDTH, LAYERS = 2048, 14
SPARE = 64 << 20


class Wide(nn.Sequential):
    """235 MB, of which no tensor is as large as what may be spared."""

    def __init__(self):
        super().__init__(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024


def attached_bytes():
    """Of the daemon's memory, what this process has touched."""
    total, counts = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
                counts = "memfd:ckptd" in line
            elif counts and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


@contextlib.contextmanager
def within_its_shard(model):
    """This process's memory grows, at its height, by no more than its shard and SPARE."""
    gc.collect()  # modules of an earlier case, whose shards would be given back meanwhile
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the height begins here
    before = status("VmRSS:")
    yield
    grown = status("VmHWM:") - before
    shard = sum(p.to_local().numel() * p.element_size() for p in model.parameters())
    assert grown <= shard + SPARE, f"it grew by {grown >> 20} MiB, for a shard of {shard >> 20} MiB"
    # Whatever else was given back meanwhile, the shard is part of that.
    assert attached_bytes() >= shard * 0.99, f"{attached_bytes() >> 20} MiB of it: nothing was measured"


def checked(bench, load, in_memory=False):
    """Runs load(bench, model, given) with the values in a file or in rank 0's memory."""
    model, given = sharded(Wide), numbers(Wide())
    sample = given["3.weight"].clone()
    path = None if in_memory else bench.save(given)
    given = only_on_first(bench, given) if in_memory else path
    torch.distributed.barrier()
    with within_its_shard(model):
        load(bench, model, given)
        total = sum(p.to_local()[::64].sum().item() for p in model.parameters())  # touched
    assert total == total
    assert_in_daemon_memory(model)
    assert_same_bytes(model[3].weight.full_tensor(), sample, "3.weight")
    if path and bench.rank == 0:
        with ckptd.connect(bench.address) as client:
            read = [c.progress.storage_bytes for c in client.list() if c.source == path]
        assert sum(read) == LAYERS * (WIDTH + 1) * WIDTH * 4, read


def full_state_dict(bench, model, given):
    ckptd.torch.fsdp2_load_full_state_dict(Accelerator(bench.rank), model, given, address=bench.address)


def lazy_state_dict(bench, model, given):
    full_state_dict(bench, model, ckptd.torch.load_state_dict(given, address=bench.address))


def model_state_dict(bench, model, given):
    ckptd.torch.set_model_state_dict(model, given, options=BROADCAST, address=bench.address)


def dist_module(bench, model, given):
    ckptd.torch.DistModule(model, address=bench.address).load_state_dict(given)


def plain_dict(bench, model, given):
    parts, meta = {}, model.state_dict()
    if bench.rank == 0:
        ckptd.torch.broadcast_and_shard_state_dict(given, meta, parts, address=bench.address)
    else:
        ckptd.torch.shard_broadcasted_state_dict(meta, parts, address=bench.address)
    model.load_state_dict(parts, assign=True)


def checkpoint_in_model(bench, model, given):
    ckptd.accelerate.load_checkpoint_in_model(model, given, broadcast_from_rank0=True, address=bench.address)


def a_checkpoint_costs_its_shard(bench):
    checked(bench, checkpoint_in_model)


def a_full_state_dict_costs_its_shard(bench):
    checked(bench, full_state_dict)


@contextlib.contextmanager
def no_copies():
    kept, _stage.MemoryFile = _stage.MemoryFile, None
    try:
        yield
    finally:
        _stage.MemoryFile = kept


def a_state_dict_in_memory_stays_where_it_is(bench):
    with no_copies():
        checked(bench, full_state_dict, in_memory=True)
        checked(bench, plain_dict, in_memory=True)


def a_full_state_dict_in_memory_costs_its_shard(bench):
    checked(bench, full_state_dict, in_memory=True)


def a_lazy_state_dict_costs_its_shard(bench):
    checked(bench, lazy_state_dict)


def set_model_state_dict_costs_its_shard(bench):
    checked(bench, model_state_dict)


def set_model_state_dict_from_memory_costs_its_shard(bench):
    checked(bench, model_state_dict, in_memory=True)


def a_dist_module_costs_its_shard(bench):
    checked(bench, dist_module)


def a_plain_dict_costs_its_shard(bench):
    checked(bench, plain_dict)


def a_model_that_is_prepared_on_meta_costs_its_shard(bench):
    given = numbers(Wide())
    path = bench.save(given)
    del given
    with torch.device("meta"):
        model = Wide()

    class Size:  # of the shard, which is known before the model is sharded
        @staticmethod
        def parameters():
            return model.parameters()

    with within_its_shard(Size):
        ckptd.torch.fsdp2_prepare_model(
            OnTheHost(bench.rank, auto_wrap_policy="no_wrap"), model, source=path, address=bench.address
        )
    assert_in_daemon_memory(model)
    assert os.path.exists(path)


TWO = [
    a_checkpoint_costs_its_shard,
    a_full_state_dict_costs_its_shard,
    a_full_state_dict_in_memory_costs_its_shard,
    a_state_dict_in_memory_stays_where_it_is,
    a_lazy_state_dict_costs_its_shard,
    set_model_state_dict_costs_its_shard,
    set_model_state_dict_from_memory_costs_its_shard,
    a_dist_module_costs_its_shard,
    a_plain_dict_costs_its_shard,
    a_model_that_is_prepared_on_meta_costs_its_shard,
]
CASES = {2: TWO}
