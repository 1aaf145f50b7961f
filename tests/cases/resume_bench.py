"""The bench of cases that resume a training: models, optimizers, ways to save, and the comparison with torch.

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
from fsdp1_cases import empty, of_layers, wrapped
from fsdp_bench import Net, assert_same, daemon_ranges, init_buffers, local, train
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# Without cpu_offload: with it FSDP1 crashes where there is no GPU.
FULL = StateDictOptions(full_state_dict=True)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)


def momentum(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adafactor(params):
    return torch.optim.Adafactor(params, lr=0.05)


class Blocks(torch.optim.Optimizer):
    """One whose states have shapes of its own, and which makes none without the values of gradients."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            largest = float(param.grad.abs().max())
            block = self.state[param].setdefault("blocks", torch.zeros(2, 3))
            param.sub_(param.grad, alpha=0.05 * float(block.add_(largest).mean()))


def two_groups(params):
    """Group 0 has the matrices, with its own rate."""
    params = list(params)
    matrices = [p for p in params if p.dim() > 1]
    return torch.optim.AdamW(
        [{"params": matrices, "lr": 0.01}, {"params": [p for p in params if p.dim() <= 1]}], lr=0.05
    )


def turned_groups(params):
    """Those of two_groups in the other order, made with other rates."""
    params = list(params)
    vectors = [p for p in params if p.dim() <= 1]
    return torch.optim.AdamW([{"params": vectors, "lr": 0.3}, {"params": [p for p in params if p.dim() > 1]}], lr=0.4)


def trained(wrap, optimizer):
    """(model, optimizer) after three steps."""
    torch.manual_seed(5)
    model = wrap(Net())
    made = optimizer(model.parameters())
    train(model, made, 3)
    return model, made


def new(wrap, optimizer):
    with torch.device("meta"):
        model = Net()
    model = wrap(model)
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
        "scheduler": {"last_epoch": 7, "_last_lr": [0.5, 0.25], "range": (1, b"a")},
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


def options_of(group):
    """Its hyperparameters. Through a gathered state dict torch makes lists of tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in group.items() if k != "params"}


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
    for a, b in zip(ours.param_groups, theirs.param_groups):
        a, b = (options_of(group) for group in (a, b))
        assert a == b, (a, b)


def assert_states_in_daemon_memory(optimizer, what=""):
    ranges = daemon_ranges()
    for number, name, value in states_of(optimizer):
        part = local(value) if isinstance(value, torch.Tensor) else None
        if part is not None and part.numel():
            assert any(low <= part.data_ptr() < high for low, high in ranges), f"{what}{name} of {number}"


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


def assert_resumes_as_torch(bench, path, wrap, optimizer):
    """`path` was saved from another mesh, whole and by names: torch resumes from it as well."""
    state = torch.load(path, weights_only=True)
    theirs = wrap(Net())
    their_optimizer = optimizer(theirs.parameters())
    set_model_state_dict(theirs, state["model"], options=FULL)
    set_optimizer_state_dict(theirs, their_optimizer, state["optimizer"], options=FULL)
    ours, our_optimizer = new(wrap, optimizer)
    load(bench, ours, our_optimizer, path)
    assert_same(ours, theirs, "after the load")
    assert_same_states(our_optimizer, their_optimizer)
    assert train(ours, our_optimizer) == train(theirs, their_optimizer), "losses differ"
    return ours, our_optimizer


def unsharded(model):
    return model


def by_layer(model):
    fully_shard([model.up, model.down])
    return fully_shard(model)


def hsdp(model):
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def with_tp(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


def fsdp1(model, use_orig_params=True):
    on_meta = next(model.parameters()).is_meta
    more = {"param_init_fn": empty} if on_meta else {}
    return wrapped(model, auto_wrap_policy=of_layers, use_orig_params=use_orig_params, **more)


def fsdp1_flat(model):
    return fsdp1(model, False)


def fails(call, code, reason, words):
    try:
        call()
    except ckptd.Error as error:
        assert (error.code, error.reason) == (code, reason) and words in error.message, error
        return error
    raise AssertionError(f"nothing was raised, where {reason} was expected")
