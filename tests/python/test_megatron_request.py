"""What ShardedTensors of one rank ask for: any boxes and runs of one tensor, against slices of it."""

import collections
import fractions
import math
import types

import pytest

torch = pytest.importorskip("torch")
from ckptd.megatron import _request, _values  # noqa: E402
from ckptd.megatron._wanted import Stored  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from megatron_objects import PLAIN  # noqa: E402

F32 = _request._memory.number_of(torch.float32)


class FakeShard:
    """Has what a daemon gives of a layout: boxes one after another along dimension 0."""

    def __init__(self, layout, tensors):
        self.table = types.SimpleNamespace(index={name: name for name in layout.names})
        self.tensors, self.elements = {}, 0
        for name, sharding in zip(layout.names, layout.sharding_of):
            boxes = layout.shardings[sharding].boxes
            parts = [tensors[name][tuple(slice(at, at + n) for at, n in zip(*box))] for box in boxes]
            self.tensors[name] = torch.cat(parts) if parts else tensors[name].clone()
            self.elements += self.tensors[name].numel()


@pytest.fixture(autouse=True)
def memory_of_the_fake(monkeypatch):
    monkeypatch.setattr(_request._memory, "whole", lambda shard, name: shard.tensors[name])


@st.composite
def entries(draw):
    """(shape in the checkpoint, shape here, [(prepended axes, offsets, extents, run or None)])"""
    dims = draw(st.integers(1, 4))
    here = draw(st.lists(st.integers(1, 5), min_size=dims, max_size=dims))
    stored = draw(st.one_of(st.just(here), st.lists(st.integers(1, 6), min_size=dims, max_size=dims)))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        lead = draw(st.integers(0, dims - 1))
        offsets = [draw(st.integers(0, size - 1)) for size in here]
        extents = [1 if axis < lead else draw(st.integers(0, size - at))
                   for axis, (size, at) in enumerate(zip(here, offsets))]
        count = math.prod(extents)
        ends = sorted(draw(st.tuples(st.integers(0, count), st.integers(0, count))))
        found.append((lead, offsets, extents, draw(st.sampled_from([None, slice(*ends)]))))
    return tuple(stored), tuple(here), found


@settings(max_examples=400, deadline=None)
@given(entries(), st.booleans())
def test_any_boxes_and_runs_are_slices_of_the_tensor(case, filled):
    stored, here, places = case
    whole = torch.arange(1.0, 1 + math.prod(stored)).reshape(stored)
    padded = torch.zeros([max(sizes) for sizes in zip(stored, here)])
    padded[tuple(map(slice, stored))] = whole
    state, right = [], []
    for lead, offsets, extents, run in places:
        local = padded[tuple(slice(at, at + size) for at, size in zip(offsets, extents))].reshape(extents[lead:])
        local = local if run is None else local.reshape(-1)[run]
        data = torch.full(local.shape, 9.0) if filled else None
        state.append(PLAIN.ShardedTensor("w", data, torch.float32, tuple(extents[lead:]), here, tuple(offsets), None, 0, lead,
                                         stored != here, run))
        right.append(local)
    request = _request.Request(state, {"w": Stored(F32, stored)})
    shard = FakeShard(request.layout(0, 1), {"w": whole})
    for entry, found, expected in zip(state, request.values(shard, None), right):
        assert torch.equal(found, expected) and found.shape == expected.shape
        assert entry.data is None or found.data_ptr() == entry.data.data_ptr()


@pytest.mark.parametrize("run, rows", [(slice(0, 60), 4), (slice(0, 15), 1), (slice(16, 17), 0), (slice(14, 16), 2)])
def test_a_run_is_read_with_the_rows_that_it_touches(run, rows):
    whole = torch.arange(60.0).reshape(4, 3, 5)
    entry = PLAIN.ShardedTensor("w", None, torch.float32, (4, 3, 5), (4, 3, 5), (0, 0, 0), (1, 1, 1), flattened_range=run)
    request = _request.Request([entry], {"w": Stored(F32, (4, 3, 5))})
    shard = FakeShard(request.layout(0, 1), {"w": whole})
    assert shard.elements == (15 * rows or 1)
    assert torch.equal(request.values(shard, None)[0], whole.reshape(-1)[run])


def test_boxes_of_experts_and_layers_lie_one_after_another_and_nothing_else_is_asked_for():
    whole = torch.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2)
    state = [PLAIN.ShardedTensor("w", None, torch.float32, (2, 2), (4, 6, 4, 2), (layer, expert, row, 0), (4, 6, 2, 1),
                                 prepend_axis_num=2)
             for layer in (1, 3) for expert in (0, 4) for row in (0, 2)]
    request = _request.Request(state, {"w": Stored(F32, (4, 6, 4, 2))})
    shard = FakeShard(request.layout(0, 1), {"w": whole})
    assert shard.elements == 8 * 4
    for entry, found in zip(state, request.values(shard, None)):
        layer, expert, row, _ = entry.global_offset
        assert torch.equal(found, whole[layer, expert, row : row + 2])


@pytest.mark.parametrize("there, here, asked", [
    (torch.float32, torch.bfloat16, torch.bfloat16), (torch.int64, torch.int32, torch.int64), (torch.float32, torch.int32, torch.float32),
])
def test_daemons_cast_floating_tensors_and_the_rank_all_others(there, here, asked):
    number = _request._memory.number_of
    entry = PLAIN.ShardedTensor("w", None, here, (2,), (2,), (0,), (1,))
    request = _request.Request([entry], {"w": Stored(number(there), (2,))})
    assert request.layout(0, 1).dtypes == [number(asked)]


def test_objects_under_one_key_are_those_of_the_stored_list():
    entry = PLAIN.ShardedObject("o", None, (1,), (0,))
    request = _request.Request({"a": entry, "b": [entry]}, {"o/shard_0_1": Stored(0, (3,), True)})
    shard = FakeShard(request.layout(0, 1), {"o/shard_0_1": torch.tensor([1, 2, 3], dtype=torch.uint8)})
    read = []
    assert request.values(shard, lambda file: read.append(file.read()) or [7]) == {"a": 7, "b": [7]}
    assert read == [b"\1\2\3"]


def test_plain_values_are_read_by_torch_and_others_are_named(tmp_path):
    import numpy

    path = str(tmp_path / "common.pt")
    values = {"state": numpy.random.RandomState(1).get_state(), "number": numpy.float32(3), "dtype": torch.bfloat16}
    torch.save(values, path)
    found = _values.reader((), None)(path)
    assert (found["state"][1] == values["state"][1]).all() and found["number"] == 3 and found["dtype"] is torch.bfloat16
    torch.save({"a": fractions.Fraction(1, 2)}, path)
    with pytest.raises(_values.Unimplemented, match=r"Fraction.*allow=\[") as raised:
        _values.reader((), None)(path)
    assert raised.value.reason == "VALUE_UNSUPPORTED"
    (tmp_path / "common.pt").write_bytes(b"no file of torch")
    with pytest.raises(Exception):
        _values.reader((), None)(path)


def test_a_tensor_that_is_asked_for_in_two_types_comes_as_it_is_stored():
    entries = [PLAIN.ShardedTensor("w", None, dtype, (2,), (2,), (0,), (1,)) for dtype in (torch.bfloat16, torch.float32)]
    request = _request.Request(entries, {"w": Stored(F32, (2,))})
    shard = FakeShard(request.layout(0, 1), {"w": torch.tensor([1.0, 1 / 3])})
    assert request.layout(0, 1).dtypes == [F32]
    assert [one.tolist() for one in request.values(shard, None)] == [[1, torch.tensor(1 / 3).bfloat16().item()],
                                                                     [1, torch.tensor(1 / 3).item()]]


def test_another_shape_is_an_error_unless_it_is_allowed():
    entry = PLAIN.ShardedTensor("w", None, torch.float32, (3,), (3,), (0,), (1,))
    with pytest.raises(Exception, match=r"\(3,\) here and \(2,\) in the checkpoint"):
        _request.Request([entry], {"w": Stored(F32, (2,))})


def test_what_others_have_named_to_torch_stays_named(tmp_path):
    torch.save({"a": collections.Counter()}, tmp_path / "a.pt")
    torch.serialization.add_safe_globals([collections.Counter])
    _values.reader((), None)(str(tmp_path / "a.pt"))
    assert collections.Counter in torch.serialization.get_safe_globals()
