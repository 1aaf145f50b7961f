"""Cases of load_training_state: a training that was stopped goes on as one that was not.

Each case trains a model for some steps, saves it by torch, and trains on. Another model, built on
meta, takes the saved state from the daemons: its parameters and states have the same bytes, and its
next steps the same losses.
"""

import os

import ckptd
import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_bench import Net, assert_same, daemon_ranges, init_buffers, local, train
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)


def momentum(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adafactor(params):
    return torch.optim.Adafactor(params, lr=0.05)


def two_groups(params):
    """Group 0 has the matrices, with its own rate."""
    params = list(params)
    matrices = [p for p in params if p.dim() > 1]
    return torch.optim.AdamW(
        [{"params": matrices, "lr": 0.01}, {"params": [p for p in params if p.dim() <= 1]}], lr=0.05
    )


def trained(wrap, optimizer):
    """(model, optimizer) after three steps."""
    torch.manual_seed(5)
    model = Net()
    wrap(model)
    made = optimizer(model.parameters())
    train(model, made, 3)
    return model, made


def new(wrap, optimizer):
    with torch.device("meta"):
        model = Net()
    wrap(model)
    return model, optimizer(model.parameters())


def path_of(bench, suffix=""):
    bench.saved += 1
    return os.path.join(bench.folder, f"{bench.case}-{bench.saved}{suffix}")


def saved_by_torch(bench, model, optimizer):
    """A file with numbers for parameters, as scripts without sharding write it. Rank 0's."""
    path = path_of(bench, ".pt")
    if bench.rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    dist.barrier()
    return path


def saved_whole(bench, model, optimizer):
    """A file with names for parameters, gathered on rank 0."""
    path = path_of(bench, ".pt")
    state = get_model_state_dict(model, options=FULL), get_optimizer_state_dict(model, optimizer, options=FULL)
    if bench.rank == 0:
        torch.save({"model": state[0], "optimizer": state[1]}, path)
    dist.barrier()
    return path


def saved_by_dcp(bench, model, optimizer, flatten=False):
    path = path_of(bench)
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    state = {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, optimizer, options=options),
        "scheduler": {"last_epoch": 7, "_last_lr": [0.5, 0.25]},
    }
    dcp.save(state, checkpoint_id=path)
    return path


def saved_flattened(bench, model, optimizer):
    return saved_by_dcp(bench, model, optimizer, flatten=True)


def load(bench, model, optimizer, path, **options):
    options.setdefault("init_buffers", init_buffers)
    return ckptd.torch.load_training_state(model, optimizer, path, address=bench.address, **options)


def states_of(optimizer):
    """[(number of the parameter, name of the state, value)]."""
    numbers = {p: i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    pairs = ((numbers[p], name, value) for p, state in optimizer.state.items() for name, value in state.items())
    return sorted(pairs, key=lambda each: each[:2])


def assert_same_states(ours, theirs):
    mine, others = states_of(ours), states_of(theirs)
    assert [each[:2] for each in mine] == [each[:2] for each in others]
    for (number, name, a), (_, _, b) in zip(mine, others):
        where = f"{name} of parameter {number}"
        assert type(a) is type(b), f"{where}: {type(a)} {type(b)}"
        if not isinstance(a, torch.Tensor):
            assert a == b, where
            continue
        assert a.dtype == b.dtype and a.shape == b.shape, where
        if isinstance(a, DTensor):
            assert a.placements == b.placements and a.device_mesh == b.device_mesh, where
        assert local(a).shape == local(b).shape and torch.equal(local(a), local(b)), where
    groups = zip(ours.param_groups, theirs.param_groups)
    for a, b in groups:
        assert {k: v for k, v in a.items() if k != "params"} == {k: v for k, v in b.items() if k != "params"}


def assert_states_in_daemon_memory(optimizer):
    ranges = daemon_ranges()
    for number, name, value in states_of(optimizer):
        part = local(value) if isinstance(value, torch.Tensor) else None
        if part is not None and part.numel():
            assert any(low <= part.data_ptr() < high for low, high in ranges), f"{name} of {number}"


def assert_goes_on(bench, wrap, save, optimizer=adamw, **options):
    """The whole round on one mesh."""
    theirs, their_optimizer = trained(wrap, optimizer)
    path = save(bench, theirs, their_optimizer)
    ours, our_optimizer = new(wrap, optimizer)
    result = load(bench, ours, our_optimizer, path, **options)
    assert result.optimizer.missing == [] and result.optimizer.unexpected == [], result.optimizer
    assert_same(ours, theirs, "after the load")
    assert_same_states(our_optimizer, their_optimizer)
    assert_states_in_daemon_memory(our_optimizer)
    assert train(ours, our_optimizer) == train(theirs, their_optimizer), "losses differ"
    assert_same(ours, theirs, "after training")
    return result


def unsharded(model):
    pass


def by_layer(model):
    fully_shard([model.up, model.down])
    fully_shard(model)


def hsdp(model):
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def with_tp(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])


def a_file_of_torch(bench):
    for optimizer in (adamw, momentum, adafactor, two_groups):
        assert_goes_on(bench, unsharded, saved_by_torch, optimizer)


def a_file_with_names(bench):
    assert_goes_on(bench, unsharded, saved_whole, two_groups)


def a_folder_of_dcp(bench):
    result = assert_goes_on(bench, unsharded, saved_by_dcp, two_groups)
    assert result.extra == {"scheduler": {"last_epoch": 7, "_last_lr": [0.5, 0.25]}}, result.extra
    assert_goes_on(bench, unsharded, saved_flattened, two_groups)


def fsdp2_from_each_way_to_save(bench):
    for save in (saved_whole, saved_by_dcp, saved_flattened):
        assert_goes_on(bench, by_layer, save, two_groups)
    assert_goes_on(bench, by_layer, saved_by_dcp, momentum)


def hsdp_from_dcp(bench):
    assert_goes_on(bench, hsdp, saved_by_dcp)


def fsdp2_over_tp_from_dcp(bench):
    assert_goes_on(bench, with_tp, saved_by_dcp)


CASES = {
    1: [a_file_of_torch, a_file_with_names, a_folder_of_dcp],
    2: [fsdp2_from_each_way_to_save],
    4: [hsdp_from_dcp, fsdp2_over_tp_from_dcp],
}
