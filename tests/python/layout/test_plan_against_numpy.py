"""Plans compared with plain index arithmetic on whole numpy arrays."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tool import PlanError, Source, plan_ranks


def chunk(indices, parts, which):
    size = -(-len(indices) // parts)
    return indices[which * size : (which + 1) * size]


def kept_indices(size, cuts, coordinates):
    """Indices that one rank keeps of one dimension. `cuts`: (mesh dimension,
    mesh size, split factor) in mesh order."""
    order = memory_order(cuts)
    indices = list(range(size))
    for dim, parts, factor in order if order is not None else cuts:
        if factor == 1 or order is not None:
            indices = chunk(indices, parts, coordinates[dim])
        else:
            pieces = [chunk(indices, factor, i) for i in range(factor)]
            indices = [i for p in pieces for i in chunk(p, parts, coordinates[dim])]
    return indices


def memory_order(cuts):
    """The order of cuts that explains all split factors, or None. By trying all:
    a split factor counts the parts made before by later mesh dimensions."""
    if all(factor == 1 for _, _, factor in cuts):
        return None
    for order in itertools.permutations(cuts):
        explained = all(
            math.prod(parts for d, parts, _ in order[:at] if d > dim) == factor
            for at, (dim, _, factor) in enumerate(order)
        )
        # Equal in all but size-1 dimensions, which never move anything.
        if explained:
            return list(order)
    return None


def expected_local(array, mesh_shape, placements, rank):
    coordinates = np.unravel_index(rank, mesh_shape)
    index = []
    for dim, size in enumerate(array.shape):
        cuts = [
            (i, mesh_shape[i], placement[2])
            for i, placement in enumerate(placements)
            if placement[0] != "replicate" and placement[1] % array.ndim == dim
        ]
        index.append(kept_indices(size, cuts, coordinates))
    return array[np.ix_(*index)] if array.ndim else array


def text_of(placement):
    kind, dim, factor = placement
    return {
        "replicate": "replicate",
        "shard": f"shard({dim})",
        "strided_shard": f"strided_shard({dim},{factor})",
    }[kind]


@st.composite
def sharded_tensors(draw):
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    if math.prod(mesh) > 16:
        mesh = mesh[:2]
    dims = st.integers(-len(shape), len(shape) - 1)
    placements = [
        draw(
            st.one_of(
                st.just(("replicate", 0, 1)),
                st.tuples(st.just("shard"), dims, st.just(1)),
                st.tuples(st.just("strided_shard"), dims, st.integers(1, 6)),
            )
        )
        for _ in mesh
    ]
    cuts = draw(st.lists(st.integers(0, shape[0]), max_size=2))
    stored = draw(st.none() | st.permutations(range(len(shape))))
    return shape, mesh, placements, {"cuts": cuts, "stored": stored}


def layout_of(mesh, sharding, names):
    return {
        "world_size": math.prod(mesh),
        "meshes": [{"shape": mesh, "ranks": list(range(math.prod(mesh)))}],
        "shardings": [sharding],
        "targets": [{"name": name, "sharding": 0} for name in names],
    }


@settings(max_examples=400, deadline=None)
@given(sharded_tensors())
def test_every_rank_gets_the_elements_that_index_arithmetic_names(case):
    shape, mesh, placements, how = case
    source = Source()
    source.add("before", (3,), np.uint8)
    source.add("x", shape, **how)
    layout = layout_of(mesh, {"mesh": 0, "placements": [text_of(p) for p in placements]}, ["x"])
    ranks = range(math.prod(mesh))
    results, _ = plan_ranks(source, ranks, layout=layout)
    for rank, result in zip(ranks, results):
        expected = expected_local(source.tensors["x"], mesh, placements, rank)
        np.testing.assert_array_equal(result["x"][0], expected)


@settings(max_examples=150, deadline=None)
@given(sharded_tensors())
def test_storage_is_read_once_for_all_ranks_together(case):
    shape, mesh, placements, how = case
    source = Source()
    source.add("x", shape, **how)
    layout = layout_of(mesh, {"mesh": 0, "placements": [text_of(p) for p in placements]}, ["x"])
    ranks = range(math.prod(mesh))
    _, reply = plan_ranks(source, ranks, layout=layout)
    assert reply["read_bytes"] == source.tensors["x"].nbytes


@settings(max_examples=150, deadline=None)
@given(sharded_tensors(), st.sets(st.integers(0, 15), min_size=1))
def test_read_bytes_is_the_union_of_what_some_ranks_keep(case, some):
    shape, mesh, placements, how = case
    source = Source()
    source.add("x", shape, **how)
    ranks = sorted(r for r in some if r < math.prod(mesh)) or [0]
    layout = layout_of(mesh, {"mesh": 0, "placements": [text_of(p) for p in placements]}, ["x"])
    _, reply = plan_ranks(source, ranks, layout=layout)
    kept = [expected_local(source.tensors["x"], mesh, placements, r).reshape(-1) for r in ranks]
    assert reply["read_bytes"] == 4 * len(np.unique(np.concatenate(kept)))


@st.composite
def boxed_tensors(draw):
    shape = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    edges = sorted(draw(st.sets(st.integers(0, shape[0]), min_size=2)) | {0, shape[0]})
    rows = draw(st.permutations(list(zip(edges[:-1], edges[1:]))))
    keep = draw(st.integers(1, len(rows)))
    inner = []
    for size in shape[1:]:
        begin = draw(st.integers(0, size - 1))
        inner.append((begin, draw(st.integers(begin + 1, size))))
    return shape, rows[:keep], inner


@settings(max_examples=200, deadline=None)
@given(boxed_tensors())
def test_boxes_lie_one_after_the_other(case):
    shape, rows, inner = case
    source = Source()
    source.add("x", shape)
    boxes = [
        {
            "offsets": [begin, *(b for b, _ in inner)],
            "extents": [end - begin, *(e - b for b, e in inner)],
        }
        for begin, end in rows
    ]
    (result,), _ = plan_ranks(source, [0], layout=layout_of([1], {"boxes": boxes}, ["x"]))
    window = source.tensors["x"][(slice(None), *(slice(b, e) for b, e in inner))]
    np.testing.assert_array_equal(result["x"][0], np.concatenate([window[b:e] for b, e in rows]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=8),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_fsdp_pads_every_rank_to_the_first_chunk(shapes, world, random):
    source = Source()
    names = [f"layer.{i}.w" for i in range(len(shapes))]
    random.shuffle(names)
    for name, shape in zip(names, shapes):
        source.add(name, shape)
    results, _ = plan_ranks(source, range(world), rules=f"fsdp:{world}")
    for name in names:
        whole = source.tensors[name]
        row_bytes = whole[:1].nbytes if whole.ndim and len(whole) else 0
        for rank, result in enumerate(results):
            local, padding = result[name]
            if whole.ndim == 0:
                np.testing.assert_array_equal(local, whole)
                assert padding == 0
                continue
            rows = -(-len(whole) // world)
            np.testing.assert_array_equal(local, whole[rank * rows : (rank + 1) * rows])
            assert local.nbytes + padding == rows * row_bytes


def test_padded_offsets_are_equal_on_all_ranks():
    source = Source()
    for name, shape in [("c", (301, 3)), ("a", (7, 100)), ("b", (1,))]:
        source.add(name, shape)
    _, reply = plan_ranks(source, range(4), rules="fsdp:4")
    places = {tuple((t["name"], t["offset"]) for t in plan["tensors"]) for plan in reply["plans"]}
    assert len(places) == 1


def test_a_refusal_has_a_reason():
    source = Source()
    source.add("x", (4,))
    with pytest.raises(PlanError) as error:
        plan_ranks(source, [0], layout=layout_of([1], {}, ["y"]))
    assert error.value.reason == "TENSOR_NOT_FOUND"
