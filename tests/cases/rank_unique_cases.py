"""Cases of tensors of which each rank may have its own: refused by name, in every function that spreads rank 0's."""

import ckptd
import ckptd.accelerate
import ckptd.torch
import torch
from fsdp_bench import copied, local, numbers, on_meta
from spread_bench import BROADCAST, Bare, accelerates, assert_same_bytes, fails, only_on_first
from torch import nn
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    """Of this rank alone, under the names that all ranks have."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.zeros(2, 8, 8))
        self.register_buffer("load", torch.zeros(2))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.norm, self.experts = nn.Linear(8, 2), nn.BatchNorm1d(8), Experts()


def mixture(meta=False):
    model = on_meta(Mixture) if meta else Mixture()
    fully_shard(model, ignored_params={model.experts.up})
    return model


def the_functions(bench, path):
    """name -> (model, state of rank 0, options) -> loaded."""
    near, first = {"address": bench.address, "timeout": 60}, bench.rank == 0

    def full(model, **more):
        ckptd.torch.fsdp2_load_full_state_dict(None, model, path, **near, **more)

    def of_torch(model, **more):
        ckptd.torch.set_model_state_dict(model, path if first else {}, options=BROADCAST, **near, **more)

    def dist_module(model, **more):
        ckptd.torch.DistModule(model, **near, **more).load_state_dict(path)

    def checkpoint(model, **more):
        ckptd.accelerate.load_checkpoint_in_model(model, path, strict=True, broadcast_from_rank0=True, **near, **more)

    return full, of_torch, dist_module, checkpoint


def experts_that_fsdp_ignores_are_refused_by_every_function(bench):
    """Whatever they hold: of one seed, as here, they are equal on all ranks; on meta they hold nothing."""
    state = numbers(Mixture())
    path = bench.save(copied(state))
    for load in the_functions(bench, path):
        for model in (mixture(), mixture(meta=True)):
            with fails(ckptd.FailedPrecondition, "experts.load, experts.up: FSDP or", "allow_rank0_values=True"):
                load(model)
            assert local(model.gate.weight).is_meta or not local(model.gate.weight).eq(0).all(), "it was touched"
    with fails(AttributeError, "device_mesh"):  # as the original one fails
        accelerates(bench, mixture(), only_on_first(bench, state))


def rank_0_s_values_are_every_rank_s_where_that_was_allowed(bench):
    state = numbers(Mixture())
    path, theirs = bench.save(copied(state)), mixture()
    set_model_state_dict(theirs, only_on_first(bench, state), options=BROADCAST)
    for load in the_functions(bench, path):
        model = mixture()
        load(model, allow_rank0_values=True)
        for name, tensor in model.state_dict().items():
            assert_same_bytes(local(tensor), local(theirs.state_dict()[name]), name)


def experts_that_ddp_ignores_are_refused(bench):
    inner = Mixture()
    inner._ddp_params_and_buffers_to_ignore = ["experts.up"]
    state = numbers(Mixture())
    for load in the_functions(bench, bench.save(copied(state)))[1:2]:
        model = DistributedDataParallel(inner)
        with fails(ckptd.FailedPrecondition, "experts.load, experts.up: FSDP or"):
            load(model)
        load(model, allow_rank0_values=True)
        assert torch.equal(inner.experts.up, state["experts.up"])


def experts_that_are_sharded_over_fewer_ranks_than_the_rest_are_refused(bench):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "experts"))
    model = Mixture()
    fully_shard(model.experts, mesh=mesh["shard"])
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    state = numbers(Mixture())
    for load in the_functions(bench, bench.save(copied(state))):
        with fails(ckptd.FailedPrecondition, ": experts.up: FSDP or"):
            load(model)


def what_all_ranks_have_in_common_is_no_rank_s_own(bench):
    """Parameters outside of all that is sharded, buffers, and norms beside tensor parallelism."""
    state = numbers(Bare())
    path = bench.save(copied(state))
    for load in the_functions(bench, path):
        model = Bare()
        fully_shard(model.up)
        load(model)
        assert torch.equal(model.head.weight, state["head.weight"])
        if bench.world < 4:
            continue
        mesh, model = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), Bare()
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        load(model)
        assert_same_bytes(model.odd.weight.full_tensor(), state["odd.weight"], "odd.weight")


BOTH = [
    experts_that_fsdp_ignores_are_refused_by_every_function,
    what_all_ranks_have_in_common_is_no_rank_s_own,
]
CASES = {
    2: [*BOTH, rank_0_s_values_are_every_rank_s_where_that_was_allowed, experts_that_ddp_ignores_are_refused],
    4: [BOTH[1], experts_that_are_sharded_over_fewer_ranks_than_the_rest_are_refused],
}
