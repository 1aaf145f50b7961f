"""Cases of load_into for models that FSDP1 has wrapped: what it refuses, and states between steps."""

import ckptd
import ckptd.torch
import torch
from fsdp1_cases import (
    assert_same,
    assert_trains_alike,
    empty,
    flats,
    load_natively,
    of_layers,
    replaced,
    wrapped,
)
from fsdp_bench import Net, numbers, on_meta
from spread_bench import BROADCAST, fails
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy


def loading_inside_a_forward_is_refused(bench):
    model = wrapped(Net(), use_orig_params=True)
    path = bench.save(numbers(Net()))
    hook = model.norm.register_forward_hook(lambda *_: bench.load(model, path))
    with fails(ckptd.FailedPrecondition, "FORWARD"):
        model(torch.arange(4))
    hook.remove()


def a_missing_member_is_an_error_that_names_it(bench):
    model = wrapped(Net(), use_orig_params=True)
    before = [flat.clone() for flat in flats(model).values()]
    state = numbers(Net())
    del state["odd.bias"]
    path = bench.save(state)
    for strict, kind in ((True, ckptd.NotFound), (False, ckptd.FailedPrecondition)):
        with fails(kind, "odd.bias"):
            bench.load(model, path, strict=strict)
    assert all(torch.equal(a, b) for a, b in zip(flats(model).values(), before))


def part_of_a_model_is_refused(bench):
    model = wrapped(Net(), use_orig_params=True)
    with fails(ckptd.FailedPrecondition, "whole model"):
        bench.load(model.up, bench.save(numbers(nn.Linear(8, 12))))


def an_unknown_torch_is_told(bench):
    model = wrapped(Net(), use_orig_params=True)
    numels = model._handle.flat_param._numels_with_padding
    path = bench.save(numbers(Net()))
    del model._handle.flat_param._numels_with_padding
    with fails(ckptd.FailedPrecondition, "_numels_with_padding", "FSDP1"):
        bench.load(model, path)
    model._handle.flat_param._numels_with_padding = numels


def a_dtype_is_chosen_before_the_first_forward_alone(bench):
    for use_orig_params in (False, True):
        model = wrapped(Net(), use_orig_params=use_orig_params, auto_wrap_policy=of_layers)
        path = bench.save(numbers(Net()))
        bench.load(model, path, dtype=torch.bfloat16)
        assert {flat.dtype for flat in flats(model).values()} == {torch.bfloat16}
        theirs = wrapped(
            Net().to(torch.bfloat16), use_orig_params=use_orig_params, auto_wrap_policy=of_layers
        )
        load_natively(theirs, numbers(Net()))
        assert_trains_alike(model, theirs)
        with fails(ckptd.FailedPrecondition, "in place"):
            bench.load(model, path, dtype=torch.float32)


def a_state_that_lacks_a_member_is_refused_on_every_rank(bench):
    model = wrapped(Net(), use_orig_params=True)
    before = [flat.clone() for flat in flats(model).values()]
    state = numbers(Net())
    del state["odd.bias"]
    lenient = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    for options, kind in ((BROADCAST, RuntimeError), (lenient, ckptd.FailedPrecondition)):
        with fails(kind, "odd.bias"):
            given = state if bench.rank == 0 else {}
            ckptd.torch.set_model_state_dict(model, given, options=options, address=bench.address)
    assert all(torch.equal(a, b) for a, b in zip(flats(model).values(), before))


def units_that_a_checkpoint_lacks_keep_their_values_without_strict(bench):
    """As adapters that are units of their own: in load_into as in set_model_state_dict.

    Torch's own function fails for use_orig_params, so the truth is the whole state.
    """
    state = {name: value for name, value in numbers(Net()).items() if not name.startswith("odd.")}
    path, lenient = bench.save(state), StateDictOptions(full_state_dict=True, strict=False)
    for use_orig_params in (False, True):
        models = []
        for _ in range(3):
            torch.manual_seed(2)
            net = Net()
            kept = {name: value.clone() for name, value in net.state_dict().items() if name not in state}
            models.append(wrapped(net, use_orig_params=use_orig_params, auto_wrap_policy=of_layers))
        theirs, mine, spread = models
        load_natively(theirs, {**state, **kept})
        result = bench.load(mine, path, strict=False)
        assert result.missing == ["odd.bias", "odd.weight"] and not result.unexpected
        ckptd.torch.set_model_state_dict(spread, path, options=lenient, address=bench.address)
        for model in (mine, spread):
            assert_same(model, theirs, "after the load")
        assert_trains_alike(mine, theirs)
        with fails(ckptd.NotFound, "odd."):
            bench.load(mine, path)


def weights_gathered_in_an_evaluation_are_let_go(bench):
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        for use_orig_params in (False, True):
            model = wrapped(Net(), use_orig_params=use_orig_params, sharding_strategy=strategy)
            state = numbers(Net())
            bench.load(model, bench.save(state))
            with torch.no_grad():
                model(torch.arange(4))
            other = {n: t + 1 if t.is_floating_point() else t for n, t in state.items()}
            bench.load(model, bench.save(other))
            reference = Net()
            reference.load_state_dict(other, strict=False)
            with torch.no_grad():
                assert torch.equal(model(torch.arange(4)), reference(torch.arange(4)))


def buffers_that_a_mixed_precision_casts_are_no_other_load(bench):
    policy = MixedPrecision(
        param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16, cast_forward_inputs=True
    )
    models = [wrapped(Net(), mixed_precision=policy) for _ in range(2)]
    state = numbers(Net())
    path = bench.save(state)
    for first in (True, False):
        load_natively(models[0], state)
        result = bench.load(models[1], path)
        assert first or result.resident
        assert set(result.copied) == (set() if first else {"mean"}), result.copied
        assert_same(models[1], models[0], "after a load")
        assert_trains_alike(*models)
        assert [m.mean.dtype for m in models] == [torch.bfloat16] * 2


def offloaded_parameters_lie_in_pinned_memory(bench):
    """Without a GPU nothing can be pinned; a copy, as pinning makes one, stands in for it."""
    with replaced(torch.Tensor, "pin_memory", torch.Tensor.clone):
        state, models = numbers(Net()), []
        for build in (Net, lambda: on_meta(Net)):
            options = {"cpu_offload": CPUOffload(offload_params=True), "param_init_fn": empty}
            models.append(wrapped(build(), auto_wrap_policy=of_layers, **options))
        load_natively(models[0], state)
        result = bench.load(models[1], bench.save(state))
        assert set(result.copied) == {t for t in result.copied if t.endswith("_flat_param")}
        assert len(result.copied) == len(flats(models[1])) and "pin" in str(result.copied)
        assert_same(models[1], models[0], "after the load")
        with torch.no_grad():  # on the host FSDP1 cannot train so
            assert torch.equal(*(model(torch.arange(4)) for model in models))


CASES = {
    2: [
        loading_inside_a_forward_is_refused,
        a_missing_member_is_an_error_that_names_it,
        part_of_a_model_is_refused,
        an_unknown_torch_is_told,
        a_dtype_is_chosen_before_the_first_forward_alone,
        a_state_that_lacks_a_member_is_refused_on_every_rank,
        units_that_a_checkpoint_lacks_keep_their_values_without_strict,
        weights_gathered_in_an_evaluation_are_let_go,
        buffers_that_a_mixed_precision_casts_are_no_other_load,
        offloaded_parameters_lie_in_pinned_memory,
    ],
}
