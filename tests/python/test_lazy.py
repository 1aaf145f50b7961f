"""LazyStateDict: what a look-up loads, gives and keeps."""

import collections
import copy
import gc
import io
import json
import operator
import pickle

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
from ckptd.torch.load import _file_tensor, _lazy_state_dict  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

SMALL = {f"layer.{i:02}.norm": torch.full((100,), float(i)) for i in range(12)}


@pytest.fixture
def lazy(daemon, tmp_path):
    """lazy(tensors) -> their LazyStateDict, of one file."""

    def make(tensors, **options):
        path = str(tmp_path / "m.safetensors")
        save_file(tensors, path, metadata={"format": "pt"})
        entries = ckptd.torch.load_state_dict(path, address=daemon.path).entries
        return ckptd.torch.LazyStateDict(entries, address=daemon.path, **options)

    return make


@pytest.fixture
def loads(daemon):
    """loads() -> the names that each load was of."""
    return lambda: [json.loads(request.spec.layout.rules)["rules"][0]["match"] for request in daemon.requests]


def test_small_tensors_come_together(lazy, loads):
    state = lazy(SMALL)
    for name in SMALL:
        assert torch.equal(state[name], SMALL[name])
    assert loads() == [sorted(SMALL)]


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)])
def test_no_more_small_tensors_come_together_than_the_bound_allows_in_any_order(lazy, loads, order, monkeypatch):
    monkeypatch.setattr(_lazy_state_dict, "_NEAR", 1700)
    monkeypatch.setattr(_lazy_state_dict, "_LEAST", 1)
    state = lazy(SMALL)
    for name in order(SMALL):
        assert torch.equal(state[name], SMALL[name])
    assert [len(names) for names in loads()] == [4, 4, 4]


def test_tiny_tensors_count_as_more_than_their_bytes(lazy, loads, monkeypatch):
    monkeypatch.setattr(_lazy_state_dict, "_NEAR", 3 * _lazy_state_dict._LEAST)
    lazy({f"{i}": torch.tensor(i) for i in range(7)})["0"]
    assert loads() == [["0", "1", "2"]]


def test_a_large_tensor_comes_alone(lazy, loads):
    large = torch.arange((1 << 14) + 1, dtype=torch.float32)
    state = lazy({"large": large, **SMALL})
    assert torch.equal(state["large"], large)
    assert loads() == [["large"]]


LARGE = {f"w{i:02}": torch.full((1 << 15,), float(i)) for i in range(16)}  # 128 KiB each


def test_look_ups_in_the_order_of_the_file_are_read_ahead_by_twice_as_much_each_time(lazy, loads, monkeypatch):
    monkeypatch.setattr(_lazy_state_dict, "_CHUNK", 2 << 17)
    state = lazy(LARGE)
    assert all(torch.equal(state[name], LARGE[name]) for name in state)
    assert [len(names) for names in loads()] == [1, 2, 4, 8, 1]


def test_no_more_is_read_ahead_at_once_than_the_bound_allows(lazy, loads, monkeypatch):
    monkeypatch.setattr(_lazy_state_dict, "_CHUNK", 2 << 17)
    monkeypatch.setattr(_lazy_state_dict, "_MOST", 3 << 17)
    state = lazy(LARGE)
    assert all(torch.equal(value, LARGE[name]) for name, value in state.items())
    assert [len(names) for names in loads()] == [1, 2, 3, 3, 3, 3, 1]


def test_look_ups_that_jump_about_bring_what_they_name_alone(lazy, loads):
    state = lazy(LARGE)
    for name in ("w05", "w02", "w09", "w07"):
        assert torch.equal(state[name], LARGE[name])
    assert loads() == [["w05"], ["w02"], ["w09"], ["w07"]]


def test_a_walk_goes_through_all_values_and_keeps_none(lazy, daemon):
    state = lazy({**LARGE, **SMALL})
    for name, value in state.walk():
        assert torch.equal(value, {**LARGE, **SMALL}[name])
        del value
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)
    assert all(isinstance(entry, _file_tensor.FileTensor) for entry in state.entries.values())


def test_small_tensors_keep_no_lease_of_the_daemon(lazy, daemon):
    state = lazy(SMALL)
    value = state[min(SMALL)]
    daemon.wait_for(lambda: daemon.leases == 0)
    assert torch.equal(value, SMALL[min(SMALL)])


def test_each_of_them_goes_to_its_own_device(lazy):
    state = lazy(SMALL, devices={min(SMALL): "meta"})
    assert {name: value.device.type for name, value in state.walk()} == {
        name: "meta" if name == min(SMALL) else "cpu" for name in SMALL}
    assert state[min(SMALL)].device.type == "meta" and state[max(SMALL)].device.type == "cpu"


# -- it is the dict of the whole checkpoint -------------------------------------

MIXED = {"z": torch.arange(6.0).reshape(2, 3), "b": torch.ones(1 << 15), "a": torch.tensor([True, False]),
         "large": torch.arange(1 << 15, dtype=torch.int32), "y.norm": torch.ones(3, dtype=torch.bfloat16)}


def assert_alike(mine, theirs):
    """Equal, or dicts of equal tensors in the same order."""
    assert isinstance(mine, dict) == isinstance(theirs, dict)
    if isinstance(theirs, dict):
        assert list(mine) == list(theirs) and len(mine) == len(theirs)
        for name, value in theirs.items():
            assert_alike(mine[name], value)
    elif isinstance(theirs, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs):
            assert_alike(one, other)
    else:
        assert mine == theirs


def changed(state, change):
    change(state)
    return state


def other_values():
    return {"b": torch.zeros(2), "new": torch.ones(1)}


def into_a_model(state):
    model = nn.ParameterDict({name.replace(".", "_"): torch.zeros_like(t) for name, t in MIXED.items()
                              if t.is_floating_point()})
    model.load_state_dict({n.replace(".", "_"): t for n, t in state.items() if t.is_floating_point()})
    return {name: value.detach() for name, value in model.items()}


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def written(state, path):
    save_file(state, path)
    return load_file(path)


AS_A_DICT = {
    "list": list, "reversed": lambda d: list(reversed(d)), "len": len, "bool": bool, "sorted": sorted,
    "keys": lambda d: list(d.keys()), "values": lambda d: list(d.values()), "items": lambda d: list(d.items()),
    "reversed values": lambda d: list(reversed(d.values())), "reversed items": lambda d: list(reversed(d.items())),
    "dict()": dict, "OrderedDict()": lambda d: dict(collections.OrderedDict(d)), "**": lambda d: {**d, "new": 1},
    "as arguments": lambda d: (lambda **named: named)(**d), "get": lambda d: [d.get("b"), d.get("no"), d.get("no", 3)],
    "in": lambda d: ["b" in d, "no" in d, 3 in d], "pop": lambda d: [d.pop("b"), d.pop("b", 7), d],
    "popitem": lambda d: [d.popitem(), d], "setdefault": lambda d: [d.setdefault("b", 1), d.setdefault("no", 2), d],
    "update": lambda d: changed(d, lambda d: d.update(other_values(), more=3)),
    "update of pairs": lambda d: changed(d, lambda d: d.update(list(other_values().items()))),
    "updated by it": lambda d: changed(other_values(), lambda other: other.update(d)),
    "|": lambda d: d | other_values(), "| from the left": lambda d: other_values() | d,
    "|=": lambda d: operator.ior(d, other_values()), "|= from the left": lambda d: operator.ior(other_values(), d),
    "| of OrderedDict": lambda d: dict(collections.OrderedDict(other_values()) | d),
    "del": lambda d: changed(d, lambda d: d.__delitem__("b")), "clear": lambda d: changed(d, lambda d: d.clear()),
    "== itself": lambda d: d == d, "== of a copy": lambda d: d == d.copy(), "== of another size": lambda d: d == {},
    "== of other names": lambda d: d == dict.fromkeys("vwxyz"), "!= itself": lambda d: d != d,
    "== of no dict": lambda d: [d == 3, d != 3], "== after a look": lambda d: [d["b"] is d["b"], d == d.copy()],
    "== of its values": lambda d: d == dict(d.items()), "= of its values, from the left": lambda d: dict(d.items()) == d,
    "copy()": lambda d: d.copy(), "copy.copy": copy.copy, "copy.deepcopy": copy.deepcopy,
    "pickle": lambda d: pickle.loads(pickle.dumps(d)), "torch.save": saved, "a model": into_a_model,
    "changed in place": lambda d: changed(d, lambda d: d["b"].mul_(0.5)),
    "changed while gone through": lambda d: changed(d, lambda d: [v.zero_() for v in d.values()]),
    "changed in items": lambda d: changed(d, lambda d: [v.zero_() for _, v in d.items()]),
    "changed by get": lambda d: changed(d, lambda d: d.get("z").fill_(7)),
    "changed by NumPy": lambda d: changed(d, lambda d: d["z"].numpy().fill(7)),
    "changed by .data": lambda d: changed(d, lambda d: d["b"].data.zero_()),
    "changed after a copy": lambda d: [c := d.copy(), d["b"].zero_(), c],
    "changed in a copy": lambda d: [c := copy.copy(d), c["b"].zero_(), d],
    "changed in a |": lambda d: [c := d | {"n": 1}, c["b"].zero_(), d],
    "changed after a deepcopy": lambda d: [d["z"], c := copy.deepcopy(d), d["b"].zero_(), d["z"].zero_(), c],
    "changed, then a pickle": lambda d: pickle.loads(pickle.dumps(changed(d, lambda d: d["b"].zero_()))),
    "replaced": lambda d: changed(d, lambda d: d.__setitem__("b", torch.ones(1))),
    "popped and put": lambda d: changed(d, lambda d: d.__setitem__("c", d.pop("b"))),
    "isinstance": lambda d: isinstance(d, dict), "json of names": lambda d: json.dumps(list(d)),
}


@pytest.mark.parametrize("what", AS_A_DICT)
def test_it_behaves_as_the_dict_that_safetensors_gives(lazy, tmp_path, what):
    state = lazy(MIXED)
    assert_alike(AS_A_DICT[what](state), AS_A_DICT[what](load_file(tmp_path / "m.safetensors")))


def test_it_is_written_as_a_dict_by_safetensors(lazy, tmp_path):
    state = lazy(MIXED)
    state["b"].mul_(0.5)
    assert_alike(written(state, tmp_path / "again"), written(changed(MIXED | {}, lambda d: d.update(b=MIXED["b"] * 0.5)), tmp_path / "x"))


def test_names_that_differ_are_unequal_and_values_are_compared_as_a_dict_s(lazy):
    state, other = lazy({"a": torch.ones(1), "b": torch.ones(2)}), {"a": torch.ones(1), "b": torch.ones(2)}
    with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
        assert {"a": torch.ones(1), "b": torch.ones(2)} == other
    with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
        assert state == other
    del state["b"], other["b"]
    assert state == other and other == state and not state != other
    assert (state == {"a": torch.zeros(1)}) is False


@pytest.mark.parametrize("use", [
    copy.copy, copy.deepcopy, lambda d: d | {"n": 1}, lambda d: {"n": 1} | d, lambda d: d.copy(), repr,
    lambda d: d == d.copy(), lambda d: list(reversed(d)), lambda d: d.identity(), lambda d: d.rename({"z": "c"}),
    lambda d: changed(ckptd.torch.LazyStateDict(), lambda new: new.update(d)), lambda d: ckptd.torch.LazyStateDict(d),
])
def test_nothing_is_read_where_no_value_is_looked_at(lazy, daemon, use):
    assert use(lazy(MIXED)) is not None
    assert "LoadCheckpoint" not in daemon.calls


def test_what_is_changed_in_place_is_what_a_model_gets(lazy, daemon):
    model = nn.Linear(4, 300)  # one small tensor, one large
    whole = {name: torch.randn_like(t) for name, t in model.state_dict().items()}
    for fill in (model.load_state_dict, ckptd.torch.DistModule(model, address=daemon.path).load_state_dict):
        state = lazy(whole)
        state["weight"].mul_(0.5)
        fill(state)
        assert torch.equal(model.weight, whole["weight"] * 0.5) and torch.equal(model.bias, whole["bias"])


def test_values_that_were_looked_at_and_not_changed_leave_it_the_same_for_other_ranks(lazy):
    state = lazy(MIXED)
    other = copy.deepcopy(state)
    state["b"], state["z"]
    assert state.identity() == other.identity()
    state["b"].add_(1)
    assert state.identity() != other.identity()
    other["b"].add_(1)
    assert state.identity() == other.identity()


def test_values_can_be_trained_though_they_were_looked_up_in_inference_mode(lazy):
    state = lazy(MIXED)
    with torch.inference_mode():
        found = state["b"], state["z"]
    for value in found:
        (value.requires_grad_() * 2).sum().backward()
        assert torch.equal(value.grad, torch.full_like(value, 2))


# -- files that are written while it waits --------------------------------------


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("look", [
    lambda d, n: d[n], lambda d, n: d.get(n), lambda d, n: d.pop(n), lambda d, n: list(d.values()),
    lambda d, n: list(d.items()), lambda d, n: list(d.walk()), lambda d, n: d.copy()[n],
    lambda d, n: copy.deepcopy(d)[n], lambda d, n: pickle.dumps(d), lambda d, n: (d | {})[n],
], ids=["[]", "get", "pop", "values", "items", "walk", "copy", "deepcopy", "pickle", "|"])
def test_a_file_that_was_written_since_is_an_error_and_never_its_new_values(lazy, look, name):
    state = lazy(MIXED)
    lazy({n: torch.zeros_like(t) for n, t in MIXED.items()})
    with pytest.raises(ckptd.Aborted, match="since the names of its tensors were read; read its names again") as caught:
        look(state, name)
    assert caught.value.reason == "SOURCE_CHANGED"


def test_what_was_looked_up_before_the_file_was_written_stays(lazy):
    state = lazy({**LARGE, "a": torch.ones(2), "b": torch.ones(3)})
    assert torch.equal(state["w03"], LARGE["w03"]) and torch.equal(state["a"], torch.ones(2))
    lazy({"a": torch.zeros(2)})
    assert torch.equal(state["w03"], LARGE["w03"]) and torch.equal(state["a"], torch.ones(2))
    for name in ("w04", "w15"):
        with pytest.raises(ckptd.Aborted):
            state[name]


def test_a_model_is_not_filled_from_a_file_that_was_written_since(lazy, daemon):
    model = nn.Linear(4, 3)
    before = copy.deepcopy(model.state_dict())
    state = lazy(model.state_dict())
    lazy({name: t + 1 for name, t in model.state_dict().items()})
    with pytest.raises(ckptd.Aborted, match="read its names again"):
        ckptd.torch.DistModule(model, address=daemon.path).load_state_dict(state)
    assert_alike(dict(model.state_dict()), dict(before))


# -- other names ----------------------------------------------------------------


@pytest.mark.parametrize("rule", [
    {"z": "c", "b": "d"}, lambda name: {"z": "c", "b": "d"}.get(name, name), [("^z$", "c"), ("^b$", "d")]],
    ids=["dict", "function", "pairs"])
def test_names_are_changed_by_a_dict_a_function_or_patterns(lazy, rule):
    state = lazy(MIXED)
    renamed = state.rename(rule)
    assert list(renamed) == ["c" if n == "z" else "d" if n == "b" else n for n in state]
    renamed["d"].mul_(0.5)  # the same values
    assert torch.equal(state["b"], MIXED["b"] * 0.5) and torch.equal(renamed["c"], MIXED["z"])


def test_two_names_that_become_one_are_refused(lazy):
    with pytest.raises(ckptd.InvalidArgument, match="'same' of both"):
        lazy(MIXED).rename(lambda name: "same")


def test_a_model_is_filled_by_the_new_names(lazy, daemon):
    model = nn.Linear(4, 300)
    whole = {f"net.{name}": torch.randn_like(t) for name, t in model.state_dict().items()}
    renamed = lazy(whole).rename([(r"^net\.", "")])
    ckptd.torch.DistModule(model, address=daemon.path).load_state_dict(renamed)
    assert_alike(dict(model.state_dict()), {name[4:]: value for name, value in whole.items()})


# -- further names of one tensor -------------------------------------------------


@pytest.mark.parametrize("looks", [("w", "tie"), ("tie", "w")])
def test_further_names_of_a_tensor_have_its_value(daemon, tmp_path, looks):
    save_file({"w": torch.ones(2, 3), "v": torch.ones(2)}, tmp_path / "m.safetensors")
    with ckptd.connect(daemon.path) as client:
        found = client.inspect(tmp_path / "m.safetensors")
    found.aliases["tie"] = "w"  # as daemons read it from the file's metadata
    state = ckptd.torch.LazyStateDict(_file_tensor.entries_in(found), address=daemon.path)
    first, second = looks
    state[first].mul_(3)
    assert list(state) == ["v", "w", "tie"] and state[second] is state[first]
    assert torch.equal(state.copy().rename({second: "x"})["x"], torch.full((2, 3), 3.0))
