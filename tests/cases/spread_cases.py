"""Cases of fsdp2_load_full_state_dict, run on each rank by fsdp_worker.

Each case calls accelerate's function on one model and ours on another, and compares what
they did; where accelerate's fails, the reference is a model filled before it was sharded.
"""

import logging
import os

import ckptd
import ckptd.torch
import torch
import torch.distributed as dist
from fsdp_bench import Net, assert_in_daemon_memory, copied, local, numbers
from group import wait_until
from process_state import open_links
from spread_bench import (
    Bare,
    accelerates,
    assert_equal,
    assert_trains_alike,
    fails,
    filled_before,
    only_on_first,
    ours,
    settle_buffers,
    sharded,
    storage_bytes_of,
    with_adapters,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard


def a_file_is_loaded_as_accelerate_loads_its_dict(bench):
    state = numbers(Bare())
    theirs, mine = sharded(Bare), sharded(Bare)
    identities = [id(p) for p in mine.parameters()]
    accelerates(bench, theirs, only_on_first(bench, state))
    assert ours(bench, mine, bench.save(state)) is mine
    assert_equal(mine, theirs, "after the load")
    assert_in_daemon_memory(mine)
    assert [id(p) for p in mine.parameters()] == identities
    assert_trains_alike(mine, theirs)


def a_lazy_dict_is_loaded_as_accelerate_loads_its_dict(bench):
    state = numbers(Bare(), torch.bfloat16)
    path = bench.save(state)

    def build():
        return Bare().to(torch.bfloat16)

    theirs, mine = sharded(build), sharded(build)
    accelerates(bench, theirs, only_on_first(bench, state))
    given = ckptd.torch.load_state_dict(path, address=bench.address)
    assert len(given) == (len(state) if bench.rank == 0 else 0)
    ours(bench, mine, given)
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def a_dict_in_memory_is_loaded_as_accelerate_loads_it(bench):
    state = numbers(Bare())
    state["not.in.the.model"] = torch.ones(3)
    state["head.weight"] = state["head.weight"].t().contiguous().t()  # not row-major
    theirs, mine = sharded(Bare), sharded(Bare)
    accelerates(bench, theirs, only_on_first(bench, state))
    given = only_on_first(bench, state)
    before = copied(given)
    ours(bench, mine, given)
    assert_equal(mine, theirs, "after the load")
    assert_in_daemon_memory(mine)
    assert given.keys() == before.keys() and all(torch.equal(given[k], before[k]) for k in given)
    assert_trains_alike(mine, theirs)


def nothing_is_left_of_a_dict_in_memory(bench):
    mine = sharded(Bare)
    ours(bench, mine, only_on_first(bench, numbers(Bare())))
    with open("/proc/self/maps") as maps:
        assert "ckptd-state-dict" not in maps.read()
    assert not any("ckptd-state-dict" in link for link in open_links(os.getpid()))
    with ckptd.connect(bench.address) as client:
        # Handed over, not kept: nobody can ask for it again.
        wait_until(lambda: [c.state for c in client.list() if c.source.startswith("/proc/")][0] == "TAKEN", "it to be taken")


def buffers_are_loaded_where_accelerate_fails(bench):
    state = numbers(Net())
    with fails((AttributeError, ValueError)):
        accelerates(bench, sharded(Net), only_on_first(bench, state))
    dist.barrier()
    theirs, mine = filled_before(Net, state), sharded(Net)
    ours(bench, mine, bench.save(state))
    assert mine.freq.is_meta, "no checkpoint holds it, and it is its owner's to fill"
    settle_buffers(mine, theirs)
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def tied_weights_stay_tied(bench):
    def build():
        return Net(tied=True)

    state = numbers(build())
    theirs, mine = filled_before(build, {**state, "head.weight": state["embed.weight"]}), sharded(build)
    ours(bench, mine, only_on_first(bench, state))
    assert mine.head.weight is mine.embed.weight
    settle_buffers(mine, theirs)
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def what_a_dict_shares_is_apart_in_a_model_that_is_not_tied(bench):
    def build():
        return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(2)))

    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    state, mine = {"0.weight": weight, "1.weight": weight}, sharded(build)
    ours(bench, mine, state if bench.rank == 0 else {})
    assert_equal(mine, filled_before(build, state), "after the load")
    with torch.no_grad():
        local(mine[0].weight).zero_()
    assert_equal(mine[1], filled_before(build, state)[1], "after the other was written")


def adapters_and_their_frozen_base_are_loaded(bench):
    def wrap(model):
        for layer in (model.up, model.down):  # one group has one type of trainable parameters
            fully_shard(layer)
        fully_shard(model)

    state = numbers(with_adapters())
    theirs, mine = filled_before(with_adapters, state, wrap), sharded(with_adapters, wrap)
    ours(bench, mine, only_on_first(bench, state))
    settle_buffers(mine, theirs)
    assert_equal(mine, theirs, "after the load")
    assert not mine.up.base_layer.weight.requires_grad and mine.up.lora_A.weight.requires_grad
    assert_trains_alike(mine, theirs)


def integers_for_parameters_that_learn_are_refused_by_name_on_every_rank(bench):
    """As by accelerate; here nothing is touched before."""
    state, model = numbers(Bare()), sharded(Bare)
    state["odd.bias"] = state["odd.bias"].int()
    for given in (only_on_first(bench, state), bench.save(state)):
        with fails(RuntimeError, "odd.bias", "can require gradients"):
            ours(bench, model, given)
        assert all(local(p).is_meta for p in model.parameters()), "it was touched"


def a_checkpoint_of_another_type_is_cast_where_accelerate_hangs(bench):
    state = numbers(Bare(), torch.bfloat16)
    theirs = filled_before(Bare, {name: t.float() for name, t in state.items()})
    for given in (bench.save(state), only_on_first(bench, state)):
        mine = sharded(Bare)
        ours(bench, mine, given)
        assert mine.up.weight.dtype == torch.float32
        assert_equal(mine, theirs, "after the load")


def offloaded_parameters_are_loaded(bench):
    def wrap(model):
        fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))

    state = numbers(Bare())
    theirs, mine = filled_before(Bare, state, wrap), sharded(Bare, wrap)
    ours(bench, mine, bench.save(state), cpu_offload=True)
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


def storage_is_read_once(bench):
    state = numbers(Bare(400))
    path = bench.save(state)
    ours(bench, sharded(lambda: Bare(400)), path)
    size = sum(t.numel() * t.element_size() for t in state.values())
    if bench.rank == 0:
        assert storage_bytes_of(bench, path) == size


def a_name_that_is_missing_is_a_key_error_on_every_rank(bench):
    state = numbers(Bare())
    del state["odd.bias"]
    for given in (bench.save(state), only_on_first(bench, state)):
        model = sharded(Bare)
        with fails(KeyError, "odd.bias"):
            ours(bench, model, given)
        assert all(p.is_meta for p in model.parameters()), "the model was touched"
    if bench.rank == 0:  # the others of the real one would wait for ever
        with fails(KeyError, "embed.weight"):
            accelerates(bench, sharded(Bare), {})


def another_shape_is_refused_on_every_rank(bench):
    state = numbers(Bare())
    state["up.bias"] = torch.zeros(13)
    with fails(RuntimeError, "size mismatch for up.bias"):
        ours(bench, sharded(Bare), only_on_first(bench, state))


def a_rank_whose_model_differs_stops_every_rank(bench):
    def build():
        model = Bare()
        if bench.rank == 1:
            model.extra = nn.Linear(4, 4)
        return model

    with fails(RuntimeError, "extra.bias", "the same model on every rank"):
        ours(bench, sharded(build), only_on_first(bench, numbers(Bare())))


def a_rank_whose_model_has_another_type_stops_every_rank(bench):
    def build():
        return Bare().to(torch.bfloat16) if bench.rank == 1 else Bare()

    with fails(RuntimeError, "act.weight", "bfloat16", "float32"):
        ours(bench, sharded(build), only_on_first(bench, numbers(Bare())))


def a_rank_that_raises_tells_every_rank_why(bench):
    state = numbers(Bare())
    if bench.rank == 0:
        state["up.weight"] = torch.zeros(12, 8, dtype=torch.complex128)
    with fails(ckptd.Unimplemented, "up.weight", "complex128"):
        ours(bench, sharded(Bare), only_on_first(bench, state))


def a_rank_whose_model_cannot_take_it_leaves_every_model_as_it_was(bench):
    class Packed(nn.Parameter):
        pass

    model = Bare()
    if bench.rank == 1:
        model.act.weight = Packed(model.act.weight.data)
    fully_shard(model, ignored_params={model.act.weight})
    before = [local(p).detach().clone() for p in model.parameters()]
    with fails(ckptd.FailedPrecondition, "act.weight", "TENSOR_SUBCLASS"):
        ours(bench, model, only_on_first(bench, numbers(Bare())), allow_rank0_values=True)
    assert all(torch.equal(local(p), b) for p, b in zip(model.parameters(), before))


def in_the_middle_of_a_step_every_rank_is_told_who(bench):
    state, model, seen = numbers(Bare()), sharded(Bare), []
    ours(bench, model, only_on_first(bench, state))

    def load_again(*_):
        other = model if bench.rank == 1 else sharded(Bare)
        with fails(ckptd.FailedPrecondition, "inside a forward", "" if bench.rank == 1 else "rank 1"):
            ours(bench, other, only_on_first(bench, state))
        seen.append(True)

    model.act.register_forward_hook(load_again)
    model(torch.arange(4)).sum().backward()
    assert seen == [True]


def a_rank_that_does_not_come_is_named(bench):
    last = bench.world - 1
    if bench.rank != last:
        with fails(ckptd.DeadlineExceeded, f"rank {last}", "same call"):
            ours(bench, sharded(Bare), only_on_first(bench, numbers(Bare())), timeout=5)
    dist.barrier()
    if bench.rank == last:  # it comes too late, and hears what the others were told
        with fails(ckptd.DeadlineExceeded, f"rank {last}"):
            ours(bench, sharded(Bare), {}, timeout=5)


def without_a_daemon_every_rank_is_told_how_to_start_one(bench):
    address, says = bench.address, "rank 1: "
    if bench.rank == 1:
        address = says = "/nowhere/ckptd.sock"
    with fails(ckptd.Unavailable, "ckptd launch", says):
        ours(bench, sharded(Bare), only_on_first(bench, numbers(Bare())), address=address)


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def the_original_is_called_only_where_that_was_allowed(bench):
    state, said = numbers(Bare()), Said()
    logging.getLogger("ckptd").addHandler(said)
    theirs = sharded(Bare)
    accelerates(bench, theirs, only_on_first(bench, state))
    for _ in range(2):
        mine = sharded(Bare)
        ours(bench, mine, only_on_first(bench, state), address="/nowhere/ckptd.sock", fallback="native")
        assert_equal(mine, theirs, "by the original")
    assert sum("original function" in line for line in said.lines) == 1, said.lines


def a_path_is_read_for_the_original_where_that_was_allowed(bench):
    state, theirs = numbers(Bare()), sharded(Bare)
    accelerates(bench, theirs, only_on_first(bench, state))
    wider = {name: t.double() for name, t in state.items()}
    for path in (bench.save(state), bench.save_shards(state), bench.save(wider)):
        mine = sharded(Bare)
        ours(bench, mine, path, address="/nowhere/ckptd.sock", fallback="native")
        assert_equal(mine, theirs, "by the original")


def a_model_over_two_dimensions_is_loaded(bench):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def wrap(model):
        fully_shard(model, mesh=mesh)

    state = numbers(Bare())
    theirs, mine = filled_before(Bare, state, wrap), sharded(Bare, wrap)
    ours(bench, mine, only_on_first(bench, state))
    assert_equal(mine, theirs, "after the load")
    assert_trains_alike(mine, theirs)


FULL = [
    a_file_is_loaded_as_accelerate_loads_its_dict,
    a_lazy_dict_is_loaded_as_accelerate_loads_its_dict,
    a_dict_in_memory_is_loaded_as_accelerate_loads_it,
    nothing_is_left_of_a_dict_in_memory,
    buffers_are_loaded_where_accelerate_fails,
    tied_weights_stay_tied,
    what_a_dict_shares_is_apart_in_a_model_that_is_not_tied,
    adapters_and_their_frozen_base_are_loaded,
    a_checkpoint_of_another_type_is_cast_where_accelerate_hangs,
    integers_for_parameters_that_learn_are_refused_by_name_on_every_rank,
    offloaded_parameters_are_loaded,
    storage_is_read_once,
    a_name_that_is_missing_is_a_key_error_on_every_rank,
    another_shape_is_refused_on_every_rank,
    a_rank_whose_model_differs_stops_every_rank,
    a_rank_whose_model_has_another_type_stops_every_rank,
    a_rank_that_raises_tells_every_rank_why,
    a_rank_whose_model_cannot_take_it_leaves_every_model_as_it_was,
    in_the_middle_of_a_step_every_rank_is_told_who,
    a_rank_that_does_not_come_is_named,
    without_a_daemon_every_rank_is_told_how_to_start_one,
    the_original_is_called_only_where_that_was_allowed,
    a_path_is_read_for_the_original_where_that_was_allowed,
]
CASES = {2: FULL, 4: [*FULL[:3], a_model_over_two_dimensions_is_loaded, a_rank_that_does_not_come_is_named]}
