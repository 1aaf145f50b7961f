"""Demands of torch's own tests on set_model_state_dict and, in torch_file_scenarios, on files; in our words.

Torch ships the models and helpers of its tests, but not the tests. Scenarios know nothing of
ckptd: each runs on every rank twice, with torch alone and under ckptd.torch.patch().
"""

import contextlib
import functools

import ckptd.torch
import torch
import torch_file_scenarios
from spread_bench import fails
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.checkpoint import state_dict as torchs
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_dist_composable import CompositeParamModel, UnitModule
from torch.testing._internal.distributed.common_state_dict import (
    FusionEmbedding,
    FusionEmbeddingWithHook,
    FusionEmbeddingWithModifier,
)

WORLD = 2
CPU = torch.device("cpu")
FROM_FIRST = {"full_state_dict": True, "broadcast_from_rank0": True}


def composite():
    return CompositeParamModel(CPU)


def state_of(build, seed=5):
    """Random values for all that a model saves, the same on every rank."""
    torch.manual_seed(seed)
    state = build().state_dict()
    return {name: torch.rand_like(t) if torch.is_tensor(t) else t for name, t in state.items()}


def set_from_first(bench, model, state, **options):
    given = {k: v.clone() if torch.is_tensor(v) else v for k, v in state.items()} if bench.rank == 0 else {}
    return torchs.set_model_state_dict(model, given, options=StateDictOptions(**FROM_FIRST, **options))


def whole(model):
    return torchs.get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def assert_holds(model, state):
    found = whole(model)
    assert found.keys() == state.keys(), found.keys() ^ state.keys()
    for name, value in state.items():
        assert torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value, name


# -- ways to wrap a model ------------------------------------------------------


def by_fsdp2(model, **options):
    for unit in (model.u1, model.u2):
        fully_shard(unit, **options)
    return fully_shard(model, **options)


def by_fsdp1(model, **options):
    policy = ModuleWrapPolicy({UnitModule})
    return FullyShardedDataParallel(model, device_id=CPU, auto_wrap_policy=policy, **options)


def by_fsdp1_as_one(model):
    return FullyShardedDataParallel(model, device_id=CPU, use_orig_params=True)


def by_hybrid_fsdp1(model):
    mesh = init_device_mesh("cpu", (1, WORLD))
    strategy = ShardingStrategy.HYBRID_SHARD
    return by_fsdp1(model, device_mesh=mesh, use_orig_params=True, sharding_strategy=strategy)


def by_tensors(model):
    plan = {"l": ColwiseParallel(), "u1.l1": ColwiseParallel(), "u1.l2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (WORLD,)), plan)


def checkpointed(wrap):
    def wrapped(model):
        apply_activation_checkpointing(model)
        return wrap(model)

    return wrapped


WRAPS = {
    "nothing": lambda model: model,
    "fsdp2": by_fsdp2,
    "fsdp2_as_one": fully_shard,
    "fsdp2_offloaded": functools.partial(by_fsdp2, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "fsdp1": functools.partial(by_fsdp1, use_orig_params=True),
    "fsdp1_flat": functools.partial(by_fsdp1, use_orig_params=False),
    "hybrid_fsdp1": by_hybrid_fsdp1,
    "ddp": DistributedDataParallel,
    "replicate": replicate,
    "tensor_parallel": by_tensors,
    "compile": torch.compile,
    "compile_over_fsdp2": lambda model: torch.compile(by_fsdp2(model)),
    "ddp_over_checkpoints": checkpointed(DistributedDataParallel),
    "fsdp1_over_checkpoints": checkpointed(by_fsdp1_as_one),
    "fsdp2_over_checkpoints": checkpointed(fully_shard),
}


def rank_0_s_state_replaces_any_other(wrap, bench):
    torch.manual_seed(bench.rank)
    model = wrap(composite())
    state = state_of(composite)
    set_from_first(bench, model, state)
    assert_holds(model, state)


def a_missing_name_is_an_error_on_every_rank(bench):
    state = state_of(composite)
    del state["u1.l1.weight"]
    # Not those that put a prefix before names: of them torch has rank 0 fail alone, and the others wait.
    for name in ("nothing", "fsdp2", "fsdp1", "fsdp1_flat", "replicate", "tensor_parallel"):
        with fails(RuntimeError, "Missing key", "u1.l1.weight"):
            set_from_first(bench, WRAPS[name](composite()), state)


# -- names ---------------------------------------------------------------------


def a_lenient_load_says_what_was_left_out(bench):
    state = {**state_of(composite), "abc": torch.zeros(10)}
    del state["l.bias"]
    for wrap in (fully_shard, DistributedDataParallel):
        result = set_from_first(bench, wrap(composite()), state, strict=False)
        assert result.unexpected_keys == (["abc"] if bench.rank == 0 else []), result


def one_part_of_a_model_is_set(bench):
    model = fully_shard(composite())
    before, state = whole(model), state_of(composite)
    part = {name: t for name, t in state.items() if name.startswith("u1.")}
    set_from_first(bench, model, part, strict=False)
    assert_holds(model, {**before, **part})


def one_part_of_a_model_is_set_by_its_module(bench):
    model = fully_shard(composite())
    before, state = whole(model), state_of(composite)
    part = {name[3:]: t for name, t in state.items() if name.startswith("u1.")}
    given = {model.u1: part} if bench.rank == 0 else {}
    options = StateDictOptions(**FROM_FIRST, strict=False)
    torchs.set_model_state_dict(model, given, options=options)
    assert_holds(model, {**before, **{f"u1.{name}": t for name, t in part.items()}})


def names_that_hooks_change_are_those_of_the_state_dict(bench):
    state = state_of(lambda: FusionEmbeddingWithHook(4, 6, 4))
    assert "weight" in state and "embedding.weight" not in state
    for wrap in (lambda model: model, fully_shard):
        with fails(RuntimeError):
            set_from_first(bench, wrap(FusionEmbedding(4, 6, 4)), state)
        model = wrap(FusionEmbeddingWithModifier(4, 6, 4))
        set_from_first(bench, model, state)
        assert_holds(model, state)


# -- what is in a state dict ---------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(10, 6), nn.Linear(6, 10)
        self.decoder.weight = self.embedding.weight


def shared_weights_are_under_both_names(bench):
    state = state_of(Tied)
    state["decoder.weight"] = state["embedding.weight"]
    for wrap in (fully_shard, by_fsdp1_as_one, DistributedDataParallel):
        model = wrap(Tied())
        set_from_first(bench, model, state)
        assert_holds(model, state)


class WithExtraState(UnitModule):
    def get_extra_state(self):
        return getattr(self, "said", "nothing")

    def set_extra_state(self, value):
        self.said = value


def extra_state_and_buffers_that_are_not_saved(bench):
    def build():
        model = nn.Sequential(WithExtraState(CPU), nn.Linear(100, 3))
        model.register_buffer("unsaved", torch.full((3,), 2.0), persistent=False)
        return model

    state = {**state_of(build), "0._extra_state": "of rank 0"}
    for wrap in (lambda model: model, fully_shard, DistributedDataParallel):
        model = wrap(build())
        set_from_first(bench, model, state)
        assert_holds(model, state)
        inner = model.module if wrap is DistributedDataParallel else model
        assert inner[0].said == "of rank 0" and torch.equal(inner.unsaved, torch.full((3,), 2.0))


class Kinds(nn.Module):
    """A buffer of each type that torch can send, and the smallest shapes."""

    TYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float64, torch.complex64)

    def __init__(self):
        super().__init__()
        for dtype in self.TYPES:
            self.register_buffer(f"of_{str(dtype)[6:]}", torch.zeros(5, 3).to(dtype))
        self.scale, self.none = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(0, 4))


def values_of_every_kind(bench):
    state = Kinds().state_dict()
    for name, value in state.items():
        state[name] = torch.arange(value.numel()).remainder(7).reshape(value.shape).to(value.dtype)
    for wrap in (WRAPS["nothing"], DistributedDataParallel):
        model = wrap(Kinds())
        set_from_first(bench, model, state)
        assert_holds(model, state)


def frozen_parameters_are_set_and_stay_frozen(bench):
    for ignored in (False, True):
        model = composite()
        model.u1.requires_grad_(False)
        by_fsdp2(model)
        state = state_of(composite)
        set_from_first(bench, model, state, ignore_frozen_params=ignored)
        assert_holds(model, state)
        assert not model.u1.l1.weight.requires_grad and model.u2.l1.weight.requires_grad


# -- devices -------------------------------------------------------------------


def layers(device="cpu", count=2):
    with torch.device(device):
        return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(count)))


def a_model_on_meta_is_filled_on_every_rank(bench):
    state = state_of(layers)
    for options in ({"full_state_dict": True}, FROM_FIRST, {**FROM_FIRST, "cpu_offload": True}):
        model = layers("meta")
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        torchs.set_model_state_dict(
            model, dict(state), options=StateDictOptions(**options, strict=False))
        assert_holds(model, state)


def a_part_on_meta_goes_where_the_rest_is(bench):
    state = state_of(layers)
    model = nn.Sequential(layers("meta", 1)[0], layers("cpu", 1)[0])
    set_from_first(bench, model, state, strict=False)
    assert {p.device for p in model.parameters()} == {CPU}
    assert_holds(model, state)


def a_model_and_its_optimizer_are_set_together(bench):
    model = by_fsdp2(composite())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(8, 100)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    options = StateDictOptions(**FROM_FIRST)
    trained = torchs.get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    state, moments = ({}, {}) if bench.rank else trained
    set_from_first(bench, model, state_of(composite))
    torchs.set_model_state_dict(model, dict(state), options=options)
    torchs.set_optimizer_state_dict(model, optimizer, moments, options=options)
    assert_holds(model, trained[0])


# -- twice ---------------------------------------------------------------------


def named(name, scenario):
    scenario.__name__ = name
    return scenario


SCENARIOS = [
    *(named(f"rank_0_s_state_replaces_any_other_by_{name}",
            functools.partial(rank_0_s_state_replaces_any_other, wrap)) for name, wrap in WRAPS.items()),
    a_missing_name_is_an_error_on_every_rank,
    a_lenient_load_says_what_was_left_out,
    one_part_of_a_model_is_set,
    one_part_of_a_model_is_set_by_its_module,
    names_that_hooks_change_are_those_of_the_state_dict,
    shared_weights_are_under_both_names,
    extra_state_and_buffers_that_are_not_saved,
    values_of_every_kind,
    frozen_parameters_are_set_and_stay_frozen,
    a_model_on_meta_is_filled_on_every_rank,
    a_part_on_meta_goes_where_the_rest_is,
    a_model_and_its_optimizer_are_set_together,
    *torch_file_scenarios.SCENARIOS,
]


def natively(bench):
    bench.files = torch_file_scenarios.ByTorch(bench)
    return contextlib.nullcontext()


def with_ckptd(bench):
    bench.files = torch_file_scenarios.ByCkptd(bench)
    return ckptd.torch.patch(address=bench.address)


WAYS = {"natively": natively, "with ckptd": with_ckptd}


def case_name(scenario, way):
    return f"{scenario.__name__}, {way}"


def case(scenario, way):
    def run(bench):
        with WAYS[way](bench):
            scenario(bench)

    return named(case_name(scenario, way), run)


CASES = {WORLD: [case(scenario, way) for scenario in SCENARIOS for way in WAYS]}
