"""Plain values of a source as nested dicts and lists, with their types. No daemon."""

import json

import pytest
from ckptd._types import Source

_value_tree = pytest.importorskip("ckptd.torch.resume._value_tree")


def tree(values, **types):
    """Of JSON values by name, and of what is told of them."""
    found = Source("/s", [], 0, 0, {}, "")
    found.values = {name: json.dumps(value) for name, value in values.items()}
    found.values.update({f".types.{name}": json.dumps(told) for name, told in types.items()})
    return _value_tree.with_lists(_value_tree.tree(found))


def test_names_are_split_at_dots_and_numbers_from_0_on_are_lists():
    assert tree({"a.b": 1, "l.0": "x", "l.1.c": None, "n.1": 2}) == {"a": {"b": 1}, "l": ["x", {"c": None}], "n": {"1": 2}}


def test_keys_and_values_have_the_types_that_are_told():
    found = tree(
        {"s.5": 1, "s.0": 2, "s.t": 3, "(1, 2)": "b'a'", "d.0": 4, "d.1": 5, "e.f": [], "p.q.r": 6},
        **{"s.5": {"below": "", "path": [["dict", "s"], ["dict", 5]]},
           "s.0": {"below": "", "path": [["dict", "s"], ["dict", 0]]},
           "(1, 2)": {"below": "", "path": [["dict", ["tuple", [1, 2]]]], "value": ["bytes", "YQ=="]},
           "d.0": {"below": "", "path": [["dict", "d"], ["tuple", 0]]},
           "d.1": {"below": "", "path": [["dict", "d"], ["tuple", 1]]},
           "e.f": {"below": "e", "path": [["dict", "f"]], "value": ["tuple", []]},
           "p.q.r": {"below": "p", "path": [["dict", "q.r"]]}})
    assert found == {"s": {5: 1, 0: 2, "t": 3}, (1, 2): b"a", "d": (4, 5), "e": {"f": ()}, "p": {"q.r": 6}}


@pytest.mark.parametrize("told", [
    "a text of the file's own", {}, {"below": "", "path": 3}, {"below": "", "path": [["module", "a"]]},
    {"below": "", "path": [["dict", ["os.system", "true"]]]}, {"below": "", "path": [["dict", ["list", []]]]},
    {"below": "", "path": [["list", "x"]]}, {"below": "", "path": [], "value": ["object", "a"]}])
def test_nonsense_tells_nothing(told):
    assert tree({"a.b": 1}, **{"a.b": told}) == {"a": {"b": 1}}
