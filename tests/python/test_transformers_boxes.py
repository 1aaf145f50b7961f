"""Boxes for indices, against PyTorch's own indexing."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from ckptd.transformers._boxes import BoxRequest, part_of, whole  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@st.composite
def indices(draw, dims=3, sizes=5):
    """(shape, an index that PyTorch takes)."""
    shape = tuple(draw(st.lists(st.integers(0, sizes), max_size=dims)))
    key = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        ends = st.one_of(st.none(), st.integers(-size - 1, size + 2))
        kinds = [st.builds(slice, ends, ends), st.builds(slice, ends, ends, st.integers(1, 3))]
        if size:
            inside = st.integers(0, size - 1)
            kinds += [st.integers(-size, size - 1), st.lists(inside, min_size=1, max_size=4)]
        key.append(draw(st.one_of(kinds)))
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), ...)
    return shape, tuple(key)


def numbered(shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def cut(tensor, box):
    return tensor[tuple(slice(at, at + size) for at, size in zip(*box))]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(indices())
def test_a_part_of_the_box_is_what_the_index_selects(case):
    shape, key = case
    tensor = numbered(shape)
    try:
        wanted = tensor[key]
    except IndexError:
        return
    part = part_of(key, shape)
    assert torch.equal(cut(tensor, part.box)[part.key], wanted)


@pytest.mark.parametrize(
    "key,box",
    [
        ((slice(2, 4), slice(None)), ((2, 0), (2, 6))),
        ((..., slice(1, 3)), ((0, 1), (8, 2))),
        (3, ((3, 0), (1, 6))),
        ((slice(None), [4, 2, 3]), ((0, 2), (8, 3))),
        (slice(5, 5), ((5, 0), (0, 6))),
    ],
)
def test_no_more_is_asked_for_than_the_index_selects(key, box):
    assert part_of(key, (8, 6)).box == box


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(*(st.integers(0, most) for most in (7, 4, 5, 3))), min_size=1, max_size=4))
def test_every_wanted_box_is_found_again_in_what_was_stated(corners):
    tensor = numbered((8, 6))
    boxes = [((r, c), (min(h, 8 - r), min(w, 6 - c))) for r, h, c, w in corners]
    wish = BoxRequest(boxes, (8, 6))
    local = torch.cat([cut(tensor, stated) for stated in wish.boxes])
    for box in boxes:
        assert torch.equal(local[wish.index_of(box)], cut(tensor, box))


def test_boxes_that_overlap_or_differ_in_width_become_one_around_them():
    apart = [((0, 0), (2, 6)), ((4, 0), (2, 6))]
    assert BoxRequest(apart, (8, 6)).boxes == apart
    assert BoxRequest([((0, 0), (3, 6)), ((2, 0), (2, 6))], (8, 6)).boxes == [((0, 0), (4, 6))]
    assert BoxRequest([((0, 0), (1, 2)), ((4, 1), (1, 3))], (8, 6)).boxes == [((0, 0), (5, 4))]
    assert BoxRequest([whole((8, 6))], (8, 6)).is_whole
