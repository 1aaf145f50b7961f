"""Loads through views: what each rank maps is what torch makes of the tensors by the same rules."""

import json

import ckptd
import pytest
import torch
from ckptd.torch import load_file, load_into
from group import Group, save
from slices import as_bytes, rows

RULES = [
    {"rename": r"^transformer\.h\.", "to": "layers."},
    {"transpose": r".*\.c_(attn|fc)\.weight"},
    {"split": r"(.*)\.c_attn\.weight", "to": [r"\1.q", r"\1.k", r"\1.v"], "sizes": [8, 4, 4], "groups": 2},
    {"fuse": [r"(.*)\.gate", r"(.*)\.up"], "to": r"\1.gate_up"},
    {"stack": r"(.*)\.experts\.(?P<index>\d+)\.gate_up", "to": r"\1.experts"},
]
TENSOR_PARALLEL = {
    "mesh": {"shape": [2]},
    "rules": [{"match": "*.experts", "placements": ["shard(1)"]}, {"match": "*.q", "placements": ["shard(0)"]}],
    "default": {},
}


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Two ranks that both read, each by the view."""
    with Group(tmp_path_factory.mktemp("v"), 2, "--reader", "all") as group:
        yield group


@pytest.fixture
def model(tmp_path):
    """(path, what RULES make of its tensors)."""
    generator = torch.Generator().manual_seed(45)
    held, seen = {}, {}
    for layer in range(2):
        at, to = f"transformer.h.{layer}", f"layers.{layer}"
        held[f"{at}.c_attn.weight"] = attn = torch.randn(6, 16, generator=generator)
        held[f"{at}.c_fc.weight"] = fc = torch.randn(6, 10, generator=generator)
        experts = []
        for expert in range(3):
            gate, up = (torch.randn(4, 6, generator=generator) for _ in range(2))
            held[f"{at}.experts.{expert}.gate"], held[f"{at}.experts.{expert}.up"] = gate, up
            experts.append(torch.cat([gate, up]))
        grouped = attn.t().reshape(2, 8, 6)
        seen |= {f"{to}.q": grouped[:, :4].reshape(8, 6), f"{to}.k": grouped[:, 4:6].reshape(4, 6),
                 f"{to}.v": grouped[:, 6:].reshape(4, 6), f"{to}.c_fc.weight": fc.t(),
                 f"{to}.experts": torch.stack(experts)}
    return save(tmp_path / "model.safetensors", held), seen


def check(shard, expected):
    assert set(shard.tensors) == set(expected)
    for name, tensor in expected.items():
        assert tuple(shard.tensors[name].shape) == tuple(tensor.shape), name
        assert bytes(shard.tensors[name].buffer) == as_bytes(tensor), name


def test_each_rank_maps_its_part_of_what_the_rules_make(group, model):
    path, seen = model
    for rank in range(2):
        with ckptd.connect(group.address(rank)) as client:
            sharded = client.load(path, layout="fsdp:2", dtype="BF16", view=RULES)
            with client.acquire(sharded) as shard:
                check(shard, {name: rows(tensor, rank, 2).to(torch.bfloat16) for name, tensor in seen.items()})
            parallel = client.load(path, layout=TENSOR_PARALLEL, view={"rules": RULES})
            with client.acquire(parallel) as shard:
                def part(name, tensor):
                    dim = 1 if name.endswith("experts") else 0 if name.endswith(".q") else None
                    return tensor if dim is None else torch.chunk(tensor, 2, dim)[rank]
                check(shard, {name: part(name, tensor) for name, tensor in seen.items()})
            assert client.verify(parallel).mismatched == ()
            found = client.inspect(path, view=RULES)
            assert {name: tensor.shape for name, tensor in found.tensors.items()} == {
                name: tuple(tensor.shape) for name, tensor in seen.items()}
            assert client.plan(path, layout="fsdp:2", view=RULES).storage_bytes == sum(t.nbytes for t in seen.values())


def test_another_view_is_another_checkpoint_and_the_same_one_is_shared(group, model, tmp_path):
    path, seen = model
    square = save(tmp_path / "square.safetensors", {"w": torch.arange(16.0).reshape(4, 4)})
    turned = [{"transpose": "w"}]
    with ckptd.connect(group.address(0)) as client, ckptd.connect(group.address(1)) as other:
        plain = client.load(square, layout="replicate:2")
        first = client.load(square, layout="replicate:2", view=turned)
        assert first.name != plain.name and not first.resident and first.differs == ("view",)
        # Nothing but strides tells the two apart.
        with client.acquire(plain) as before, client.acquire(first) as shard:
            assert bytes(before.tensors["w"].buffer) == as_bytes(torch.arange(16.0))
            assert bytes(shard.tensors["w"].buffer) == as_bytes(torch.arange(16.0).reshape(4, 4).t())
        again = other.load(square, layout="replicate:2", view={"rules": turned})
        assert (again.name, again.resident) == (first.name, True)
        with client.open(square) as shard:  # finds the one without a view, though it is older
            assert bytes(shard.tensors["w"].buffer) == as_bytes(torch.arange(16.0))
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": turned}, sort_keys=True, separators=(",", ":")))
    by_hand = group.json("load", square, "--layout", "replicate:2", "--view", rules, rank=1)
    assert (by_hand["checkpoint"]["name"], by_hand["resident"]) == (first.name, True)
    assert group.json("get", first.name)["view"] == rules.read_text()
    remote = group.json("inspect", path, "--remote", "--tensors", "--view", json.dumps({"rules": RULES}))
    assert [tensor["name"] for tensor in remote["tensors"]] == sorted(seen)


def test_a_model_attaches_to_what_the_view_makes_without_a_copy(group, model):
    path, seen = model
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
    for number, layer in enumerate(module.layers):
        layer.c_fc = torch.nn.Linear(6, 10, bias=False, device="meta")
        for name in ("q", "k", "v", "experts"):
            shape = seen[f"layers.{number}.{name}"].shape
            layer.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device="meta")))
    with ckptd.connect(group.address(0)) as client:
        result = load_into(module, path, view=RULES, rename=[("^layers", "layers")], client=client)
        state = load_file(path, view=RULES, client=client)
    assert result.missing == result.unexpected == [] and result.copied == {}
    for found in (module.state_dict(), state):
        assert found.keys() == seen.keys() and all(torch.equal(found[name], seen[name]) for name in seen)


@pytest.mark.parametrize("view, reason, words", [
    ("{", "LAYOUT_INVALID", "it is no JSON at byte 1"),
    ("no-such-set", "LAYOUT_INVALID", "the view no-such-set: there is none of this name"),
    ([{"drop": "w", "to": "v"}], "LAYOUT_INVALID", 'rule 1: "drop" takes no "to"'),
    ([{"drop": "v"}], "LAYOUT_MISMATCH", "rule 1 of the view (drop v): it matches no tensor"),
    ([{"slice": "w", "begin": 3, "end": 9}], "LAYOUT_MISMATCH", "(slice w) to w: its axis 0 has 4 elements"),
    ([{"rename": "w|x", "to": "v"}], "LAYOUT_MISMATCH", "it would be called v, as another tensor is"),
])
def test_a_view_that_does_not_fit_is_refused_by_reason_and_name(group, tmp_path, view, reason, words):
    path = save(tmp_path / "m.safetensors", {"w": torch.arange(4.0), "x": torch.arange(4.0)})
    for rank in range(2):
        with ckptd.connect(group.address(rank)) as client:
            for ask in (lambda: client.load(path, layout="fsdp:2", view=view), lambda: client.inspect(path, view=view)):
                with pytest.raises(ckptd.InvalidArgument) as refused:
                    ask()
                assert refused.value.reason == reason and words in str(refused.value)
