"""The state of optimizers, from the names of a source's tensors and values. No daemon, no torch."""

import json

import pytest
from ckptd import FailedPrecondition, Unimplemented
from ckptd._types import Source, SourceTensor

_saved_optimizer = pytest.importorskip("ckptd.torch.resume._saved_optimizer")


def source(tensors, **values):
    found = Source("/s", [], 0, 0, {}, "")
    found.tensors = {name: SourceTensor(name, "F32", (1,), "/s", 0, 4, kind=kind) for name, kind in tensors.items()}
    found.values = {name: json.dumps(value) for name, value in values.items()}
    return found


def read(tensors, values, known=()):
    return _saved_optimizer.read(source(dict.fromkeys(tensors, "optimizer"), **values), known)


def test_numbers_are_matched_by_position():
    (found,) = read(
        ["state.0.exp_avg", "state.10.exp_avg"],
        {"param_groups.0.params.0": 0, "param_groups.0.params.1": 10, "param_groups.0.betas.0": 0.9,
         "param_groups.0.betas.1": 0.5, "state.10.step": 7},
    )
    assert found.by_position and [group.params for group in found.groups] == [["0", "10"]]
    assert found.groups[0].options == {"betas": [0.9, 0.5]}
    assert found.states_of("10") == ({"exp_avg": "state.10.exp_avg"}, {"step": 7})
    assert found.states_of("1") == ({}, {})


def test_a_name_is_the_longest_that_there_is():
    values = {f"param_groups.0.params.{i}": name for i, name in enumerate(["0.w", "0.w.q", "b"])}
    (found,) = read(["state.0.w.q.m", "state.0.w.q", "state.b.x.y", "state.c.m"], values)
    assert not found.by_position
    assert found.tensors == {"0.w.q": {"m": "state.0.w.q.m"}, "0.w": {"q": "state.0.w.q"}, "b": {"x.y": "state.b.x.y"}}
    assert found.unknown == ["state.c.m"]


def test_flattened_states_have_a_group_for_each_parameter():
    values = {"param_groups.0.w.lr": 0.5, "param_groups.0.w.betas.0": 0.25, "param_groups.b.lr": 1}
    (found,) = read(["state.0.w.m", "state.b.m"], values, known=["0.w", "b", "other"])
    assert [(group.params, group.options) for group in found.groups] == [
        (["0.w"], {"lr": 0.5, "betas": [0.25]}), (["b"], {"lr": 1})]
    assert found.tensors == {"0.w": {"m": "state.0.w.m"}, "b": {"m": "state.b.m"}}


def test_several_optimizers_are_in_the_order_of_their_numbers():
    values = {f"optimizer_states.{i}.param_groups.0.lr": i for i in (10, 9)}
    values |= {f"optimizer_states.{i}.param_groups.0.params.0": 0 for i in (10, 9)}
    found = read(["optimizer_states.10.state.0.m", "optimizer_states.9.state.0.m"], values)
    assert [each.groups[0].options["lr"] for each in found] == [9, 10]
    assert found[1].tensors == {"0": {"m": "optimizer_states.10.state.0.m"}}


def test_a_hyperparameter_may_be_a_tensor_and_an_object_is_its_value():
    tensors = {"param_groups.1.lr": "optimizer", "param_groups.1.eps": "object", "state.a.m": "optimizer"}
    values = {"param_groups.0.params": [], "param_groups.1.params.0": "a", "param_groups.1.eps": 0.5}
    (found,) = _saved_optimizer.read(source(tensors, **values), [])
    assert found.groups[0].params == []
    assert found.groups[1].option_tensors == {"lr": "param_groups.1.lr"} and found.groups[1].options == {"eps": 0.5}


def test_what_is_no_optimizer_and_what_is_too_long_is_refused():
    with pytest.raises(FailedPrecondition) as caught:
        read(["model.weight"], {"epoch": 3})
    assert caught.value.reason == "OPTIMIZER_MISSING"
    found = source({"state.0.m": "optimizer"}, **{"param_groups.0.params.0": 0})
    found.values["state.0.text"] = ""
    with pytest.raises(Unimplemented) as caught:
        _saved_optimizer.read(found, [])
    assert caught.value.reason == "VALUE_TOO_LONG"
