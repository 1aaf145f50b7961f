"""Cases of what loading costs: memory of trainers, and bytes that are read and that travel, by each function."""

import contextlib
import ctypes
import functools
import gc
import os
import pathlib
import re

import ckptd
import ckptd.accelerate
import ckptd.torch
import grpc
import torch
import torch.distributed as dist
from accelerate_cases import OnTheHost
from ckptd import _proto
from ckptd.torch.spread import _staging
from fsdp1_cases import empty, flats, of_layers, wrapped
from fsdp_bench import assert_in_daemon_memory, local, on_meta
from safetensors.torch import save_file
from spread_bench import BROADCAST, Accelerator, assert_same_bytes, sharded
from torch import nn
from torch.distributed.tensor import DTensor, Shard

WIDTH, ROWS, LAYERS = 2048, 65536, 10
SPARE = 64 << 20
MADV_DONTNEED = 4


class Wide(nn.Module):
    """One tensor of 256 MiB, far above what may be spared, and 80 MiB of small ones."""

    def __init__(self):
        super().__init__()
        self.large = nn.Linear(WIDTH, ROWS, bias=False, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS))


def size_of(state):
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def patterned(state):
    """Values in place of `state`, others in each row: random ones take seconds."""
    period, found = torch.arange(16381, dtype=torch.int16), {}  # a prime; as bfloat16 all are below 2
    for number, (name, like) in enumerate(state.items()):
        bits = period.roll(number).repeat(like.numel() // len(period) + 1)[: like.numel()].clone()
        found[name] = bits.view(torch.bfloat16).reshape(like.shape)
    return found


@functools.cache
def values():
    return patterned(on_meta(Wide).state_dict())


def saved(bench, state, name="wide.safetensors"):
    """The path of a file that no daemon has loaded, as far as they can tell: written once, and younger each time."""
    path = os.path.join(bench.folder, name)
    if bench.rank == 0:
        if not os.path.exists(path):
            save_file(state, path, metadata={"format": "pt"})
        os.utime(path)
    dist.barrier()
    return path


# -- what is measured ------------------------------------------------------------


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


def known(bench):
    with ckptd.connect(bench.address) as client:
        return {checkpoint.name: checkpoint for checkpoint in client.list()}


def let_go(bench):
    """What earlier cases left in this process, and in its daemon."""
    gc.collect()
    with grpc.insecure_channel(bench.address.replace(".sock", ".admin.sock")) as admin:
        unload = admin.unary_unary("/ckptd.v1.AdminService/UnloadCheckpoint")
        for name, checkpoint in known(bench).items():
            if checkpoint.state == "ACTIVE":
                request = _proto.message("UnloadCheckpointRequest")(name=name, force=True)
                unload(request.SerializeToString(), timeout=60)


@contextlib.contextmanager
def costs(bench, read, passes=0):
    """What is done inside costs this rank its shard and SPARE of memory, at its height.

    Yields a function that is to be told the bytes of the shard. The daemons of all ranks
    read `read` bytes, place what the ranks have, and send only that. passes: bytes that
    this rank has besides, and lets go.
    """
    dist.barrier()  # a shard that one rank lets go of while another still loads is filled again
    let_go(bench)
    before, told = set(known(bench)), []
    dist.barrier()  # what comes now is no longer from before
    attached = attached_bytes()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the height begins here
    resident = status("VmRSS:")
    yield told.append
    grown, (shard,) = status("VmHWM:") - resident, told
    facts = [None] * bench.world  # what one rank finds, all fail for
    dist.all_gather_object(facts, (shard, grown, attached_bytes() - attached, passes))
    made = [checkpoint.progress for name, checkpoint in known(bench).items() if name not in before]
    counted = [[sum(getattr(progress, what) for progress in made)
                for what in ("storage_bytes", "bytes_done", "sent_bytes")]]
    dist.broadcast_object_list(counted)  # of rank 0, whose daemon reads for all
    for rank, (shard, grown, held, _) in enumerate(facts):
        assert grown <= shard + SPARE, f"rank {rank} grew by {grown >> 20} MiB, for a shard of {shard >> 20} MiB"
        # Whatever was given back meanwhile, the shard is part of what was measured.
        assert held >= shard * 0.99, f"rank {rank} holds {held >> 20} MiB of its {shard >> 20}: nothing was measured"
    placed = [shard + passes for shard, _, _, passes in facts]
    assert counted == [[read, sum(placed), sum(placed[1:])]], f"{counted}, for {placed}"


def shard_of(model):
    return sum(local(p).numel() * p.element_size() for p in model.parameters())


def assert_holds_its_part(bench, model, state):
    for name, parameter in model.named_parameters():
        whole = state[name]
        if isinstance(parameter, DTensor):
            (placement,) = parameter.placements
            if isinstance(placement, Shard):
                whole = whole.chunk(bench.world, placement.dim)[bench.rank].contiguous()
        assert_same_bytes(local(parameter), whole, name)


# -- functions that fill FSDP2 models ----------------------------------------------


def checked(bench, load, in_memory=False):
    """Runs load(bench, model, given) with the values in a file or in rank 0's memory."""
    model, state = sharded(Wide), values()
    if in_memory:
        given = dict(state) if bench.rank == 0 else {}
    else:
        given = saved(bench, state)
    with costs(bench, size_of(state)) as shard:
        load(bench, model, given)
        shard(shard_of(model))
    assert_in_daemon_memory(model)
    assert_holds_its_part(bench, model, state)


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


def checkpoint_in_model(bench, model, given, **options):
    ckptd.accelerate.load_checkpoint_in_model(model, given, address=bench.address, **options)


def a_checkpoint_costs_its_shard(bench):
    checked(bench, functools.partial(checkpoint_in_model, broadcast_from_rank0=True))


def a_checkpoint_that_every_rank_opens_costs_its_shard(bench):
    checked(bench, checkpoint_in_model)


def a_full_state_dict_costs_its_shard(bench):
    checked(bench, full_state_dict)


@contextlib.contextmanager
def no_copies():
    kept, _staging.MemoryFile = _staging.MemoryFile, None
    try:
        yield
    finally:
        _staging.MemoryFile = kept


def a_state_dict_in_memory_stays_where_it_is(bench):
    with no_copies():
        checked(bench, full_state_dict, in_memory=True)
        checked(bench, plain_dict, in_memory=True)


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
    model, state = on_meta(Wide), values()
    path, accelerator = saved(bench, state), OnTheHost(bench.rank, auto_wrap_policy="no_wrap")
    with costs(bench, size_of(state)) as shard:
        ckptd.torch.fsdp2_prepare_model(accelerator, model, source=path, address=bench.address)
        shard(shard_of(model))
    assert_in_daemon_memory(model)
    assert_holds_its_part(bench, model, state)


# -- FSDP1 -------------------------------------------------------------------------


def forget(tensor):
    """Gives back the memory of a tensor whose values nobody needs."""
    begin, end = tensor.data_ptr() + 4095 & ~4095, tensor.data_ptr() + tensor.nbytes & ~4095
    failed = ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)
    assert not failed


def a_flat_model_costs_its_shard(load, bench):
    path, state = saved(bench, values()), values()
    model = wrapped(on_meta(Wide), param_init_fn=empty, auto_wrap_policy=of_layers)
    for flat in flats(model).values():
        forget(flat)
    with costs(bench, size_of(state)) as shard:
        load(bench, model, path)
        shard(sum(flat.nbytes for flat in flats(model).values()))
    for number, flat in flats(model).items():
        names = [f"layers.{number - 1}.weight", f"layers.{number - 1}.bias"] if number else ["large.weight"]
        whole = torch.cat([state[name].flatten() for name in names])
        assert_same_bytes(flat, whole.chunk(bench.world)[bench.rank], names[0])


def load_into_costs_a_flat_model_its_shard(bench):
    a_flat_model_costs_its_shard(lambda bench, model, path: bench.load(model, path), bench)


def set_model_state_dict_costs_a_flat_model_its_shard(bench):
    a_flat_model_costs_its_shard(model_state_dict, bench)


# -- device maps -------------------------------------------------------------------


def a_device_map_costs_what_stays(bench):
    model, state = on_meta(Wide), values()
    path = saved(bench, state)
    with costs(bench, size_of(state)) as shard:
        checkpoint_in_model(bench, model, path, device_map={"": "cpu"})
        shard(shard_of(model))
    assert_in_daemon_memory(model)
    assert_holds_its_part(bench, model, state)


def what_a_device_map_sends_to_disk_costs_no_memory(bench):
    model, state = on_meta(Wide), values()
    path, folder = saved(bench, state), os.path.join(bench.folder, f"offloaded-{bench.rank}")
    gone = {name: value for name, value in state.items() if name != "large.weight"}
    # Groups are a rank's own loads: of those that go to disk on several ranks each is read for each.
    read = size_of(state) + (bench.world - 1) * size_of(gone)
    with costs(bench, read, passes=size_of(gone)) as shard:
        checkpoint_in_model(bench, model, path, device_map={"large": "cpu", "layers": "disk"}, offload_folder=folder)
        shard(state["large.weight"].nbytes)
    assert_same_bytes(model.large.weight, state["large.weight"], "large.weight")
    for name, value in gone.items():
        there = torch.from_file(os.path.join(folder, f"{name}.dat"), size=value.numel(), dtype=value.dtype)
        assert_same_bytes(there.reshape(value.shape), value, name)


# -- transformers --------------------------------------------------------------------


def from_pretrained_costs_its_shard(parallel, bench):
    import transformers  # here, for it takes seconds
    from transformers_cases import Case, parallel_options

    config = transformers.LlamaConfig(
        vocab_size=ROWS, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1, num_attention_heads=16,
        tie_word_embeddings=True, dtype="bfloat16")
    state = on_meta(lambda: transformers.LlamaForCausalLM(config)).state_dict()
    del state["lm_head.weight"]
    state = patterned(state)
    folder, small = pathlib.Path(bench.folder), Case("small", "llama", parallel)
    if bench.rank == 0:
        small.save(folder)
        config.save_pretrained(folder / "large")
    path = saved(bench, state, "large/model.safetensors")
    options = parallel_options(parallel, bench.world) if parallel else {}
    with ckptd.patch(address=bench.address, timeout=60):
        small.load(small.path(folder), bench.world)  # what a first one imports is no part of the cost
        with costs(bench, size_of(state)) as shard:
            model = transformers.AutoModelForCausalLM.from_pretrained(os.path.dirname(path), **options)
            shard(shard_of(model))
    assert_in_daemon_memory(model, skip=dict(model.named_buffers()))
    assert_holds_its_part(bench, model, state)


def from_pretrained_costs_the_model(bench):
    from_pretrained_costs_its_shard(None, bench)


def from_pretrained_costs_its_part_of_each_tensor(bench):
    from_pretrained_costs_its_shard("tp", bench)


def from_pretrained_costs_its_shard_of_fsdp2(bench):
    from_pretrained_costs_its_shard("fsdp", bench)


class Deep(nn.Module):
    """48 MiB and another 48 in smaller ones. With the states of Adam a whole one is far above what may be spared."""

    def __init__(self):
        super().__init__()
        self.large = nn.Linear(WIDTH, 6 * WIDTH, bias=False, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(6))


def a_training_costs_its_shards_and_their_states(bench):
    weights = patterned(on_meta(Deep).state_dict())
    path = os.path.join(bench.folder, "training.pt")
    if bench.rank == 0:
        states = {name: {"step": torch.tensor(3.0), "exp_avg": value, "exp_avg_sq": value.clone()}
                  for name, value in weights.items()}
        group = {"params": list(weights), "lr": 0.5, "betas": (0.5, 0.25)}
        torch.save({"model": weights, "optimizer": {"state": states, "param_groups": [group]}}, path)
    dist.barrier()
    model, steps = sharded(Deep), 4 * len(weights)
    optimizer = torch.optim.AdamW(model.parameters())
    with costs(bench, 3 * size_of(weights) + steps) as shard:
        ckptd.torch.load_training_state(model, optimizer, path, address=bench.address)
        shard(3 * shard_of(model) + steps)
    assert_holds_its_part(bench, model, weights)
    for name, parameter in model.named_parameters():
        assert_same_bytes(local(optimizer.state[parameter]["exp_avg"]), local(parameter), name)


TWO = [
    a_checkpoint_costs_its_shard,
    a_checkpoint_that_every_rank_opens_costs_its_shard,
    a_full_state_dict_costs_its_shard,
    a_state_dict_in_memory_stays_where_it_is,
    a_lazy_state_dict_costs_its_shard,
    set_model_state_dict_costs_its_shard,
    set_model_state_dict_from_memory_costs_its_shard,
    a_dist_module_costs_its_shard,
    a_plain_dict_costs_its_shard,
    a_model_that_is_prepared_on_meta_costs_its_shard,
    load_into_costs_a_flat_model_its_shard,
    a_training_costs_its_shards_and_their_states,
    set_model_state_dict_costs_a_flat_model_its_shard,
    a_device_map_costs_what_stays,
    what_a_device_map_sends_to_disk_costs_no_memory,
    from_pretrained_costs_the_model,
    from_pretrained_costs_its_part_of_each_tensor,
    from_pretrained_costs_its_shard_of_fsdp2,
]

CASES = {2: TWO}
