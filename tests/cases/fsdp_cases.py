"""Wrapping cases of load_into, run on each rank of a gloo group by fsdp_worker.

Each case builds a model twice: once with torch's own tools from the same
numbers, once on meta and filled by load_into from a fake daemon. Bytes are
compared after the load and, where the case trains, after optimizer steps.
"""

import ckptd
import ckptd.torch
import torch
from fsdp_bench import Net, assert_in_daemon_memory, assert_same, copied, local, numbers, on_meta, train
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# -- two ranks ---------------------------------------------------------------


def plain_root(bench):
    bench.compare(lambda m: fully_shard(m))


def nested(bench):
    def wrap(m):
        fully_shard([m.up, m.down])
        fully_shard(m.norm)
        fully_shard(m)

    bench.compare(wrap)


def kept_after_forward(bench):
    def wrap(m):
        fully_shard(m.up, reshard_after_forward=False)
        fully_shard(m, reshard_after_forward=False)

    bench.compare(wrap)


def pickled(bench):
    bench.compare(lambda m: fully_shard(m), save=bench.save_pickled)


def pickled_and_cast(bench):
    ours, _ = bench.compare(fully_shard, dtype=torch.float64, save=bench.save_pickled)
    assert ours.up.weight.dtype == torch.float32


def tied(bench):
    ours, _ = bench.compare(lambda m: fully_shard(m), build=lambda: Net(tied=True))
    assert ours.head.weight is ours.embed.weight


def tied_stored_under_the_other_name(bench):
    with torch.device("meta"):
        model = Net(tied=True)
    fully_shard(model)
    state = numbers(Net(tied=True))
    state["head.weight"] = state.pop("embed.weight")
    result = bench.load(model, bench.save(state))
    assert not result.missing and model.embed.weight is model.head.weight
    assert torch.equal(model.embed.weight.full_tensor(), state["head.weight"])


def frozen(bench):
    def wrap(m):
        nn.ModuleList([m.up, m.embed]).requires_grad_(False)
        fully_shard(m)

    ours, _ = bench.compare(wrap)
    assert not ours.up.weight.requires_grad


def ignored(bench):
    bench.compare(lambda m: fully_shard(m, ignored_params={m.odd.weight, m.gain}))


def mixed_precision(bench):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    bench.compare(lambda m: fully_shard(m, mp_policy=policy))


def bf16_checkpoint_into_fp32_model(bench):
    ours, _ = bench.compare(fully_shard, dtype=torch.bfloat16)
    assert ours.up.weight.dtype == torch.float32


def dtype_override(bench):
    def wrap(m):
        m.freq = m.freq.float()  # no checkpoint holds it, so it keeps its own type
        fully_shard(m)

    ours, _ = bench.compare(wrap, cast=torch.bfloat16, optimizer=torch.optim.SGD)
    assert ours.up.weight.dtype == torch.bfloat16 and ours.steps.dtype == torch.int64


def other_dimension(bench):
    def columns(param):
        return Shard(1) if param.dim() == 2 and param.shape[1] % 2 == 0 else Shard(0)

    bench.compare(lambda m: fully_shard(m, shard_placement_fn=columns))


def cpu_offload(bench):
    bench.compare(lambda m: fully_shard(m, offload_policy=CPUOffloadPolicy(pin_memory=False)))


def activation_checkpointing(bench):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def wrap(m):
        m.up = checkpoint_wrapper(m.up)
        fully_shard(m.up)
        fully_shard(m)

    bench.compare(wrap)


def tensor_parallel(bench):
    mesh = init_device_mesh("cpu", (bench.world,))
    bench.compare(
        lambda m: parallelize_module(m, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    )


def real_model(bench):
    theirs = Net()
    state = numbers(theirs)
    fully_shard(theirs)
    result = bench.load(theirs, bench.save(state))
    assert result.copied == {} and result.made == []
    assert torch.equal(theirs.up.weight.full_tensor(), state["up.weight"])
    assert_in_daemon_memory(theirs, skip=("freq",))


def inside_a_forward(bench):
    model = on_meta()
    fully_shard(model.up)
    fully_shard(model)
    path = bench.save(numbers(Net()))
    bench.load(model, path)
    reasons = []

    def load_again(*_):
        try:
            bench.load(model, path)
        except ckptd.FailedPrecondition as error:
            reasons.append(error.reason)

    model.norm.register_forward_hook(load_again)
    model(torch.arange(4)).sum().backward()
    assert reasons == ["MODEL_BUSY"], reasons


def after_an_evaluation(bench):
    model = on_meta()
    fully_shard(model)
    state = numbers(Net())
    bench.load(model, bench.save(state))
    with torch.no_grad():
        first = model(torch.arange(4))
    other = {name: t + 1 if t.is_floating_point() else t for name, t in state.items()}
    bench.load(model, bench.save(other))
    with torch.no_grad():
        second = model(torch.arange(4))
    reference = Net()
    reference.load_state_dict(other, strict=False)
    assert torch.allclose(second, reference(torch.arange(4)), atol=1e-5) and not torch.equal(
        first, second
    )


def hooks_survive(bench):
    model = on_meta()
    fully_shard(model)
    seen = []
    model.up.weight.register_hook(lambda grad: seen.append("grad"))
    model.up.weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    bench.load(model, bench.save(numbers(Net())))
    model(torch.arange(4)).sum().backward()
    assert "after" in seen, seen


def refused(reason, load, *args, **options):
    try:
        load(*args, **options)
    except ckptd.Error as error:
        assert error.reason == reason, error
        return
    raise AssertionError("the load was not refused")


def part_of_an_fsdp_model(bench):
    model = on_meta()
    fully_shard(model)
    refused("MODEL_PART", bench.load, model.up, bench.save(numbers(nn.Linear(8, 12))))
    assert model.up.weight.is_meta


def ranks_in_another_order(bench):
    model = on_meta()
    fully_shard(model, mesh=DeviceMesh("cpu", [1, 0]))
    refused("MODEL_UNSUPPORTED", bench.load, model, bench.save(numbers(Net())))
    assert local(model.up.weight).is_meta


def dtype_change_after_training(bench):
    model = on_meta()
    fully_shard(model)
    path = bench.save(numbers(Net()))
    bench.load(model, path)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = local(model.up.weight).data_ptr()
    refused("MODEL_IN_USE", bench.load, model, path, dtype=torch.bfloat16)
    assert local(model.up.weight).data_ptr() == before


def public_path(bench):
    """Without the private exchange: same bytes and memory, other Parameter objects."""
    from ckptd.torch.compat import _torch_internals

    kept, _torch_internals.in_place_works = _torch_internals.in_place_works, lambda *_: False
    try:
        theirs = Net()
        state = numbers(theirs)
        fully_shard(theirs)
        set_model_state_dict(theirs, copied(state), options=StateDictOptions(full_state_dict=True))
        with torch.device("meta"):
            ours = Net()
        fully_shard(ours)
        result = bench.load(ours, bench.save(state))
    finally:
        _torch_internals.in_place_works = kept
    assert "up.weight" in result.replaced and result.copied == {}, result
    assert_same(ours, theirs, "after the load")
    assert_in_daemon_memory(ours, skip=("freq",))
    pair = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    assert train(ours, pair[0]) == train(theirs, pair[1])
    assert_in_daemon_memory(ours, skip=("freq",))


# -- four ranks --------------------------------------------------------------


def uneven_and_empty_shards(bench):
    bench.compare(lambda m: fully_shard(m))


def hybrid(bench):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    bench.compare(lambda m: fully_shard(m, mesh=mesh))


def tensor_parallel_under_fsdp(bench):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def wrap(m):
        parallelize_module(m, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(m.up, mesh=mesh["dp"])
        fully_shard(m, mesh=mesh["dp"])

    bench.compare(wrap)


def resharded_to_two(bench):
    def wrap(m):
        fully_shard(m.up, reshard_after_forward=2)
        fully_shard(m)

    bench.compare(wrap)


CASES = {
    2: [
        plain_root,
        nested,
        kept_after_forward,
        pickled,
        pickled_and_cast,
        tied,
        tied_stored_under_the_other_name,
        frozen,
        ignored,
        mixed_precision,
        bf16_checkpoint_into_fp32_model,
        dtype_override,
        other_dimension,
        cpu_offload,
        activation_checkpointing,
        tensor_parallel,
        real_model,
        inside_a_forward,
        after_an_evaluation,
        hooks_survive,
        part_of_an_fsdp_model,
        ranks_in_another_order,
        dtype_change_after_training,
        public_path,
    ],
    4: [uneven_and_empty_shards, hybrid, tensor_parallel_under_fsdp, resharded_to_two],
}
