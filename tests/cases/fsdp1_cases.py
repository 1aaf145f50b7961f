"""Cases of load_into for models that FSDP1 has wrapped, run on each rank by fsdp_worker.

Each builds a model twice: once filled by torch's own FULL_STATE_DICT load, once on
memory that nobody has written and filled by load_into. Flat parameters are compared
byte for byte, padding included.
"""

import contextlib

import ckptd
import ckptd.torch
import document_cases
import torch
import torch.distributed as dist
from fsdp_bench import Net, assert_in_daemon_memory, daemon_ranges, numbers, on_meta
from spread_bench import BROADCAST, storage_bytes_of
from torch import nn
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import _init_utils

CPU = torch.device("cpu")


def of_layers(module, recurse, **_):
    """A wrap policy: linear layers and the embedding are units of their own."""
    return recurse or type(module) in (nn.Linear, nn.Embedding)


def empty(module):
    """A param_init_fn: memory for what is on meta, and what no checkpoint holds."""
    module.to_empty(device=CPU, recurse=False)
    if "freq" in module._buffers:
        module.freq = torch.arange(module.freq.numel(), dtype=torch.float32)


def built(build):
    """On meta, but for tied weights, which param_init_fn would untie."""
    model = on_meta(build)
    return build() if model.tied else model


def wrapped(model, **options):
    return FSDP(model, device_id=CPU, **options)


def flats(model):
    """unit -> its flat parameter, by the order of units."""
    units = [unit for unit in FSDP.fsdp_modules(model) if unit._handle is not None]
    return {number: unit._handle.flat_param for number, unit in enumerate(units)}


def assert_same(ours, theirs, what):
    mine, others = flats(ours), flats(theirs)
    assert mine and mine.keys() == others.keys()
    for number, flat in mine.items():
        other = others[number]
        assert flat.dtype == other.dtype and flat.shape == other.shape, f"{what}: {number}"
        assert flat.requires_grad == other.requires_grad
        bytes_of = [t.detach().view(torch.uint8) for t in (flat, other)]
        assert torch.equal(*bytes_of), f"{what}: {flat} {other}"
    names = [[n for n, _ in m.named_parameters()] for m in (ours, theirs)]
    assert names[0] == names[1], what
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters()):
        assert a.shape == b.shape and torch.equal(a, b), f"{what}: {name}"
    for (name, a), (_, b) in zip(ours.named_buffers(), theirs.named_buffers()):
        # A buffer takes its type of a mixed precision at the first forward.
        assert torch.equal(a.to(b.dtype), b), f"{what}: {name}"


def assert_on_daemon_memory(model):
    ranges = daemon_ranges()
    for number, flat in flats(model).items():
        pointer = flat.data_ptr()
        assert any(low <= pointer < high for low, high in ranges), f"flat parameter {number}"
        local_shard = getattr(flat, "_local_shard", flat)
        assert local_shard.data_ptr() == pointer


def load_natively(model, state):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(state)


def train(model, optimizer, steps=5):
    losses = []
    for step in range(steps):
        tokens = torch.arange(6).add(step).remainder(11)
        loss = model(tokens).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def optimizer_of(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def assert_trains_alike(one, other):
    losses = [train(model, optimizer_of(model)) for model in (one, other)]
    assert losses[0] == losses[1], f"losses differ: {losses}"


def compare(bench, build=Net, dtype=None, **options):
    """Load, compare, train, compare, load again, compare. Returns the model and the result."""
    state = numbers(build(), dtype)
    full = dict(state)
    if getattr(build(), "tied", False):
        full["head.weight"] = full["embed.weight"]
    theirs = wrapped(build(), **options)
    load_natively(theirs, full)
    ours = wrapped(built(build), param_init_fn=empty, **options)
    held = {name: id(param) for name, param in ours.named_parameters()}
    trainer, reference = optimizer_of(ours), optimizer_of(theirs)
    path = bench.save(state)
    result = bench.load(ours, path)
    assert result.copied == {} and result.replaced == {} and result.made == [], result
    assert result.missing == [] and result.unexpected == [], result
    assert {name: id(param) for name, param in ours.named_parameters()} == held
    assert_same(ours, theirs, "after the load")
    assert_on_daemon_memory(ours)
    dist.barrier()
    if bench.rank == 0:  # a full copy on each rank would be more
        assert storage_bytes_of(bench, path) == sum(t.nbytes for t in state.values())
    assert train(ours, trainer) == train(theirs, reference), "losses differ"
    assert_same(ours, theirs, "after training")
    assert_on_daemon_memory(ours)
    again = bench.load(ours, path)
    assert again.resident and again.copied == {}
    load_natively(theirs, full)
    assert_same(ours, theirs, "after the second load")
    assert train(ours, trainer, 2) == train(theirs, reference, 2), "losses differ afterwards"
    return ours, result


def with_and_without_original_parameters(bench, **options):
    for use_orig_params in (False, True):
        compare(bench, use_orig_params=use_orig_params, **options)


def each_layer_is_a_unit(bench):
    with_and_without_original_parameters(bench, auto_wrap_policy=of_layers)


def the_whole_model_is_one_unit(bench):
    with_and_without_original_parameters(bench)


def gradients_alone_are_sharded(bench):
    strategy = ShardingStrategy.SHARD_GRAD_OP
    with_and_without_original_parameters(
        bench, auto_wrap_policy=of_layers, sharding_strategy=strategy
    )


def nothing_is_sharded(bench):
    strategy = ShardingStrategy.NO_SHARD
    with_and_without_original_parameters(
        bench, auto_wrap_policy=of_layers, sharding_strategy=strategy
    )


def groups_of(world, size):
    """(shard group, replica group) of this rank, for shard groups of `size` ranks."""
    shards = [dist.new_group(list(range(r, r + size))) for r in range(0, world, size)]
    replicas = [dist.new_group(list(range(r, world, size))) for r in range(size)]
    return shards[dist.get_rank() // size], replicas[dist.get_rank() % size]


def replicas_of_shards(bench):
    for strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        with_and_without_original_parameters(
            bench,
            auto_wrap_policy=of_layers,
            sharding_strategy=strategy,
            process_group=groups_of(bench.world, 2),
        )


def tied_weights_are_one_member(bench):
    for use_orig_params in (False, True):
        ours, _ = compare(bench, build=lambda: Net(tied=True), use_orig_params=use_orig_params)
        with FSDP.summon_full_params(ours):
            assert ours.head.weight is ours.embed.weight
        state = numbers(Net(tied=True))
        state["head.weight"] = state.pop("embed.weight")
        bench.load(ours, bench.save(state))
        with FSDP.summon_full_params(ours):
            assert torch.equal(ours.embed.weight, state["head.weight"])


def a_bf16_checkpoint_is_cast(bench):
    with_and_without_original_parameters(bench, auto_wrap_policy=of_layers, dtype=torch.bfloat16)


def mixed_precision_keeps_the_master_in_fp32(bench):
    policy = MixedPrecision(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        buffer_dtype=torch.float32,
        cast_forward_inputs=True,
    )
    for use_orig_params in (False, True):
        ours, _ = compare(bench, use_orig_params=use_orig_params, mixed_precision=policy)
        assert {flat.dtype for flat in flats(ours).values()} == {torch.float32}


def ignored_modules_stay_whole(bench):
    for use_orig_params in (False, True):
        state = numbers(Net())
        models = []
        for build in (Net, lambda: on_meta(Net)):
            model = build()
            model.up.to_empty(device=CPU) if model.up.weight.is_meta else None
            models.append(
                wrapped(
                    model,
                    ignored_modules=[model.up],
                    use_orig_params=use_orig_params,
                    auto_wrap_policy=of_layers,
                    param_init_fn=empty,
                )
            )
        load_natively(models[0], state)
        bench.load(models[1], bench.save(state))
        assert_same(models[1], models[0], "after the load")
        assert torch.equal(models[1].up.weight, state["up.weight"])
        assert_in_daemon_memory(models[1].up)
        assert_trains_alike(*models)


def frozen_parameters_stay_frozen(bench):
    def build():
        model = Net()
        model.up.requires_grad_(False)
        model.embed.requires_grad_(False)
        return model

    with_and_without_original_parameters(bench, build=build, auto_wrap_policy=of_layers)
    compare(bench, build=build, use_orig_params=True)


def units_within_units(bench):
    def build():
        model = Net()
        model.up = FSDP(model.up, device_id=CPU, use_orig_params=True)
        return model

    state, models = numbers(Net()), []
    for _ in range(2):
        models.append(wrapped(build(), use_orig_params=True))
    load_natively(models[0], state)
    bench.load(models[1], bench.save(state))
    assert_same(models[1], models[0], "after the load")
    assert len(flats(models[1])) == 2


def checkpointed_activations_keep_their_names(bench):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    state, models = numbers(Net()), []
    for _ in range(2):
        models.append(wrapped(Net(), use_orig_params=True, auto_wrap_policy=of_layers))
        apply_activation_checkpointing(models[-1], check_fn=lambda m: m is models[-1].down)
    load_natively(models[0], state)
    bench.load(models[1], bench.save(state))
    assert_same(models[1], models[0], "after the load")
    assert_trains_alike(*models)


@contextlib.contextmanager
def replaced(holder, name, value):
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def states_synchronised_from_rank_0_are_the_same(bench):
    """Torch broadcasts on GPUs alone; its refusal of the host is left out here."""
    state = numbers(Net())
    model = Net()
    if bench.rank == 0:
        model.load_state_dict(state, strict=False)
    unchecked = (_init_utils, "_check_module_states_for_sync_module_states", lambda _: None)
    options = {"auto_wrap_policy": of_layers, "use_orig_params": True}
    with replaced(*unchecked):
        theirs = wrapped(model, sync_module_states=True, **options)
        # Synchronised for nothing, then filled: the option changes no byte of ours.
        ours = wrapped(on_meta(Net), sync_module_states=True, param_init_fn=empty, **options)
    bench.load(ours, bench.save(state))
    assert_same(ours, theirs, "after the load")
    assert_trains_alike(ours, theirs)


def a_state_of_rank_0_is_spread(bench):
    for use_orig_params in (False, True):
        options = {"use_orig_params": use_orig_params, "auto_wrap_policy": of_layers}
        state = numbers(Net())
        theirs = wrapped(Net(), **options)
        load_natively(theirs, state)
        path = bench.save(state)
        looked_up = ckptd.torch.load_state_dict(path, address=bench.address)
        some = [looked_up[name] for name in list(looked_up)[:1]]  # and some of its flat parameter are not
        assert len(some) == (bench.rank == 0)
        for given in (path, state, looked_up):
            ours = wrapped(on_meta(Net), param_init_fn=empty, **options)
            keys = ckptd.torch.set_model_state_dict(
                ours, given if bench.rank == 0 else {}, options=BROADCAST, address=bench.address
            )
            assert not keys.missing_keys and not keys.unexpected_keys
            assert_same(ours, theirs, "after it was spread")
            assert_on_daemon_memory(ours)
        assert_trains_alike(ours, theirs)


def the_documents_examples_fill_models_alike(bench):
    pairs = document_cases.pairs("fsdp1.md")
    assert len(pairs) == 1, "examples have come or gone"
    path = bench.save(numbers(document_cases.Model()))
    for title, *examples in pairs:
        models = []
        for code in examples:
            names = {"Model": document_cases.Model, "path": path, "device": CPU, "torch": torch}
            with document_cases.daemon_of(bench):
                exec(code, names)  # our own text
            models.append(names["model"])
        assert_same(models[1], models[0], title)
        assert_trains_alike(*models)


def digests_are_those_of_the_bytes(bench):
    """Of every member, on every rank, after a load that nobody has written to."""
    for use_orig_params in (False, True):
        options = {"use_orig_params": use_orig_params, "auto_wrap_policy": of_layers}
        model = wrapped(Net().requires_grad_(False), **options)
        result = bench.load(model, bench.save(numbers(Net())), mode="shared")
        with ckptd.connect(bench.address) as client:
            found = client.verify(result.checkpoint)
        assert found.tensor_count == result.tensor_count and not found.mismatched
        theirs = wrapped(Net(), **options)
        load_natively(theirs, numbers(Net()))
        # The memory is read-only: what lies between members stays zero.
        for a, b in zip(flats(model).values(), flats(theirs).values()):
            assert torch.equal(a, b) or use_orig_params
        with torch.no_grad():
            assert torch.equal(*(m(torch.arange(4)) for m in (model, theirs)))


# Those that load once: memory of GPUs is given away then.
ANY_WAY = [
    ignored_modules_stay_whole,
    units_within_units,
    a_state_of_rank_0_is_spread,
    digests_are_those_of_the_bytes,
]
COMMON = [
    each_layer_is_a_unit,
    the_whole_model_is_one_unit,
    gradients_alone_are_sharded,
    nothing_is_sharded,
]
CASES = {
    2: [
        *COMMON,
        tied_weights_are_one_member,
        a_bf16_checkpoint_is_cast,
        mixed_precision_keeps_the_master_in_fp32,
        ignored_modules_stay_whole,
        frozen_parameters_stay_frozen,
        units_within_units,
        checkpointed_activations_keep_their_names,
        states_synchronised_from_rank_0_are_the_same,
        a_state_of_rank_0_is_spread,
        the_documents_examples_fill_models_alike,
        digests_are_those_of_the_bytes,
    ],
    4: [*COMMON, replicas_of_shards],
}
