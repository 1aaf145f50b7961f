"""Values of state dicts on their way from rank 0 to the others: plain data, of exactly their types."""

import collections
import enum
import io
import json
import math

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
from ckptd.torch.spread import _plain_values  # noqa: E402


def sent(value):
    return _plain_values.decode(json.loads(json.dumps(_plain_values.encode("a._extra_state", value))))


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        a, b = a.resolve_conj(), b.resolve_conj()
        return (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad) and torch.equal(
            a.detach().contiguous().reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, io.BytesIO):
        return (a.getvalue(), a.tell()) == (b.getvalue(), b.tell())
    if isinstance(a, complex):
        return repr(a) == repr(b)
    if isinstance(a, float):
        return math.isnan(a) and math.isnan(b) or (a, math.copysign(1, a)) == (b, math.copysign(1, b))
    return a == b


def at_three(data):
    stream = io.BytesIO(data)
    stream.seek(3)
    return stream


VALUES = [
    None, True, False, 0, -1, 2**63, -(2**200), "", "text \u00e9 \ud800 \x00", 0.0, -0.0, 0.1, 5e-324, 1.7e308,
    float("inf"), float("-inf"), float("nan"), 1 + 2j, complex("nan"), b"", b"\x00\xff", bytearray(b"ab"),
    [], (), {}, set(), frozenset({1}), {1, "a"}, [1, [2, (3, {"a": None})]], ["list", []], {"tuple": ("dict", [])},
    {1: 2, "1": 3, (1, 2): [4], None: 5, b"k": 6.5}, collections.OrderedDict([("b", 1), ("a", 2)]),
    torch.Size([2, 3]), torch.Size([]), torch.float8_e4m3fn, torch.bfloat16, torch.device("cuda:3"), torch.device("meta"),
    at_three(b"as TransformerEngine keeps it"), io.BytesIO(),
    torch.arange(6).reshape(2, 3), torch.tensor(1.5, dtype=torch.bfloat16), torch.empty(0, 4), torch.tensor([True, False]),
    torch.tensor([1 + 2j]).conj(), torch.arange(6.0).reshape(2, 3).t(), torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, dtype=torch.int32), requires_grad=False),
    {"scale": torch.ones(2), "history": [torch.zeros(1), 3], "recipe": ("hybrid", 16)},
]


@pytest.mark.parametrize("value", VALUES, ids=[f"{i}-{type(value).__name__}" for i, value in enumerate(VALUES)])
def test_plain_data_arrives_as_it_was_of_exactly_its_types(value):
    assert same(sent(value), value), sent(value)


class Own:
    pass


class OwnInt(int):
    pass


class Colour(enum.IntEnum):
    RED = 1


def deep():
    value = []
    for _ in range(200):
        value = [value]
    return value


def round_and_round():
    value = {}
    value["self"] = value
    return value


REFUSED = {
    "an object": Own(), "a class": Own, "a function": len, "a subclass of int": OwnInt(3), "an enum": Colour.RED,
    "a defaultdict": collections.defaultdict(list), "a namedtuple": collections.namedtuple("P", "x")(1),
    "a generator": torch.Generator(), "a tensor on meta": torch.empty(2, device="meta"),
    "a sparse tensor": torch.eye(2).to_sparse(), "a quantised one": torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8),
    "a nested one": torch.nested.nested_tensor([torch.ones(1)]), "a module": torch.nn.Linear(1, 1),
    "lists in lists": deep(), "a dict that holds itself": round_and_round(), "an endless int": 1 << 20_000,
    "too much": b"\0" * (65 << 20), "too many": [0] * (5 << 20), "a slice": slice(1),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_data_is_refused_by_name(value):
    for given in (value, {"state": [value]}):
        with pytest.raises(ckptd.Unimplemented, match="spreading a._extra_state: .* have get_extra_state give") as raised:
            _plain_values.encode("a._extra_state", given)
        assert raised.value.reason == "VALUE_UNSUPPORTED"


@pytest.mark.parametrize("data", [
    1.5, {}, {"a": 1}, [], ["list"], ["list", [], 1], [1, 2], ["os.system", "true"], ["__reduce__", []], ["dtype", "load"],
    ["dtype", "__class__"], ["Tensor", ["ops", [1], False, ""]], ["Tensor", ["float32", [3], False, "AAAA"]], ["list", 3],
])
def test_anything_else_makes_no_value(data):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        _plain_values.decode(data)
