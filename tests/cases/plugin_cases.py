"""Options of accelerate's FullyShardedDataParallelPlugin, run on each rank by fsdp_worker.

For each, accelerate prepares one model that has its weights and one of memory that nobody
has written; load_into fills the second. accelerate makes no FSDP accelerator without a
GPU, so its own methods are given one that says what such a one says.
"""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType, DynamoBackend
from accelerate_cases import OnTheHost, states
from accelerate_cases import Stack as Unnamed
from fsdp1_cases import (
    assert_on_daemon_memory,
    assert_same,
    assert_trains_alike,
    flats,
    optimizer_of,
    replaced,
    train,
)
from fsdp_bench import assert_in_daemon_memory, numbers, on_meta
from spread_bench import assert_equal, fails, storage_bytes_of
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    _init_utils,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

class Stack(Unnamed):
    """Says what is tied, so that accelerate ties again what param_init_fn has made anew."""

    _tied_weights_keys = ["head.weight"]


LAYERS = {"auto_wrap_policy": "transformer_based_wrap"}


def empty(module):
    """A param_init_fn that also makes what no checkpoint holds."""
    module.to_empty(device=torch.device("cpu"), recurse=False)
    if "freq" in module._buffers:
        module.freq = torch.arange(float(module.freq.numel()))
    return module


class Fsdp1(Accelerator):
    """An accelerator with a plugin of version 1, of a gloo group."""

    def __init__(self, rank, precision="no", **plugin):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "1")
        PartialState(cpu=True)
        self.rank, self.precision, self._models = rank, precision, []
        late = {k: plugin.pop(k) for k in ("sync_module_states",) if k in plugin}
        own = FullyShardedDataParallelPlugin(fsdp_version=1, **plugin)
        for name, value in late.items():  # the plugin asks for a GPU at once
            setattr(own, name, value)
        own.param_init_fn = empty
        if precision != "no":
            own.set_mixed_precision(precision)
        self.state = SimpleNamespace(
            fsdp_plugin=own, dynamo_plugin=SimpleNamespace(backend=DynamoBackend.NO)
        )
        self.device_placement = False

    native_amp = False
    fp8_backend = None
    multi_device = False
    parallelism_config = None
    device = torch.device("cpu")
    distributed_type = DistributedType.FSDP
    is_fsdp2 = False
    is_main_process = property(lambda self: self.rank == 0)
    mixed_precision = property(lambda self: self.precision)


def with_weights(state, build):
    model = build()
    model.load_state_dict(state, strict=False)
    return model


def compare(
    bench, build=Stack, precision="no", prepare_meta=None, dtype=None, trains=True, **plugin
):
    """(the accelerator, our model, accelerate's), after a load, five steps and comparisons."""
    tied = build().tied
    state = numbers(build(), dtype)
    kept = {k: v for k, v in state.items() if not tied or k != "head.weight"}
    state["head.weight"] = state["embed.weight"] if tied else state["head.weight"]
    path = bench.save(kept)
    prepared = []
    for filled in (True, False):
        accelerator = Fsdp1(bench.rank, precision, **plugin)
        model = with_weights(state, build) if filled else on_meta(build)
        if prepare_meta is not None and not filled:
            prepare_meta(model)
        prepared.append(accelerator.prepare_model(model))
    theirs, ours = prepared
    assert not any(p.is_meta for p in ours.parameters())
    result = bench.load(ours, path)
    assert not result.missing and not result.unexpected and not result.replaced, result
    assert_same(ours, theirs, f"{plugin} after the load")
    dist.barrier()
    if bench.rank == 0:
        assert storage_bytes_of(bench, path) == sum(t.nbytes for t in kept.values())
    with torch.autocast("cpu", torch.bfloat16, enabled=precision != "no"):  # accelerate's own
        if trains:
            losses = [train(model, optimizer_of(model)) for model in prepared]
            assert losses[0] == losses[1], f"{plugin}: {losses}"
            assert_same(ours, theirs, f"{plugin} after training")
        with torch.no_grad():
            assert torch.equal(ours(torch.arange(4)), theirs(torch.arange(4)))
    return accelerator, ours, theirs


def every_sharding_strategy(bench):
    for strategy in ShardingStrategy:
        for use_orig_params in (False, True):
            _, ours, _ = compare(
                bench,
                sharding_strategy=strategy.name,
                use_orig_params=use_orig_params,
                **LAYERS,
            )
            assert_on_daemon_memory(ours)


def every_wrap_policy(bench):
    for policy, units in (
        ({"auto_wrap_policy": "no_wrap"}, 1),
        ({"auto_wrap_policy": "transformer_based_wrap"}, 3),
        ({**LAYERS, "transformer_cls_names_to_wrap": ["Linear"]}, None),
        ({"auto_wrap_policy": "size_based_wrap", "min_num_params": 100}, None),
        ({"auto_wrap_policy": "size_based_wrap", "min_num_params": 0}, 1),
        ({"auto_wrap_policy": size_based_auto_wrap_policy, "min_num_params": 300}, None),
    ):
        build = Stack if units else lambda: Stack(tied=False)  # units share no weights
        for use_orig_params in (False, True):
            _, ours, _ = compare(bench, build, use_orig_params=use_orig_params, **policy)
            assert units is None or len(flats(ours)) == units, policy


def ignored_modules_as_a_list_or_a_pattern(bench):
    for by_pattern in (False, True):
        chosen = {}

        def build(chosen=chosen):
            model = Stack()
            chosen["module"] = model.layers[0].up
            return model

        state = states()
        path = bench.save({k: v for k, v in state.items() if k != "head.weight"})
        models = []
        for _ in range(2):
            model = build()
            ignored = r"layers\.0\.up" if by_pattern else [chosen["module"]]
            accelerator = Fsdp1(bench.rank, ignored_modules=ignored, use_orig_params=True, **LAYERS)
            if not models:
                model.load_state_dict(state)
            models.append(accelerator.prepare_model(model))
        bench.load(models[1], path)
        assert_same(models[1], models[0], "after the load")
        assert torch.equal(chosen["module"].weight, state["layers.0.up.weight"])
        assert_in_daemon_memory(chosen["module"])
        assert_trains_alike(*models)


def mixed_precision_in_every_spelling(bench):
    half = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
    policies = (
        None,
        "bf16",
        {**half, "buffer_dtype": torch.float32},
        MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    for policy in policies:
        plugin = {} if policy is None else {"mixed_precision_policy": policy}
        accelerator, ours, _ = compare(
            bench, precision="bf16", use_orig_params=True, **plugin, **LAYERS
        )
        accelerator.state.fsdp_plugin.validate_mixed_precision_policy()
        assert {flat.dtype for flat in flats(ours).values()} == {torch.float32}
        assert_on_daemon_memory(ours)


def a_model_in_low_precision_is_upcast_as_by_accelerate(bench):
    def build():
        model = Stack().to(torch.bfloat16)
        model.rotary.freq = model.rotary.freq.bfloat16()
        return model

    def whole(model):
        model.to_empty(device="cpu")
        model.tie_weights()
        model.rotary.freq = torch.arange(8.0).bfloat16()

    options = {"dtype": torch.bfloat16, "use_orig_params": True, **LAYERS}
    _, ours, _ = compare(bench, build, "bf16", prepare_meta=whole, **options)
    assert {flat.dtype for flat in flats(ours).values()} == {torch.float32}


def offloaded_parameters(bench):
    # Without a GPU nothing is pinned, and FSDP1 cannot train so.
    with replaced(torch.Tensor, "pin_memory", torch.Tensor.clone):
        compare(bench, trains=False, cpu_offload=True, use_orig_params=True, **LAYERS)


def weights_of_rank_0_alone(bench):
    """With cpu_ram_efficient_loading accelerate broadcasts what rank 0 read; here nobody does."""
    with replaced(_init_utils, "_check_module_states_for_sync_module_states", lambda _: None):
        for use_orig_params in (False, True):
            compare(
                bench,
                sync_module_states=True,
                use_orig_params=use_orig_params,
                **LAYERS,
            )


def checkpointed_activations(bench):
    for use_orig_params in (False, True):
        compare(
            bench, activation_checkpointing=True, use_orig_params=use_orig_params, **LAYERS
        )


def parts_of(value):
    """A tensor, or this rank's of a ShardedTensor."""
    shards = getattr(value, "local_shards", None)
    return [value] if shards is None else [shard.tensor for shard in shards()]


def every_type_of_state_dict_is_as_before(bench):
    for kind in StateDictType:
        accelerator, *models = compare(
            bench, state_dict_type=kind.name, use_orig_params=True, **LAYERS
        )
        plugin = accelerator.state.fsdp_plugin
        for asked in (str(kind.value), kind.name.lower(), kind):
            plugin.set_state_dict_type(asked)
            assert plugin.state_dict_type is kind
        states_of = []
        for model in models:  # offloading to the host, the plugin's, ends torch on the host itself
            with FSDP.state_dict_type(model, kind):
                states_of.append(model.state_dict())
        mine, theirs = states_of
        assert list(mine) == list(theirs)
        for name, value in mine.items():
            for a, b in zip(parts_of(value), parts_of(theirs[name])):
                assert torch.equal(a, b), f"{kind} {name}"


def version_2_takes_the_same_options(bench):
    kept = {k: v for k, v in states().items() if k != "head.weight"}
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for plugin in (
        {},
        {"reshard_after_forward": False},
        {"auto_wrap_policy": "no_wrap"},
        {"ignored_modules": r"layers\.0\.up"},
        {"ignored_modules": lambda model: [model.layers[0].up]},
        {"mixed_precision_policy": half},
        {"activation_checkpointing": True},
        {"cpu_offload": CPUOffloadPolicy(pin_memory=False)},
    ):
        models = []
        for filled in (True, False):
            model = with_weights(states(), Stack) if filled else Stack()
            options = {name: of(model) if callable(of) else of for name, of in plugin.items()}
            accelerator = OnTheHost(bench.rank, cpu_ram_efficient_loading=False, **options)
            model, _ = accelerator._prepare_fsdp2(model, optimizer_of(model))
            models.append(model)
        theirs, ours = models
        result = bench.load(ours, bench.save(kept))
        assert not result.missing and not result.unexpected, result
        assert_equal(ours, theirs, f"{plugin}")
        assert_trains_alike(ours, theirs)


def a_model_that_lacks_a_layer_class_is_refused_as_before(bench):
    accelerator = Fsdp1(bench.rank, transformer_cls_names_to_wrap=["Nowhere"], **LAYERS)
    with fails(ValueError, "Nowhere"):
        accelerator.prepare_model(Stack())


CASES = {
    2: [
        every_sharding_strategy,
        every_wrap_policy,
        ignored_modules_as_a_list_or_a_pattern,
        mixed_precision_in_every_spelling,
        a_model_in_low_precision_is_upcast_as_by_accelerate,
        offloaded_parameters,
        weights_of_rank_0_alone,
        checkpointed_activations,
        every_type_of_state_dict_is_as_before,
        version_2_takes_the_same_options,
        a_model_that_lacks_a_layer_class_is_refused_as_before,
    ],
}
