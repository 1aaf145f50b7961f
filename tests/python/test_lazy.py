"""LazyStateDict: what a look-up loads, gives and keeps."""

import json
import pickle

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
from ckptd.torch import _lazy  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

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
    return lambda: [json.loads(request.layout.rules)["rules"][0]["match"] for request in daemon.requests]


def test_small_tensors_come_together(lazy, loads):
    state = lazy(SMALL)
    for name in SMALL:
        assert torch.equal(state[name], SMALL[name])
    assert loads() == [sorted(SMALL)]


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)])
def test_no_more_small_tensors_come_together_than_the_bound_allows_in_any_order(lazy, loads, order, monkeypatch):
    monkeypatch.setattr(_lazy, "_NEAR", 1700)
    monkeypatch.setattr(_lazy, "_LEAST", 1)
    state = lazy(SMALL)
    for name in order(SMALL):
        assert torch.equal(state[name], SMALL[name])
    assert [len(names) for names in loads()] == [4, 4, 4]
    assert sum(value.nbytes for value in state._near.values()) <= 1700


def test_tiny_tensors_count_as_more_than_their_bytes(lazy, loads, monkeypatch):
    monkeypatch.setattr(_lazy, "_NEAR", 3 * _lazy._LEAST)
    lazy({f"{i}": torch.tensor(i) for i in range(7)})["0"]
    assert loads() == [["0", "1", "2"]]


def test_a_large_tensor_comes_alone_and_is_not_kept(lazy, loads):
    large = torch.arange((1 << 14) + 1, dtype=torch.float32)
    state = lazy({"large": large, **SMALL})
    assert torch.equal(state["large"], large)
    assert loads() == [["large"]] and not state._near


def test_what_is_written_into_a_value_is_not_in_the_next_one(lazy):
    state, name = lazy(SMALL), min(SMALL)
    state[name].fill_(77.0)
    assert torch.equal(state[name], SMALL[name])


def test_small_tensors_keep_no_lease_of_the_daemon(lazy, daemon):
    state = lazy(SMALL)
    value = state[min(SMALL)]
    daemon.wait_for(lambda: daemon.leases == 0)
    assert torch.equal(value, SMALL[min(SMALL)])


def test_a_neighbour_that_the_file_has_no_more_is_not_missed(lazy):
    state = lazy({"a": torch.ones(2), "b": torch.ones(3)})
    lazy({"a": torch.zeros(2)})
    assert torch.equal(state["a"], torch.zeros(2))
    with pytest.raises(ckptd.Aborted, match="it has no b now; read its names again") as caught:
        state["b"]
    assert caught.value.reason == "SOURCE_CHANGED"


def test_a_large_tensor_that_the_file_has_no_more_is_said_to_be_gone(lazy):
    state = lazy({"a": torch.ones(2), "large": torch.ones(1 << 18)})
    lazy({"a": torch.zeros(2)})
    with pytest.raises(ckptd.Aborted, match="it has no large now"):
        state["large"]


def test_each_of_them_goes_to_its_own_device(lazy):
    state = lazy(SMALL, devices={min(SMALL): "meta"})
    assert state[min(SMALL)].device.type == "meta" and state[max(SMALL)].device.type == "cpu"


def test_what_is_kept_is_not_pickled(lazy):
    state = lazy(SMALL)
    state[min(SMALL)]
    again = pickle.loads(pickle.dumps(state))
    assert again.entries == state.entries and state._near and not again._near
