"""Flat parameters compared with numpy's flattening over random members and ranks, and
with the shards that FSDP1 itself makes on a fake process group."""

import numpy as np
import pytest
from plan_tool import PlanError, Source, plan_ranks

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch import nn  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

PLAIN, CUT = 0, 1
SEEDS = range(40)


def layout_of(flats, world, mesh=None):
    """flats: name -> (elements, {member: begin}), each cut over all ranks of the mesh."""
    ranks = list(range(world)) if mesh is None else mesh
    return {
        "world_size": world,
        "meshes": [{"shape": [len(ranks)], "ranks": ranks}],
        "shardings": [{}, {"mesh": 0, "placements": ["shard(0)"], "padded_dim": 0}],
        "flats": [
            {"name": name, "sharding": CUT, "elements": elements}
            for name, (elements, _) in flats.items()
        ],
        "targets": sorted(
            (
                {"name": member, "sharding": PLAIN, "flat": number, "begin": begin}
                for number, (_, members) in enumerate(flats.values())
                for member, begin in members.items()
            ),
            key=lambda target: target["name"],
        ),
    }


def flattened(source, members, align, world):
    """(the flat tensor with zeros for padding, where each member begins)."""
    parts, begins, at = [], {}, 0
    for name in members:
        pad = -at % align
        begins[name] = at + pad
        values = source.tensors[name].reshape(-1)
        parts += [np.zeros(pad, values.dtype), values]
        at = begins[name] + values.size
    if align > 1:
        parts.append(np.zeros(-at % world, np.uint32))
    return np.concatenate(parts), begins


def chunk_of(flat, world, rank):
    """FSDP1's: ceil chunks, short ones padded to the first one's size."""
    size = -(-flat.size // world)
    chunk = flat[rank * size : (rank + 1) * size]
    return np.concatenate([chunk, np.zeros(size - chunk.size, flat.dtype)])


def random_source(rng, count):
    source = Source()
    for i in range(count):
        shape = tuple(int(n) for n in rng.integers(1, 7, size=rng.integers(1, 5)))
        cuts = sorted(set(rng.integers(1, shape[0], size=2).tolist())) if shape[0] > 2 else ()
        source.add(f"t{i}", shape, cuts=cuts)
    return source


@pytest.mark.parametrize("seed", SEEDS)
def test_each_rank_gets_its_chunk_of_what_numpy_flattens(seed):
    rng = np.random.default_rng(seed)
    world, align = int(rng.integers(1, 9)), int(rng.choice([1, 4, 8]))
    source = random_source(rng, int(rng.integers(1, 8)))
    names = list(rng.permutation(list(source.tensors)))
    split = int(rng.integers(0, len(names)))
    flats, expected = {}, {}
    for name, members in (("one", names[: split + 1]), ("two", names[split + 1 :])):
        if members:
            flat, begins = flattened(source, members, align, world)
            flats[name], expected[name] = (flat.size, begins), flat
    results, reply = plan_ranks(source, range(world), layout=layout_of(flats, world))
    for rank, result in enumerate(results):
        for name, flat in expected.items():
            assert result[name][0].tobytes() == chunk_of(flat, world, rank).tobytes()
    assert reply["read_bytes"] == 4 * sum(values.size for values in source.tensors.values())


def test_a_member_in_one_piece_is_one_copy():
    source = Source()
    source.add("x", (5, 7, 3))
    _, reply = plan_ranks(source, range(4), layout=layout_of({"f": (105, {"x": 0})}, 4))
    assert [len(plan["ops"]) for plan in reply["plans"]] == [1, 1, 1, 1]


def test_members_share_bytes_with_no_other_rank():
    source = Source()
    source.add("a", (10,))
    source.add("b", (11,))
    layout = layout_of({"f": (21, {"b": 0, "a": 11})}, 3)
    results, _ = plan_ranks(source, range(3), layout=layout)
    assert [[r[n][0].size for n in "ab"] for r in results] == [[0, 7], [3, 4], [7, 0]]


def test_a_rank_outside_of_the_mesh_has_no_part_in_a_flat_parameter():
    source = Source()
    source.add("a", (10,))
    _, reply = plan_ranks(source, [3], layout=layout_of({"f": (10, {"a": 0})}, 4, mesh=[0, 1]))
    assert reply["plans"][0]["flats"] == [] and reply["plans"][0]["slab_bytes"] == 0


@pytest.mark.parametrize(
    ("elements", "begins"),
    [(20, {"a": 0, "b": 9}), (20, {"a": 0, "b": 11}), (19, {"b": 0, "a": 10}), (20, {"a": 2**63})],
)
def test_members_that_overlap_or_end_too_late_are_refused(elements, begins):
    source = Source()
    source.add("a", (10,))
    source.add("b", (10,))
    with pytest.raises(PlanError) as refused:
        plan_ranks(source, [0], layout=layout_of({"f": (elements, begins)}, 2))
    assert refused.value.reason == "LAYOUT_MISMATCH"


def test_members_of_two_dtypes_are_refused():
    source = Source()
    source.add("a", (10,))
    source.add("b", (10,), dtype=np.float32)
    with pytest.raises(PlanError, match="LAYOUT_MISMATCH.*ask for one dtype"):
        plan_ranks(source, [0], layout=layout_of({"f": (20, {"a": 0, "b": 10})}, 2))


class Odd(nn.Module):
    """Parameters of sizes that divide by nothing, one of them tied."""

    def __init__(self, source):
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(7), nn.Linear(5, 5))
        self.second[2].weight = self.second[0].weight
        self.third = nn.Linear(5, 7, bias=False)
        for name, param in self.named_parameters():
            source.add(name, tuple(param.shape), dtype=np.float32)
            param.data = torch.from_numpy(source.tensors[name].copy())


def shards_of(use_orig_params, world, rank):
    """(source, flat parameters as stated, local shards) of one rank of FSDP1."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        source = Source()
        model = FSDP(
            Odd(source),
            auto_wrap_policy=lambda module, recurse, **_: recurse or type(module) is nn.Sequential,
            use_orig_params=use_orig_params,
            device_id=torch.device("cpu"),
        )
        flats, shards = {}, {}
        for number, unit in enumerate(FSDP.fsdp_modules(model)):
            flat = unit._flat_param
            if flat is None:
                continue
            begins, at = {}, 0
            prefix = next(n for n, m in model.named_modules() if m is unit)
            names = iter(flat._fqns)
            for numel, padding in zip(flat._numels_with_padding, flat._is_padding_mask):
                if not padding:
                    full = f"{prefix}.{next(names)}".replace("_fsdp_wrapped_module", "")
                    begins[".".join(part for part in full.split(".") if part)] = at
                at += numel
            flats[f"unit{number}"] = (at, begins)
            shards[f"unit{number}"] = flat.detach().numpy().copy()
        return source, flats, shards
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fsdp1_has_the_same_shards(world, use_orig_params):
    for rank in range(world):
        source, flats, shards = shards_of(use_orig_params, world, rank)
        (result,), _ = plan_ranks(source, [rank], layout=layout_of(flats, world))
        assert len(shards) == 2
        for name, shard in shards.items():
            # Between members FSDP1 has 42, which is also the value of one element.
            both = result[name][0], shard
            ours, theirs = (np.where(values == 42, 0, values) for values in both)
            assert ours.tobytes() == theirs.tobytes(), (rank, name)
