"""Boxes that plans read, their places in shards, and rules that state them; no daemon is needed."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.checkpoint")

from ckptd import _types  # noqa: E402
from ckptd.torch.dcp import _boxes, _layouts, _metadata  # noqa: E402
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex  # noqa: E402
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem  # noqa: E402


def source(shapes, **options):
    """What a daemon says of F32 tensors of these shapes."""
    tensors = {name: _types.SourceTensor(name, "F32", shape, "f", 0, 0, **options) for name, shape in shapes.items()}
    return _types.Source("/d", [], len(shapes), 0, {}, "id", tensors)


def reads(name, offsets, lengths, chunk=None):
    zeros = torch.Size([0] * len(offsets))
    return ReadItem(LoadItemType.TENSOR, MetadataIndex("there", zeros), zeros,
                    MetadataIndex(name, None if chunk is None else torch.Size(chunk)), torch.Size(offsets), torch.Size(lengths))


def value(shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def cut(tensor, box):
    return tensor[tuple(slice(begin, begin + n) for begin, n in zip(*box))]


def as_loaded(tensor, boxes):
    """What a shard has of `boxes`."""
    return torch.cat([cut(tensor, box) for box in boxes]) if tensor.dim() else tensor


@pytest.mark.parametrize("wanted", [
    [((0, 0), (4, 6))], [((1, 2), (2, 3))], [((0, 0), (1, 6)), ((3, 0), (1, 6))], [((2, 1), (2, 2)), ((0, 1), (1, 2))],
    [((0, 0), (2, 3)), ((1, 1), (2, 3))], [((0, 0), (1, 1)), ((2, 3), (1, 2))], [((1, 1), (1, 1))] * 2,
], ids=str)
def test_each_box_is_found_in_what_is_loaded(wanted):
    found, tensor = source({"w": (4, 6)}), value((4, 6))
    items = [reads("w", *box) for box in wanted]
    boxes = _boxes.wanted(items, found)["w"]
    for memory in (as_loaded(tensor, boxes), tensor):  # where it cannot load parts, the daemon loads all
        have = _boxes.placed("w", boxes, tuple(memory.shape), found)
        for item, box in zip(items, wanted):
            assert _boxes.part(memory, have, _boxes.box_of(item, found)).equal(cut(tensor, box))


def test_boxes_are_counted_from_their_chunk_and_empty_ones_left_out():
    found = source({"w": (4, 6), "scalar": (), "empty": (0, 2)})
    items = [reads("w", (1, 0), (1, 2), chunk=(2, 3)), reads("scalar", (), ()), reads("empty", (0, 0), (0, 2))]
    assert _boxes.wanted(items, found) == {"w": (((3, 3), (1, 2)),), "scalar": (((), ()),)}


def test_a_shard_of_another_shape_is_refused():
    with pytest.raises(_boxes.DataLoss, match=r"\[3, 6\] of it, and \[1, 2\] of \[4, 6\] was asked for"):
        _boxes.placed("w", (((0, 0), (1, 2)),), (3, 6), source({"w": (4, 6)}))


def given_by(layout, name, rank, tensor):
    """What a rank gets of a tensor by rules; None: nothing."""
    for rule in [*layout["rules"], {"match": [name], **layout["default"]}]:
        if name in rule["match"]:
            if rank not in rule.get("only_ranks", ()):
                return None
            if "mesh" not in rule:
                return tensor
            mesh = layout["meshes"][rule["mesh"]]
            assert sorted(set(mesh["ranks"])) == sorted(mesh["ranks"]), "a rank is in a mesh twice"
            assert set(mesh["ranks"]) <= set(range(layout["world_size"]))
            at = dict(zip(mesh["ranks"], itertools.product(*map(range, mesh["shape"]))))[rank]
            for place, count, placement in zip(at, mesh["shape"], rule["placements"]):
                if placement != "replicate":
                    dim = int(placement[len("shard("):-1])
                    step = -(-tensor.shape[dim] // count)
                    tensor = tensor.narrow(dim, *span(tensor.shape[dim], step, place))
            return tensor
    return None


def span(size, step, place):
    begin = min(size, place * step)
    return begin, min(size, begin + step) - begin


def test_rules_give_each_rank_its_boxes_or_more_and_others_nothing():
    draw = random.Random(3)
    exact = total = 0
    for _ in range(200):
        world = draw.randint(2, 8)
        shapes = {f"t{i}": tuple(draw.randint(1, 9) for _ in range(draw.randint(1, 3))) for i in range(4)}
        found, ranks = source(shapes), draw.sample(range(world), draw.randint(1, world - 1))
        wants = {rank: {} for rank in ranks}
        for name, shape in shapes.items():
            dim, count = draw.randrange(len(shape)), len(ranks)
            for place, rank in enumerate(ranks):
                begin, length = span(shape[dim], -(-shape[dim] // count), place)
                if length:
                    offsets, extents = _boxes.whole(shape)
                    wants[rank][name] = ((offsets[:dim] + (begin,) + offsets[dim + 1:],
                                          extents[:dim] + (length,) + extents[dim + 1:]),)
        layout = _layouts.rules(wants, found, world)
        for rank, (name, shape) in itertools.product(range(world), shapes.items()):
            got = given_by(layout, name, rank, value(shape))
            box = wants.get(rank, {}).get(name)
            if box is None:
                assert got is None
                continue
            want, total = cut(value(shape), box[0]), total + 1
            have = _boxes.placed(name, box, tuple(got.shape), found)
            assert _boxes.part(got, have, box[0]).equal(want)
            exact += got.shape == want.shape
    assert exact > 0.9 * total > 500


def test_boxes_that_are_no_chunks_are_loaded_whole():
    found = source({"w": (10,), "x": (2,), "y": (2,)})
    assert _layouts.rules({1: {"w": (((3,), (4,)),)}}, found, 4) == {
        "world_size": 4, "rules": [{"match": ["w"], "only_ranks": (1,)}], "default": {"drop": True}}


def test_what_most_tensors_get_is_not_spelled_out():
    found = source({f"t{i}": (4,) for i in range(9)})
    want = {name: (((0,), (4,)),) for name in found.tensors}
    assert _layouts.rules({2: want}, found, 4) == {"world_size": 4, "rules": [], "default": {"only_ranks": (2,)}}
    del want["t3"]
    assert _layouts.rules({2: want}, found, 4)["rules"] == [{"match": ["t3"], "drop": True}]


def test_the_layout_of_a_rank_has_each_sharding_once():
    found = source({"a": (4,), "b": (4,), "c": (4,), "d": (4,)})
    half, whole = (((0,), (2,)),), (((0,), (4,)),)
    layout = _layouts.of_rank({"d": whole, "a": half, "c": whole, "b": half}, found, 1, 3)
    assert (layout.rank, layout.world_size, layout.names) == (1, 3, ["a", "b", "c", "d"])
    assert layout.sharding_of == [0, 0, 1, 1]
    assert [sharding.boxes for sharding in layout.shardings] == [half, ()]


def test_metadata_says_what_a_source_holds():
    found = source({"model.a.b": (2, 3)})
    found.tensors["step"] = _types.SourceTensor("step", "U8", (9,), "f", 0, 9, kind="object")
    found.tensors["odd"] = _types.SourceTensor("odd", "F6_E2M3", (8,), "f", 0, 6)
    found.aliases["tied"] = "model.a.b"
    found.values[".metadata.planner_data.model.a.b"] = '["model", "a.b"]'
    found.values[".metadata.planner_data.step"] = '["other", "step"]'  # joins to another key
    found.metadata["dcp_version"] = "1.0.0"
    made = _metadata.metadata_of(found, "load")
    assert made.planner_data == {"model.a.b": ("model", "a.b"), "step": ("step",), "odd": ("odd",), "tied": ("tied",)}
    described = made.state_dict_metadata
    assert isinstance(described["step"], BytesStorageMetadata) and set(described) == {"model.a.b", "step", "odd", "tied"}
    for name in ("model.a.b", "tied"):
        assert (described[name].size, described[name].properties.dtype) == (torch.Size([2, 3]), torch.float32)
        chunk, = described[name].chunks
        assert (chunk.offsets, chunk.sizes) == (torch.Size([0, 0]), torch.Size([2, 3]))
    assert made.storage_meta.load_id == "load" and getattr(made, "version", "1.0.0") == "1.0.0"


def test_metadata_that_could_not_be_read_says_why_when_it_is_used():
    import ckptd

    error = ckptd.NotFound("opening /d: it is not there; look", "SOURCE_NOT_FOUND")
    refused = _metadata.RefusedMetadata(error)
    assert "SOURCE_NOT_FOUND" in repr(refused) and refused.planner_data is None
    with pytest.raises(ckptd.NotFound, match="it is not there"):
        refused.state_dict_metadata.items()


def test_a_reader_takes_paths_alone():
    import ckptd.torch

    with pytest.raises(TypeError, match="of type dict, no path"):
        ckptd.torch.StorageReader({})
    reader = ckptd.torch.StorageReader("/a")
    assert reader.checkpoint_id == "/a" and reader.validate_checkpoint_id("/b") and not reader.validate_checkpoint_id(3)
    reader.reset("/b")
    reader.reset()
    assert reader.checkpoint_id == "/b"
