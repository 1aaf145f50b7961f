"""Wrapping cases of load_into, run on each rank of a gloo group by fsdp_worker.

Each case builds a model twice: once with torch's own tools from the same
numbers, once on meta and filled by load_into from a fake daemon. Bytes are
compared after the load and, where the case trains, after optimizer steps.
"""

import json
import os

import ckptd
import ckptd.torch
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Net(nn.Module):
    """Small, with every awkward size: 11 and 7 rows, one of 1, a scalar buffer."""

    def __init__(self, width=8, tied=False):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.up = nn.Linear(width, 12)
        self.down = nn.Linear(12, width)
        self.norm = nn.LayerNorm(width)
        self.gain = nn.Parameter(torch.ones(1))
        self.odd = nn.Linear(width, 7)
        self.head = nn.Linear(7 if not tied else width, 11, bias=False)
        self.tied = tied
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("freq", torch.arange(width, dtype=torch.float32), persistent=False)

    def forward(self, tokens):
        x = (self.embed(tokens) * self.gain + self.mean + self.freq).to(self.embed.weight.dtype)
        x = self.norm(x + self.down(torch.relu(self.up(x))))
        y = self.odd(x)
        return self.head(x) if self.tied else self.head(y)


def on_meta(build=Net):
    with torch.device("meta"):
        return build()


def equal_to(model, state):
    """Whether the model's values are those of `state`, where it has them."""
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items() if name in state)


def init_buffers(model, names):
    assert names == ["freq"], names
    model.freq.copy_(torch.arange(model.freq.numel(), dtype=torch.float32))


def numbers(model, dtype=None):
    """The same random state dict on every rank."""
    generator = torch.Generator().manual_seed(7)
    result = {}
    for name, tensor in model.state_dict().items():
        if name == "head.weight" and getattr(model, "tied", False):
            continue
        if tensor.is_floating_point():
            result[name] = torch.randn(tensor.shape, generator=generator).to(dtype or tensor.dtype)
        else:
            result[name] = torch.full(tensor.shape, 3, dtype=tensor.dtype)
    return result


def copied(state):
    """torch's loader may free what it is given."""
    return {name: tensor.clone() for name, tensor in state.items()}


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def daemon_ranges():
    """Address ranges of this process that map a daemon's memory."""
    with open("/proc/self/maps") as maps:
        ours = ("memfd:", "/vmm-", "/ipc-")  # host memory, and that of GPUs which are not real
        spans = [line.split()[0].split("-") for line in maps if any(o in line for o in ours)]
    return [(int(low, 16), int(high, 16)) for low, high in spans]


def assert_in_daemon_memory(model, skip=()):
    ranges = daemon_ranges()
    tensors = list(model.named_parameters()) + list(model.named_buffers())
    for name, tensor in tensors:
        part = local(tensor)
        if name in skip or part.numel() == 0:
            continue
        pointer = part.data_ptr()
        assert any(low <= pointer < high for low, high in ranges), (
            f"{name} is not in the daemon's memory"
        )


def assert_same(ours, theirs, what):
    mine, others = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == others.keys(), what
    for name in mine:
        a, b = local(mine[name]), local(others[name])
        assert a.dtype == b.dtype and a.shape == b.shape, (
            f"{what}: {name} {a.dtype} {a.shape} {b.dtype} {b.shape}"
        )
        assert torch.equal(
            a.detach().contiguous().view(torch.uint8) if a.numel() else a,
            b.detach().contiguous().view(torch.uint8) if b.numel() else b,
        ), f"{what}: {name}"
        if isinstance(mine[name], DTensor):
            assert mine[name].placements == others[name].placements, f"{what}: {name}"
    for (name, a), (_, b) in zip(ours.named_buffers(), theirs.named_buffers()):
        assert torch.equal(a, b), f"{what}: buffer {name}"


def train(model, optimizer, steps=5):
    losses = []
    for step in range(steps):
        tokens = torch.arange(6).add(step).remainder(11)
        loss = model(tokens).float().square().mean()
        loss.backward()
        for param in model.parameters():
            if param.grad is not None:
                local(param.grad).clamp_(-0.1, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Bench:
    """What a case needs: the fake daemon's address, a folder, rank and size."""

    def __init__(self, address, folder, rank, world, case):
        self.address, self.folder, self.rank, self.world = address, folder, rank, world
        self.case, self.saved = case, 0

    def save(self, tensors):
        """One file for all ranks, written by the first."""
        self.saved += 1
        path = os.path.join(self.folder, f"{self.case}-{self.saved}.safetensors")
        if self.rank == 0:
            save_file(tensors, path)
        torch.distributed.barrier()
        return path

    def save_pickled(self, tensors):
        """One file of torch for all ranks, written by the first; every other matrix is a view of its transpose."""
        self.saved += 1
        path = os.path.join(self.folder, f"{self.case}-{self.saved}.bin")
        if self.rank == 0:
            turned = {id(t): t.t().contiguous().t() if t.dim() == 2 and i % 2 else t for i, t in enumerate(tensors.values())}
            torch.save({name: turned[id(t)] for name, t in tensors.items()}, path)
        torch.distributed.barrier()
        return path

    def save_shards(self, tensors):
        """A folder with an index of two files, for all ranks, written by the first."""
        self.saved += 1
        folder = os.path.join(self.folder, f"{self.case}-{self.saved}")
        if self.rank == 0:
            os.mkdir(folder)
            where = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(tensors)}
            for file in set(where.values()):
                part = {name: t for name, t in tensors.items() if where[name] == file}
                save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
            with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
                json.dump({"weight_map": where}, file)
        torch.distributed.barrier()
        return folder

    def load(self, model, path, **options):
        options.setdefault("init_buffers", init_buffers)
        return ckptd.torch.load_into(model, path, address=self.address, **options)

    def compare(
        self,
        wrap,
        build=Net,
        dtype=None,
        trains=True,
        optimizer=torch.optim.AdamW,
        cast=None,
        save=None,
        **options,
    ):
        """The whole round: load, compare, train, compare, load again, compare."""
        theirs = build()
        state = numbers(theirs, dtype)
        if cast is not None:
            theirs = theirs.to(cast)
        wrap(theirs)
        full = dict(state)
        if getattr(theirs, "tied", False):
            full["head.weight"] = full["embed.weight"]
        set_model_state_dict(theirs, copied(full), options=StateDictOptions(full_state_dict=True))
        with torch.device("meta"):
            ours = build()
        wrap(ours)
        identities = {name: id(p) for name, p in ours.named_parameters()}
        trainer = optimizer([p for p in ours.parameters() if p.requires_grad], lr=0.05)
        path = (save or self.save)(state)
        result = self.load(ours, path, dtype=cast, **options)
        assert result.copied == {} and result.replaced == {}, (result.copied, result.replaced)
        assert result.missing == [] and result.unexpected == [], result
        assert {name: id(p) for name, p in ours.named_parameters()} == identities, (
            "parameters were replaced"
        )
        assert_same(ours, theirs, "after the load")
        assert_in_daemon_memory(ours, skip=("freq",))
        if trains:
            reference = optimizer([p for p in theirs.parameters() if p.requires_grad], lr=0.05)
            assert train(ours, trainer) == train(theirs, reference), "losses differ"
            assert_same(ours, theirs, "after training")
            assert_in_daemon_memory(ours, skip=("freq",))
        loaded_again = self.load(ours, path, dtype=cast, **options)
        assert loaded_again.resident and loaded_again.copied == {}
        set_model_state_dict(theirs, copied(full), options=StateDictOptions(full_state_dict=True))
        assert_same(ours, theirs, "after the second load")
        if trains:
            assert train(ours, trainer, 1) == train(theirs, reference, 1), (
                "losses differ after the second load"
            )
        return ours, result


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
