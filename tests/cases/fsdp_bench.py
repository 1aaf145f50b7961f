"""The bench of load_into's cases: a model, its values, and the comparison with torch's own tools."""

import json
import os

import ckptd
import ckptd.torch
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor


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
    """A case's surroundings: the fake daemon's address, a folder, rank and size."""

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
