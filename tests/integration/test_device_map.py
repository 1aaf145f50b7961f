"""Device maps that ckptctl plans from a checkpoint beside accelerate's, of the same models on meta."""

import random
import subprocess

import ckptd
import pytest
import torch
from group import BINARIES, parsed

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
from accelerate.utils import (  # noqa: E402
    compute_module_sizes,
    get_balanced_memory,
    get_max_layer_size,
    infer_auto_device_map,
)
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

LIMITS = 12  # random ones for each way, model and dtype
WAYS = ("auto", "balanced", "balanced_low_0", "sequential")
SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 4,
         "num_key_value_heads": 2}


class Odd(nn.Module):
    """Parameters beside modules, ties across modules, booleans, modules in modules."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(7))
        self.front = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8)))
        self.blocks = nn.ModuleList(nn.ModuleDict({"in": nn.Linear(8, 20), "out": nn.Linear(20, 8)}) for _ in range(12))
        self.flags = nn.Module()
        self.flags.mask = nn.Parameter(torch.ones(13, dtype=torch.bool), requires_grad=False)
        self.back = nn.Module()
        self.back.proj, self.back.rest = nn.Linear(8, 8), nn.Linear(8, 24)
        self.back.proj.weight = self.front[0].weight


class Case:
    """A model, as accelerate sees it once it has only what a checkpoint has."""

    def __init__(self, name, build, no_split, classes, tied=()):
        self.name, self.build, self.no_split, self.classes, self.tied = name, build, no_split, classes, tied

    def model(self):
        model = self.build()
        prune(model)
        return model

    def save(self, folder):
        state = {name: tensor.detach().contiguous() for name, tensor in self.model().named_parameters()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return folder / "model.safetensors"


def prune(module):
    """Leaves out buffers and modules without parameters: no checkpoint tells of them."""
    for name in list(module._buffers):
        del module._buffers[name]
    for name, child in list(module.named_children()):
        if next(child.parameters(), None) is None:
            delattr(module, name) if not isinstance(module, (nn.Sequential, nn.ModuleList)) else None
        else:
            prune(child)


def hugging(kind, **config):
    return lambda: transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config))


LLAMA = Case("llama", hugging("llama", num_hidden_layers=5, **SMALL), ["model.layers.*"], ["LlamaDecoderLayer"])
CASES = [
    LLAMA,
    Case("llama that may be split", LLAMA.build, [], []),
    Case("llama with ties", hugging("llama", num_hidden_layers=3, tie_word_embeddings=True, **SMALL),
         ["model.layers.*"], ["LlamaDecoderLayer"], ["lm_head.weight=model.embed_tokens.weight"]),
    Case("mixtral", hugging("mixtral", num_hidden_layers=12, num_local_experts=4, **SMALL),
         ["model.layers.*"], ["MixtralDecoderLayer"]),
    Case("mixtral that may be split", hugging("mixtral", num_hidden_layers=3, num_local_experts=4, **SMALL), [], []),
    Case("gpt2", hugging("gpt2", n_layer=4, n_embd=32, n_head=4, vocab_size=96, n_positions=64),
         ["transformer.h.*"], ["GPT2Block"], ["lm_head.weight=transformer.wte.weight"]),
    Case("odd", Odd, ["blocks.*"], ["ModuleDict"], ["back.proj.weight=front.0.weight"]),
    Case("odd that may be split", Odd, [], [], ["back.proj.weight=front.0.weight"]),
]


def order_of(model, prefix=""):
    """Names of parameters and modules, first to last."""
    for name, _ in [*model.named_parameters(recurse=False), *model.named_children()]:
        yield prefix + name
    for name, child in model.named_children():
        yield from order_of(child, f"{prefix}{name}.")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """case -> (path of its checkpoint, its model on meta), made once."""
    made = {}

    def get(case):
        if case.name not in made:
            torch.manual_seed(0)
            path = case.save(tmp_path_factory.mktemp("m"))
            made[case.name] = path, case.model().to("meta")
            for name, tied in (pair.split("=") for pair in case.tied):
                module, _, leaf = name.rpartition(".")
                parent, _, of = tied.rpartition(".")
                model = made[case.name][1]
                setattr(model.get_submodule(module), leaf, getattr(model.get_submodule(parent), of))
        return made[case.name]

    return get


def planned(path, way, memory, case, order=(), more=()):
    """ckptctl's answer, or None where it refuses."""
    limits = ",".join(f"{device}={size}" for device, size in memory.items())
    lists = [("--no-split", case.no_split), ("--order", order), ("--tied", case.tied)]
    options = [part for name, values in lists for value in values for part in (name, value)]
    done = subprocess.run([BINARIES / "ckptctl", "--output", "json", "plan", path, "--device-map", way, "--max-memory",
                           limits, *options, *more], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return None
    answer = parsed(done.stdout)
    return {"device_map": answer["device_map"], **answer["plan"]}


def number(device):
    return int(device) if device.isdecimal() else device


def inferred(model, way, memory, case, **dtypes):
    """accelerate's answer, as load_checkpoint_and_dispatch gets it; None where it fails."""
    classes = {"no_split_module_classes": case.classes, **dtypes}
    try:
        if way != "sequential":
            memory = get_balanced_memory(model, max_memory=dict(memory), low_zero=way == "balanced_low_0", **classes)
        return dict(infer_auto_device_map(model, max_memory=dict(memory), **classes))
    except IndexError:
        return None


def limits(sizes, seed):
    """Memory limits that are too small, just right to the byte, or ample, for up to five devices."""
    choose, total = random.Random(seed), sizes[""]

    def one():
        if choose.random() < 0.4:
            return int(sum(choose.choices(list(sizes.values()), k=choose.randint(1, 5))))
        return int(total * choose.choice([0, 0.1, 0.3, 0.5, 1, 3]) * choose.random())

    memory = {gpu: one() for gpu in range(choose.randint(0, 4))}
    if not memory or choose.random() < 0.8:
        memory["cpu"] = one()
    return memory


DTYPES = {
    "as saved": ([], {}),
    "BF16": (["--dtype", "BF16"], {"dtype": torch.bfloat16}),
    "F64": (["--dtype", "F64"], {"dtype": "float64"}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_map_is_accelerate_s(case, way, dtype, saved):
    path, model = saved(case)
    options, dtypes = DTYPES[dtype]
    sizes = compute_module_sizes(model, **dtypes)
    order = list(order_of(model))
    for seed in range(LIMITS):
        memory = limits(sizes, f"{case.name} {way} {seed}")
        theirs, mine = inferred(model, way, memory, case, **dtypes), planned(path, way, memory, case, order, options)
        assert (mine and mine["device_map"]) == theirs, memory
        if mine:
            assert {m["name"]: m["bytes"] for m in mine["modules"]} == {n: -(-sizes[n] // 1) for n in theirs}
            assert mine["total_bytes"] == -(-sizes[""] // 1)
            placed = [device["placed_bytes"] for device in mine["devices"]]
            assert 0 <= sum(placed) - mine["total_bytes"] < len(placed), "each is rounded up"
            modules = [*model.named_parameters(recurse=False), *model.named_children()]
            assert mine["largest_layer_bytes"] == get_max_layer_size(modules, sizes, case.classes)[0]


class Tied(nn.Module):
    """A layer that is tied with a part of the last module."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for number in range(6):
            self.add_module(f"block{number}", nn.Linear(8, 8))
        self.back = nn.Module()
        self.back.proj, self.back.rest = nn.Linear(8, 8), nn.Linear(8, 24)
        self.back.proj.weight = self.front[0].weight


@pytest.mark.parametrize("no_split,classes", [([], []), (["back"], ["Module"]), (["front"], ["Sequential"]),
                                              (["front", "back"], ["Sequential", "Module"])], ids=str)
def test_ties_are_planned_as_by_accelerate_at_every_limit(no_split, classes, tmp_path):
    case = Case("tied", Tied, no_split, classes, ["back.proj.weight=front.0.weight"])
    path, model = case.save(tmp_path), Tied()
    order, answers = list(order_of(model)), set()
    for limit in range(0, 4000, 32):  # all sizes are multiples of it
        for memory in ({0: limit, 1: 1000, "cpu": 1500}, {0: 0, 1: limit, "cpu": 3000}):
            theirs, mine = inferred(model, "sequential", memory, case), planned(path, "sequential", memory, case, order)
            assert (mine and mine["device_map"]) == theirs, memory
            answers.add(str(theirs))
    assert len(answers) > 10


class Apart(nn.Module):
    """A tie with a parameter beside a module that is too large to stay with it."""

    def __init__(self):
        super().__init__()
        self.emb, self.wide = nn.Linear(10, 20, bias=False), nn.Module()
        self.wide.tied, self.wide.part = self.emb.weight, nn.Linear(100, 10, bias=False)


def test_a_tie_that_accelerate_fails_for_is_refused(tmp_path):
    case = Case("apart", Apart, [], [], ["wide.tied=emb.weight"])
    path, model, memory = case.save(tmp_path), Apart(), {0: 5500}
    assert inferred(model, "sequential", memory, case) is None
    assert planned(path, "sequential", memory, case, order_of(model)) is None
    assert planned(path, "sequential", {0: 9000}, case, order_of(model))["device_map"] == {"": 0}


@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith(("llama", "mixtral"))],
                         ids=lambda case: case.name)
def test_the_usual_order_of_modules_needs_no_telling(case, saved):
    path, model = saved(case)
    sizes = compute_module_sizes(model)
    for seed in range(LIMITS):
        memory = limits(sizes, seed)
        assert planned(path, "auto", memory, case)["device_map"] == inferred(model, "auto", memory, case), memory


def test_tensors_that_stay_float32_count_as_such(saved):
    path, model = saved(LLAMA)
    special = {name: torch.float32 for name, _ in model.named_parameters() if "norm" in name}
    memory = {0: 60000, 1: 60000, "cpu": 60000}
    mine = planned(path, "auto", memory, LLAMA, order_of(model), ["--dtype", "F16", "--keep-fp32", "*norm*"])
    assert mine["device_map"] == inferred(model, "auto", memory, LLAMA, dtype=torch.float16, special_dtypes=special)
    assert mine["total_bytes"] == compute_module_sizes(model, dtype="float16", special_dtypes=special)[""]


@pytest.mark.parametrize("text,size", [("2GiB", 2 << 30), ("1.5MiB", 3 << 19), ("7KB", 7000), ("10Gb", 10**10 // 8)])
def test_sizes_are_read_as_accelerate_reads_them(text, size, saved):
    path, _ = saved(LLAMA)
    devices = planned(path, "sequential", {0: text}, LLAMA)["devices"]
    assert devices[0]["limit_bytes"] == accelerate.utils.convert_file_size_to_int(text) == size


def test_the_map_loads_the_model_it_was_planned_for(saved):
    path, model = saved(LLAMA)
    mine = planned(path, "auto", {"cpu": "1GiB"}, LLAMA)["device_map"]
    accelerate.utils.modeling.load_checkpoint_in_model(model, str(path), device_map=mine)
    assert not any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("case", [CASES[2], CASES[-1]], ids=lambda case: case.name)
def test_a_daemon_plans_the_same_map(case, saved, pair):
    path, model = saved(case)
    sizes = compute_module_sizes(model)
    tied = dict(pair.split("=") for pair in case.tied)
    with ckptd.connect(pair.address(0)) as client:
        for seed, way in enumerate(WAYS * 3):
            memory = limits(sizes, seed)
            here = planned(path, way, memory, case)
            assert planned(path, way, memory, case, more=["--remote", "--address", pair.address(0)]) == here
            try:
                there = client.plan_devices(path, max_memory=memory, way=way, no_split=case.no_split, tied=tied)
            except ckptd.InvalidArgument as error:
                assert here is None and error.reason == "INVALID_REQUEST"
                continue
            assert there.modules == here["device_map"]
            assert there.placed == {number(each["device"]): each["placed_bytes"] for each in here["devices"]}
            assert there.limits == {number(d["device"]): d["limit_bytes"] for d in here["devices"] if d["device"] != "disk"}
            assert (there.total_bytes, there.largest_layer_bytes) == (here["total_bytes"], here["largest_layer_bytes"])


def test_a_daemon_names_patterns_that_describe_nothing_as_is_done_here(saved, pair):
    path, memory, more = saved(LLAMA)[0], {"cpu": "1GiB"}, ["--no-split", "model.layer.*"]
    said = planned(path, "auto", memory, LLAMA, ["none"], more)["warnings"]
    assert [line.split(" matches ")[0] for line in said] == ["order: none", "no_split: model.layer.*"]
    remote = ["--remote", "--address", pair.address(0)]
    assert planned(path, "auto", memory, LLAMA, ["none"], more + remote)["warnings"] == said
    with ckptd.connect(pair.address(0)) as client:
        no_split = [*LLAMA.no_split, more[1]]
        found = client.plan_devices(path, max_memory=memory, no_split=no_split, order=["none"])
    assert list(found.warnings) == said


def test_what_cannot_be_planned_is_said_by_the_daemon_as_here(saved, pair):
    path = saved(LLAMA)[0]
    with ckptd.connect(pair.address(0)) as client:
        for wrong, words in [
            ({"max_memory": "gpu=1GB"}, "gpu"),
            ({"max_memory": {0: "1GB"}, "way": "best"}, "there is no way 'best'; use one of auto"),
            ({"max_memory": {0: "1GB"}, "tied": {"a": "nothing"}}, "nothing"),
        ]:
            with pytest.raises(ckptd.InvalidArgument, match=words):
                client.plan_devices(path, **wrong)
        with pytest.raises(ckptd.NotFound):
            client.plan_devices(path.with_name("none"), max_memory="cpu=1GB")
