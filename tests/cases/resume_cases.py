"""Cases of load_training_state: a training that was stopped goes on as one that was not. See resume_bench."""

import torch
import torch.distributed as dist
from fsdp_bench import Net, assert_same, train
from resume_accelerate_cases import (
    local_state_dicts_of_two_ranks,
    the_trainer_of_transformers,
    what_a_training_with_other_processes_saved,
    what_accelerate_saves,
    without_fsdp,
)
from resume_bench import (
    Blocks,
    adafactor,
    adamw,
    assert_goes_on,
    assert_resumes_as_torch,
    assert_same_states,
    assert_states_in_daemon_memory,
    by_layer,
    fails,
    fsdp1,
    fsdp1_flat,
    hsdp,
    load,
    momentum,
    new,
    path_of,
    saved_by_dcp,
    saved_by_torch,
    saved_flattened,
    saved_whole,
    trained,
    turned_groups,
    two_groups,
    unsharded,
    with_tp,
)
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel


# Keys and values that a name of a path and JSON do not tell.
ODD = {0: {"a.b": torch.arange(3)}, 7: 1, "1": 2, (3, "t"): b"\x00\xff", None: 1 - 2.5j, "betas": (0.9, [()]), "s": {4}}


def a_file_of_torch(bench):
    for optimizer in (adamw, momentum, adafactor, two_groups, Blocks):
        assert_goes_on(bench, unsharded, saved_by_torch, optimizer)


def a_file_with_names(bench):
    assert_goes_on(bench, unsharded, saved_whole, two_groups)


def groups_in_another_order(bench):
    whole, optimizer = trained(unsharded, two_groups)
    path = saved_whole(bench, whole, optimizer)
    _, mine = assert_resumes_as_torch(bench, path, unsharded, turned_groups)
    assert [group["lr"] for group in mine.param_groups] == [0.05, 0.01]


def states_of_another_type(bench):
    """torch casts states to the type of their parameters, but steps; the daemons do it before."""
    whole, optimizer = trained(unsharded, two_groups)
    path = saved_by_torch(bench, whole, optimizer)
    theirs = Net().bfloat16()
    its = two_groups(theirs.parameters())
    state = torch.load(path, weights_only=True)
    theirs.load_state_dict(state["model"])
    its.load_state_dict(state["optimizer"])
    ours, mine = new(torch.nn.Module.bfloat16, two_groups)
    load(bench, ours, mine, path)
    assert_same(ours, theirs, "after the load")
    assert_same_states(mine, its)
    assert_states_in_daemon_memory(mine)
    assert train(ours, mine) == train(theirs, its), "losses differ"


def a_folder_of_dcp(bench):
    result = assert_goes_on(bench, unsharded, saved_by_dcp, two_groups)
    scheduler = {"last_epoch": 7, "_last_lr": [0.5, 0.25], "range": (1, b"a")}
    assert result.extra == {"scheduler": scheduler}, result.extra
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
             "rng": torch.get_rng_state(), "epoch": 3, "odd": ODD}
    torch.save(state, path)
    ours, mine = new(unsharded, momentum)
    resumed = torch.optim.lr_scheduler.StepLR(mine, 2, 0.5)
    result = load(bench, ours, mine, path, extra={"lr_scheduler": resumed})
    assert resumed.state_dict() == scheduler.state_dict()
    assert mine.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.025
    assert torch.equal(result.extra["rng"], state["rng"]) and result.extra["epoch"] == 3
    odd = result.extra["odd"]
    assert torch.equal(odd.pop(0)["a.b"], ODD[0]["a.b"]) and odd == {key: ODD[key] for key in ODD if key != 0}, odd
    error = fails(lambda: load(bench, ours, mine, path, extra={"sampler": resumed}), "NOT_FOUND", "VALUE_NOT_FOUND",
                  "epoch, lr_scheduler, odd, rng")
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
    1: [a_file_of_torch, a_file_with_names, groups_in_another_order, states_of_another_type, a_folder_of_dcp,
        a_state_that_is_missing_is_named,
        an_optimizer_of_other_groups_or_shapes_is_refused, a_scheduler_gets_its_values,
        without_fsdp, what_a_training_with_other_processes_saved],
    2: [fsdp2_from_each_way_to_save, fsdp2_from_a_training_without_shards, a_whole_model_from_shards,
        replicas_of_ddp, stages_of_a_pipeline,
        fsdp1_with_the_parameters_of_the_model, fsdp1_with_flat_parameters,
        what_accelerate_saves, without_fsdp, the_trainer_of_transformers, a_rank_that_fails_is_named_to_the_others],
    4: [hsdp_from_dcp, fsdp2_over_tp_from_dcp, local_state_dicts_of_two_ranks],
}
