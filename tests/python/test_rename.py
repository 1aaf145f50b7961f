"""rename= and ignore=: names of a checkpoint become those of a model."""

import re

import ckptd
import pytest

pytest.importorskip("torch")

from ckptd.torch.load._rename import ignored, renamed  # noqa: E402

NAMES = ["model.layers.0.weight", "model.layers.1.weight", "head"]


@pytest.mark.parametrize("rename, expected", [
    ({"head": "lm_head"}, ["model.layers.0.weight", "model.layers.1.weight", "lm_head"]),
    ({}, NAMES),
    (lambda name: f"net.{name}", [f"net.{name}" for name in NAMES]),
    ([(r"^model\.", ""), ("head", "out")], ["layers.0.weight", "layers.1.weight", "out"]),
    ([(r"layers\.(\d)", r"blocks.\1"), ("blocks", "b")], ["model.b.0.weight", "model.b.1.weight", "head"]),
    ([(re.compile("HEAD", re.I), "x")], [*NAMES[:2], "x"]),
    # Two may change places.
    ({NAMES[0]: NAMES[1], NAMES[1]: NAMES[0]}, [NAMES[1], NAMES[0], "head"]),
])
def test_a_renaming_is_a_dict_a_function_or_pairs_of_pattern_and_replacement(rename, expected):
    assert renamed(NAMES, rename) == dict(zip(NAMES, expected))
    assert list(renamed(NAMES, rename)) == NAMES


@pytest.mark.parametrize("rename, words", [
    ([("layers.*", "w")], ["'model.w'", "'model.layers.0.weight'", "'model.layers.1.weight'"]),
    ({"head": NAMES[0]}, ["of both", "'head'"]),
    ({"heads": "x"}, ["no 'heads'", "'x'", "names of the checkpoint"]),
    (lambda name: None, ["made None of 'model.layers.0.weight'"]),
    ([("(", "")], ["'(' is no regular expression"]),
    ([(3, "")], ["3 is no regular expression"]),
    (["ab"], ["'ab' is no pair", "(pattern, replacement)"]),
    ("ab", ["'ab' is none"]),
    (5, ["5 is none"]),
])
def test_a_renaming_that_cannot_be_meant_is_refused_by_name(rename, words):
    with pytest.raises(ckptd.InvalidArgument) as raised:
        renamed(NAMES, rename)
    assert raised.value.reason == "INVALID_REQUEST"
    assert all(word in str(raised.value) for word in ["rename=", *words]), raised.value


def test_what_may_be_unexpected_is_found_as_by_re_search():
    assert ignored(NAMES, [r"layers\.1", re.compile("^head$")]) == NAMES[1:]
    assert ignored(NAMES, []) == []


@pytest.mark.parametrize("patterns", ["head", ["["], [None]])
def test_patterns_that_are_none_are_refused(patterns):
    with pytest.raises(ckptd.InvalidArgument, match="ignore="):
        ignored(NAMES, patterns)
