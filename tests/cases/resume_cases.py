"""Cases of load_training_state: a training that was stopped goes on as one that was not.

Each case trains a model for some steps, saves it by torch, and trains on. Another model, built on
meta, takes the saved state from the daemons: its parameters and states have the same bytes, and its
next steps the same losses.
"""

import os
import types

import ckptd
import ckptd.accelerate
import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import fsdp_utils
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
from torch.nn.parallel import DistributedDataParallel

# Without cpu_offload: with it FSDP1 crashes where there is no GPU.
FULL = StateDictOptions(full_state_dict=True)


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


def fsdp2_from_a_training_without_shards(bench):
    for optimizer in (two_groups, momentum):
        whole, whole_optimizer = trained(unsharded, optimizer)
        named = saved_whole(bench, whole, whole_optimizer)
        _, expected = assert_resumes_as_torch(bench, named, by_layer, optimizer)
        numbered = saved_by_torch(bench, whole, whole_optimizer)
        ours, mine = new(by_layer, optimizer)
        load(bench, ours, mine, numbered)
        train(ours, mine)
        assert_same_states(mine, expected)


def a_whole_model_from_shards(bench):
    shards, optimizer = trained(by_layer, two_groups)
    path = saved_whole(bench, shards, optimizer)
    assert_resumes_as_torch(bench, path, unsharded, two_groups)


def replicas_of_ddp(bench):
    theirs, their_optimizer = trained(DistributedDataParallel, momentum)
    path = saved_by_torch(bench, theirs.module, their_optimizer)
    torch.manual_seed(bench.rank)
    ours = DistributedDataParallel(Net())
    our_optimizer = momentum(ours.parameters())
    load(bench, ours, our_optimizer, path)
    assert_same(ours, theirs, "after the load")
    assert_same_states(our_optimizer, their_optimizer)
    assert train(ours, our_optimizer) == train(theirs, their_optimizer), "losses differ"


def stages_of_a_pipeline(bench):
    """Each stage has an optimizer of its own, which takes the states of its parameters."""
    whole, whole_optimizer = trained(unsharded, two_groups)
    path = saved_whole(bench, whole, whole_optimizer)
    with torch.device("meta"):
        model = Net()
    stage = torch.nn.Module()
    for name in (("embed", "up", "down"), ("norm", "odd", "head"))[bench.rank]:
        stage.add_module(name, getattr(model, name))
    if bench.rank == 1:
        stage.gain = model.gain
        for name in ("mean", "steps"):
            stage.register_buffer(name, getattr(model, name))
    optimizer = adamw(stage.parameters())
    result = load(bench, stage, optimizer, path)
    assert result.optimizer.missing == []
    theirs = dict(whole.named_parameters())
    for name, param in stage.named_parameters():
        assert torch.equal(param, theirs[name]), name
        mine, other = optimizer.state[param], whole_optimizer.state[theirs[name]]
        assert mine.keys() == other.keys() and all(torch.equal(mine[key], other[key]) for key in mine), name


def fsdp1_with_the_parameters_of_the_model(bench):
    for save in (saved_whole, saved_by_dcp):
        assert_goes_on(bench, fsdp1, save)


def fsdp1_with_flat_parameters(bench):
    for save in (saved_whole, saved_by_dcp):
        assert_goes_on(bench, fsdp1_flat, save)


def what_accelerate_saves(bench):
    """Its functions that load, patched."""
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        os.environ.setdefault(name, value)  # asked for, though the group is there
    PartialState(cpu=True)
    for kind, use_dcp in (("FULL_STATE_DICT", True), ("SHARDED_STATE_DICT", True), ("SHARDED_STATE_DICT", False)):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind)
        accelerator = types.SimpleNamespace(
            wait_for_everyone=dist.barrier, is_fsdp2=True, process_index=bench.rank, num_processes=bench.world,
            is_main_process=bench.rank == 0,
        )
        theirs, their_optimizer = trained(by_layer, adamw)
        folder = path_of(bench)
        os.makedirs(folder, exist_ok=True)
        fsdp_utils.save_fsdp_model(plugin, accelerator, theirs, folder, use_dcp=use_dcp)
        fsdp_utils.save_fsdp_optimizer(plugin, accelerator, their_optimizer, theirs, folder, use_dcp=use_dcp)
        torch.manual_seed(bench.rank)
        ours = by_layer(Net())
        our_optimizer = adamw(ours.parameters())
        with ckptd.accelerate.patch(address=bench.address):
            keys = fsdp_utils.load_fsdp_model(plugin, accelerator, ours, folder, use_dcp=use_dcp)
            fsdp_utils.load_fsdp_optimizer(plugin, accelerator, our_optimizer, ours, folder, use_dcp=use_dcp)
        assert (keys.missing_keys, keys.unexpected_keys) == ([], [])
        assert_same(ours, theirs, "after the load")
        assert_same_states(our_optimizer, their_optimizer)
        assert_states_in_daemon_memory(our_optimizer, f"{kind}, {use_dcp}: ")
        assert train(ours, our_optimizer) == train(theirs, their_optimizer), "losses differ"


def fails(call, code, reason, words):
    try:
        call()
    except ckptd.Error as error:
        assert (error.code, error.reason) == (code, reason) and words in error.message, error
        return error
    raise AssertionError(f"nothing was raised, where {reason} was expected")


def a_state_that_is_missing_is_named(bench):
    model, optimizer = trained(unsharded, adamw)
    state = get_optimizer_state_dict(model, optimizer)
    del state["state"]["gain"]
    path = path_of(bench, ".pt")
    torch.save({"model": model.state_dict(), "optimizer": state}, path)
    ours, mine = new(unsharded, adamw)
    fails(lambda: load(bench, ours, mine, path), "NOT_FOUND", "OPTIMIZER_STATE_MISSING", "the first is gain")
    assert not mine.state and next(ours.parameters()).is_meta, "something was changed"
    result = load(bench, ours, mine, path, strict=False)
    assert result.optimizer.missing == ["gain"] and ours.gain not in mine.state
    assert_same(ours, model, "after the load")


def an_optimizer_of_other_groups_or_shapes_is_refused(bench):
    model, optimizer = trained(unsharded, adamw)
    path = saved_by_torch(bench, model, optimizer)
    ours, mine = new(unsharded, two_groups)
    error = fails(lambda: load(bench, ours, mine, path), "INVALID_ARGUMENT", "OPTIMIZER_MISMATCH", "param_names")
    assert "groups of [11]" in error.message and "groups of [5, 6]" in error.message, error
    # By names the groups may differ.
    load(bench, ours, mine, path, param_names=[name for name, _ in model.named_parameters()])
    assert torch.equal(mine.state[ours.up.weight]["exp_avg"], optimizer.state[model.up.weight]["exp_avg"])
    path = path_of(bench, ".pt")
    state = get_optimizer_state_dict(model, optimizer)
    state["state"]["up.weight"]["exp_avg"] = torch.zeros(3, 8)
    torch.save({"model": model.state_dict(), "optimizer": state}, path)
    ours, mine = new(unsharded, adamw)
    fails(lambda: load(bench, ours, mine, path), "INVALID_ARGUMENT", "OPTIMIZER_MISMATCH", "[3, 8]")
    other = torch.optim.AdamW(Net().parameters())
    fails(lambda: load(bench, ours, other, path), "FAILED_PRECONDITION", "OPTIMIZER_MISMATCH", "no parameter of")
    fails(lambda: load(bench, ours, mine, path, mode="shared"), "INVALID_ARGUMENT", "INVALID_REQUEST", "read-only")


def a_scheduler_gets_its_values(bench):
    model, optimizer = trained(unsharded, momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(3):
        scheduler.step()
    path = path_of(bench, ".pt")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict(),
             "rng": torch.get_rng_state(), "epoch": 3}
    torch.save(state, path)
    ours, mine = new(unsharded, momentum)
    resumed = torch.optim.lr_scheduler.StepLR(mine, 2, 0.5)
    result = load(bench, ours, mine, path, extra={"lr_scheduler": resumed})
    assert resumed.state_dict() == scheduler.state_dict()
    assert mine.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.025
    assert torch.equal(result.extra["rng"], state["rng"]) and result.extra["epoch"] == 3
    error = fails(lambda: load(bench, ours, mine, path, extra={"sampler": resumed}), "NOT_FOUND", "VALUE_NOT_FOUND",
                  "epoch, lr_scheduler, rng")
    assert error.facts["name"] == "sampler"


def a_rank_that_fails_is_named_to_the_others(bench):
    model, optimizer = trained(by_layer, adamw)
    path = saved_by_dcp(bench, model, optimizer)
    ours, mine = new(by_layer, adamw)
    of_another = torch.optim.AdamW(Net().parameters()) if bench.rank == 1 else mine
    error = fails(lambda: load(bench, ours, of_another, path), "FAILED_PRECONDITION", "OPTIMIZER_MISMATCH", "of the model")
    assert bench.rank == 1 or "rank 1" in error.message, error
    assert not mine.state
    dist.barrier()
    load(bench, ours, mine, path)
    assert_same_states(mine, optimizer)
    train(ours, mine, 1)
    assert load(bench, ours, mine, path).optimizer.resident, "a trainer that begins anew attaches to what is there"
    assert_same_states(mine, optimizer)


def hsdp_from_dcp(bench):
    assert_goes_on(bench, hsdp, saved_by_dcp)


def fsdp2_over_tp_from_dcp(bench):
    assert_goes_on(bench, with_tp, saved_by_dcp)


CASES = {
    1: [a_file_of_torch, a_file_with_names, a_folder_of_dcp, a_state_that_is_missing_is_named,
        an_optimizer_of_other_groups_or_shapes_is_refused, a_scheduler_gets_its_values],
    2: [fsdp2_from_each_way_to_save, fsdp2_from_a_training_without_shards, a_whole_model_from_shards,
        replicas_of_ddp, stages_of_a_pipeline,
        fsdp1_with_the_parameters_of_the_model, fsdp1_with_flat_parameters,
        what_accelerate_saves, a_rank_that_fails_is_named_to_the_others],
    4: [hsdp_from_dcp, fsdp2_over_tp_from_dcp],
}
