"""The examples of client/python/docs, run as they are: each pair, before and after, fills one model alike."""

import contextlib
import os
import pathlib
import re
import tempfile

import ckptd
import ckptd.torch
import dcp_bench
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate_cases import OnTheHost
from fsdp_bench import numbers, train
from safetensors.torch import save_file
from spread_bench import assert_equal, assert_trains_alike
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

DOCS = pathlib.Path(__file__).resolve().parents[2] / "client/python/docs"
PAGES = ("fsdp2.md", "accelerate.md", "big-models.md", "dcp.md", "resume.md")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


def pairs(page):
    """[(title of the section, example before, example after)]."""
    found = []
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", (DOCS / page).read_text(), flags=re.M | re.S):
        blocks = re.findall(r"^```python\n# (before|after)\n(.*?)^```", text, flags=re.M | re.S)
        assert text.count("```python") == len(blocks), f"{page}, {title}: an example that nothing runs"
        assert [kind for kind, _ in blocks] in ([], ["before", "after"]), f"{page}, {title}"
        if blocks:
            found.append((title, blocks[0][1], blocks[1][1]))
    return found


@contextlib.contextmanager
def daemon_of(bench):
    """Examples find their daemon by themselves."""
    os.environ["CKPTD_ADDRESS"] = bench.address
    try:
        yield
    finally:
        del os.environ["CKPTD_ADDRESS"]


def save_training(folder, mesh):
    """A training's state by dcp.save, the same for all examples."""
    model = Model()
    model.load_state_dict(numbers(model))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.arange(6)).square().mean().backward()
    optimizer.step()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save({**state, "step": 5}, checkpoint_id=folder)


def assert_optimizers_equal(mine, theirs):
    """Those that the examples made, if they did."""
    states = [optimizer.state_dict() if optimizer else {} for optimizer in (mine, theirs)]
    assert not dcp_bench.differences(*states), dcp_bench.differences(*states)[:3]


def run(bench, code, folder):
    """The names of an example after its end: "model" that it made, or filled. A sharded one on meta is there."""
    mesh = init_device_mesh("cpu", (bench.world,))
    with torch.device("meta"):
        model = Model()
    fully_shard(model, mesh=mesh)
    torch.manual_seed(bench.rank)
    accelerator = OnTheHost(bench.rank, auto_wrap_policy="no_wrap")
    names = {"Model": Model, "model": model, "mesh": mesh, "torch": torch, "accelerator": accelerator,
             "path": os.path.join(folder, "model.safetensors"), "file": os.path.join(folder, "model.safetensors"),
             "safetensors_folder": folder, "checkpoint": os.path.join(folder, "checkpoint"),
             "folder": tempfile.mkdtemp(dir=folder)}
    with daemon_of(bench):
        exec(code, names)  # our own text
    return names


def case(page, title, before, after):
    def compare(bench):
        folder = os.path.join(bench.folder, bench.case)
        if bench.rank == 0:
            os.makedirs(folder, exist_ok=True)
            save_file(numbers(Model()), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        dist.barrier()
        if "checkpoint)" in after:
            save_training(os.path.join(folder, "checkpoint"), init_device_mesh("cpu", (bench.world,)))
        of_theirs, of_mine = run(bench, before, folder), run(bench, after, folder)
        theirs, mine = of_theirs["model"], of_mine["model"]
        assert_optimizers_equal(of_mine.get("optimizer"), of_theirs.get("optimizer"))
        assert not any(p.is_meta for p in mine.parameters())
        assert of_mine.get("step") == of_theirs.get("step")
        assert_equal(mine, theirs, f"{page}, {title}")
        if "checkpoint)" in after:
            assert train(mine, of_mine["optimizer"]) == train(theirs, of_theirs["optimizer"]), "losses differ"
        else:
            assert_trains_alike(mine, theirs)

    compare.__name__ = re.sub(r"\W+", "_", f"{page[:-3]}_{title}").lower()
    return compare


def on_meta(mesh, dtype=torch.float32):
    with torch.device("meta"):
        model = Model().to(dtype)
    fully_shard(model, mesh=mesh)
    return model


def types_are_what_the_pages_say(bench):
    """Of a bfloat16 file: who makes float32 of it, and who does not."""
    path = bench.save({name: value.bfloat16() for name, value in numbers(Model()).items()})
    mesh, near = init_device_mesh("cpu", (bench.world,)), {"address": bench.address}
    wide = on_meta(mesh)
    ckptd.torch.load_into(wide, path, **near)
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    spread, full = on_meta(mesh), on_meta(mesh)
    ckptd.torch.DistModule(spread, **near).load_state_dict(path)
    ckptd.torch.fsdp2_load_full_state_dict(None, full, path, **near)
    for model in (spread, full):
        assert_equal(model, wide, "cast by the daemons")
    narrow = on_meta(mesh)
    ckptd.torch.set_model_state_dict(narrow, path, **near)
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    for precision, dtype in (("bf16", torch.float32), ("no", torch.bfloat16)):
        with torch.device("meta"):
            prepared = Model().bfloat16()
        accelerator = OnTheHost(bench.rank, precision, auto_wrap_policy="no_wrap")
        ckptd.torch.fsdp2_prepare_model(accelerator, prepared, source=path, **near)
        assert_equal(prepared, wide if dtype == torch.float32 else narrow, f"prepared with {precision}")
    with torch.device("meta"):
        prepared = Model().bfloat16()
    prepared.embed.requires_grad_(False)
    ckptd.torch.fsdp2_prepare_model(OnTheHost(bench.rank, "bf16"), prepared, source=path, **near)
    assert prepared.embed.weight.dtype == torch.bfloat16 and prepared.head.weight.dtype == torch.float32


class Tied(Model):
    """With what the writer of the example refuses: tied weights, and the counts of a batch norm."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(8)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x.flatten(0, 1)))


def trained(seed):
    """A sharded model, and its optimizer after a step."""
    torch.manual_seed(seed)
    model = Tied()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(6).view(2, 3)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def what_the_readme_saves_is_loaded_with_the_optimizer(bench):
    """The example of saving by DCP: of a model with tied weights and integers."""
    text = (DOCS.parent / "README.md").read_text().split("## Saving so that ckptd can load it\n")[1]
    save, load = re.search(r"^```python\n(.*?)^```", text, flags=re.M | re.S).group(1).split("# The next time:\n")
    saved, optimizer = trained(7)
    names = {"path": os.path.join(bench.folder, bench.case), "torch": torch, "ckptd": ckptd,
             "model": saved, "optimizer": optimizer}
    exec(save, names)  # our own text
    states = [optimizer.state_dict()]
    names["model"], names["optimizer"] = trained(8)
    with daemon_of(bench):
        exec(load, names)
    assert_equal(names["model"], saved, "weights")
    states.append(names["optimizer"].state_dict())
    for mine, theirs in zip(*(state["state"].values() for state in reversed(states))):
        assert all(torch.equal(mine[key], theirs[key]) for key in ("exp_avg", "exp_avg_sq", "step"))


CASES = {2: [case(page, *pair) for page in PAGES for pair in pairs(page)]}
assert len(CASES[2]) == 14, "examples have come or gone"
CASES[2] += [types_are_what_the_pages_say, what_the_readme_saves_is_loaded_with_the_optimizer]
