"""What cases of the functions that spread rank 0's state share: models, and comparisons."""

import contextlib
import os
import time

import ckptd
import ckptd.torch
import torch
from fsdp_bench import Net, copied, local, numbers, on_meta
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

# Seconds in which every rank of a busy machine has a failure's reason: half of what would end its call otherwise.
PATIENCE = 30.0
BROADCAST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Bare(nn.Module):
    """Without buffers and parameters of the root, which accelerate's own function cannot load."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)
        self.act = nn.PReLU()  # one parameter of one element
        self.odd = nn.Linear(width, 7)
        self.head = nn.Linear(7, 11, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(self.act(self.up(x)))
        return self.head(self.odd(x))


class Adapter(nn.Module):
    """A low-rank adapter beside a frozen layer, as PEFT puts it there."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def with_adapters(build=Net):
    model = build()
    model.requires_grad_(False)
    model.up, model.down = Adapter(model.up), Adapter(model.down)
    return model


class Accelerator:
    """What accelerate's fsdp2_load_full_state_dict looks at."""

    def __init__(self, rank):
        self.is_main_process = rank == 0


def accelerates(bench, model, state):
    from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict

    return fsdp2_load_full_state_dict(Accelerator(bench.rank), model, state)


def ours(bench, model, state, **options):
    options.setdefault("address", bench.address)
    accelerator = Accelerator(bench.rank)
    return ckptd.torch.fsdp2_load_full_state_dict(accelerator, model, state, **options)


def only_on_first(bench, state):
    return copied(state) if bench.rank == 0 else {}


def sharded(build, wrap=fully_shard):
    model = on_meta(build)
    wrap(model)
    return model


def filled_before(build, state, wrap=fully_shard):
    """The truth where the real function fails."""
    model = build()
    model.load_state_dict(state, strict=False)
    wrap(model)
    return model


def settle_buffers(*models):
    """What accelerate does beside loading: buffers that no state dict has."""
    for model in models:
        model.freq = torch.arange(model.freq.numel(), dtype=torch.float32)


def groups_of_ties(model):
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), []).append(name)
    return sorted(found.values())


def assert_equal(mine, theirs, what, ties=True):
    """Everything a trainer can see, on this rank."""
    a, b = dict(mine.state_dict(keep_vars=True)), dict(theirs.state_dict(keep_vars=True))
    assert list(a) == list(b), what
    for name in a:
        x, y = a[name], b[name]
        assert type(x) is type(y), f"{what}: {name} {type(x)} {type(y)}"
        for fact in ("dtype", "shape", "requires_grad", "device", "is_leaf"):
            assert getattr(x, fact) == getattr(y, fact), f"{what}: {name}.{fact}"
        assert x.stride() == y.stride(), f"{what}: {name} strides"
        if isinstance(x, DTensor):
            assert x.placements == y.placements and x.device_mesh == y.device_mesh, f"{what}: {name}"
        assert_same_bytes(local(x), local(y), f"{what}: {name}")
    if ties:
        assert groups_of_ties(mine) == groups_of_ties(theirs), what


def assert_same_bytes(x, y, what):
    assert x.shape == y.shape and x.dtype == y.dtype, f"{what}: {x.dtype} {x.shape} {y.dtype} {y.shape}"
    assert x.stride() == y.stride() or x.numel() == 0, f"{what}: {x.stride()} {y.stride()}"
    if x.numel():
        x, y = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (x, y))
        assert torch.equal(x, y), f"{what}: bytes differ"


def losses(model, steps=5):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    found = []
    for step in range(steps):
        loss = model(torch.arange(6).add(step).remainder(11)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def assert_trains_alike(mine, theirs):
    assert losses(mine) == losses(theirs), "losses differ"


def save(bench, number):
    """A checkpoint like no other one."""
    return bench.save({name: value + number for name, value in numbers(Bare()).items()})


def assert_holds(model, number):
    expected = {name: value + number for name, value in numbers(Bare()).items()}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        assert_same_bytes(whole, expected[name], name)


@contextlib.contextmanager
def fails(kind, *parts, seconds=PATIENCE):
    """Raises exactly in time, and says `parts`."""
    began = time.monotonic()
    try:
        yield
    except kind as error:
        text = str(error)
        assert all(part in text for part in parts), text
        assert time.monotonic() - began < seconds, f"it took {time.monotonic() - began:.1f} s"
    else:
        raise AssertionError(f"it did not raise {kind}")


def storage_bytes_of(bench, source):
    """What the daemons have read of `source` in all."""
    with ckptd.connect(bench.address) as client:
        found = [c for c in client.list() if c.source == os.path.abspath(source)]
    return sum(checkpoint.progress.storage_bytes for checkpoint in found)
