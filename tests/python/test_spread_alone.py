"""The functions that spread rank 0's state, in a process that is alone; and errors between ranks."""

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
from ckptd.torch.agree import _failures  # noqa: E402
from ckptd.torch.spread import _staging  # noqa: E402
from fake_slab import Refusal  # noqa: E402
from fsdp_bench import Net, numbers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402


def assert_filled(model, state):
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_process_that_is_alone_needs_no_process_group(daemon, tmp_path, in_memory):
    state, model = numbers(Net()), Net()
    save_file(state, tmp_path / "m.safetensors")
    given = state if in_memory else tmp_path / "m.safetensors"
    result = ckptd.torch.DistModule(model, address=daemon.path).load_state_dict(given)
    assert result == Net().load_state_dict(state)
    assert_filled(model, state)


@pytest.mark.parametrize("code,reason", [(7, "SOURCE_UNREADABLE"), (15, "SOURCE_INVALID")])
def test_a_state_dict_is_copied_only_for_a_daemon_that_cannot_read_it(daemon, monkeypatch, code, reason):
    copies, copy = [], _staging.MemoryFile
    monkeypatch.setattr(_staging, "MemoryFile", lambda image: copies.append(image) or copy(image))
    for expected in (0, 1):
        if expected:  # as one that may not, or one that is older
            daemon.fail_next["InspectCheckpoint"] = [Refusal(code, reason, "it cannot")]
        state, model = numbers(Net()), Net()
        ckptd.torch.DistModule(model, address=daemon.path).load_state_dict(state)
        assert_filled(model, state)
        assert len(copies) == expected


def test_a_daemon_that_fails_otherwise_is_no_reason_to_copy(daemon, monkeypatch):
    monkeypatch.setattr(_staging, "MemoryFile", lambda image: pytest.fail("copied"))
    daemon.fail_next["InspectCheckpoint"] = [Refusal(8, "NO_MEMORY", "it is full")]
    with pytest.raises(ckptd.ResourceExhausted, match="it is full"):
        ckptd.torch.DistModule(Net(), address=daemon.path).load_state_dict(numbers(Net()))


def test_one_of_several_processes_without_a_group_is_told_so(daemon, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ckptd.FailedPrecondition, match="init_process_group") as raised:
        ckptd.torch.DistModule(Net(), address=daemon.path).load_state_dict(numbers(Net()))
    assert raised.value.reason == "NO_PROCESS_GROUP"


def test_a_name_of_a_file_can_be_taken_twice(daemon, tmp_path):
    state = {"a.weight": torch.randn(3, 3), "a.bias": torch.randn(3)}
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})
    lazy = ckptd.torch.load_state_dict(tmp_path / "m.safetensors", address=daemon.path)
    entries = {f"{new}.{what}": lazy.entries[f"a.{what}"] for new in "ab" for what in ("weight", "bias")}
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    renamed = ckptd.torch.LazyStateDict(entries, address=daemon.path)
    ckptd.torch.DistModule(model, address=daemon.path).load_state_dict(renamed)
    for name in "ab":
        assert torch.equal(model[name].weight, state["a.weight"])
        assert torch.equal(model[name].bias, state["a.bias"])


def test_two_names_of_a_file_can_change_places(daemon, tmp_path):
    state = {"a.weight": torch.randn(3, 3), "b.weight": torch.randn(3, 3)}
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})
    lazy = ckptd.torch.load_state_dict(tmp_path / "m.safetensors", address=daemon.path)
    lazy = lazy.rename({"a.weight": "b.weight", "b.weight": "a.weight"})
    model = nn.ModuleDict({n: nn.Linear(3, 3, bias=False) for n in "ab"})
    ckptd.torch.DistModule(model, address=daemon.path).load_state_dict(lazy)
    assert torch.equal(model["a"].weight, state["b.weight"])
    assert torch.equal(model["b"].weight, state["a.weight"])


@pytest.mark.parametrize("make", [lambda t: "text", lambda t: t.numpy(), lambda t: t.tolist()], ids=["str", "numpy", "list"])
def test_a_value_that_is_no_tensor_is_refused_under_a_tensor_s_name_as_torch_does(daemon, make):
    state = numbers(Net())
    state["up.bias"] = make(state["up.bias"])
    with pytest.raises(RuntimeError) as theirs:
        Net().load_state_dict(state)
    with pytest.raises(RuntimeError) as ours:
        ckptd.torch.DistModule(Net(), address=daemon.path).load_state_dict(state)
    sentence = str(theirs.value).partition("\n\t")[2].strip().rstrip(".")
    assert "expected torch.Tensor or Tensor-like object" in sentence and sentence in str(ours.value)


@pytest.mark.parametrize("given", [None, 3])
def test_what_is_neither_a_dict_nor_a_path_is_refused_as_torch_does(daemon, given):
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like"):
        Net().load_state_dict(given)
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like, or a path, got <class"):
        ckptd.torch.DistModule(Net(), address=daemon.path).load_state_dict(given)


def test_another_fallback_than_the_original_is_refused():
    with pytest.raises(ckptd.InvalidArgument, match="'native'"):
        ckptd.torch.DistModule(Net(), fallback="copy")


class Own(Exception):
    pass


@pytest.mark.parametrize("error,kind", [
    (KeyError("lost"), KeyError), (ValueError("bad"), ValueError), (FileNotFoundError(2, "no file"), OSError),
    (Own("odd"), RuntimeError), (KeyboardInterrupt("stop"), RuntimeError),
])
def test_an_error_keeps_its_kind_on_its_way_to_other_ranks(error, kind):
    heard = _failures.deserialise(_failures.serialise(error, 3))
    assert type(heard) is kind and "rank 3: " in str(heard)
    assert str(error.args[-1]) in str(heard)
    if type(error) is Own:
        assert "Own: odd" in str(heard)


def test_an_error_of_ours_keeps_reason_and_facts_on_its_way():
    error = ckptd.NotFound("loading x: gone", "SOURCE_NOT_FOUND", {"file": "x"})
    heard = _failures.deserialise(_failures.serialise(error, 2))
    assert type(heard) is ckptd.NotFound and heard.reason == "SOURCE_NOT_FOUND"
    assert heard.facts == {"file": "x", "rank": "2"} and heard.message == "rank 2: loading x: gone"


def test_a_failure_that_names_its_rank_keeps_that_name_on_its_way():
    """A daemon has told one rank of another one's."""
    sent = _failures.serialise(ckptd.Aborted("rank 0: its disk is full", "STORAGE_FULL"), 1)
    assert _failures.deserialise(sent).message == "rank 0: its disk is full"


class Mute(ValueError):
    def __str__(self):
        raise TypeError("no words")


def test_a_failure_that_cannot_say_what_it_is_reaches_the_others_all_the_same():
    heard = _failures.deserialise(_failures.serialise(Mute(), 1))
    assert type(heard) is ValueError and "Mute, which cannot say what it is" in str(heard)


def test_names_that_are_no_strings_are_refused(daemon):
    with pytest.raises(TypeError, match="got 3 as a key"):
        ckptd.torch.DistModule(Net(), address=daemon.path).load_state_dict({3: torch.ones(1)})


def test_a_timeout_without_an_end_is_a_very_long_one(daemon, tmp_path):
    state, model = numbers(Net()), Net()
    save_file(state, tmp_path / "m.safetensors")
    ckptd.torch.DistModule(model, address=daemon.path, timeout=float("inf")).load_state_dict(tmp_path / "m.safetensors")
    assert_filled(model, state)


def test_what_tells_the_shape_of_a_part_is_not_written(daemon):
    like = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    state, into = {"w": torch.randn(2, 3, 4, 5)}, {}
    ckptd.torch.broadcast_and_shard_state_dict(state, {"w": like}, into, address=daemon.path)
    assert torch.equal(into["w"], state["w"]) and not like.any()


# -- names of one tensor, where the daemons are away --------------------------------


def tied():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    return model


def fill_by_torch(model, path, **options):
    ckptd.torch.set_model_state_dict(model, path, **options)


def fill_a_dist_module(model, path, **options):
    ckptd.torch.DistModule(model, **options).load_state_dict(path)


def fill_by_accelerate(model, path, **options):
    import ckptd.accelerate

    ckptd.accelerate.load_checkpoint_in_model(model, path, device_map={"": "cpu"}, **options)


@pytest.mark.parametrize("fill", [fill_by_torch, fill_a_dist_module, fill_by_accelerate])
def test_different_values_of_one_tensor_are_refused_without_daemons_too(fill, tmp_path):
    state = {"a.weight": torch.ones(3, 3), "b.weight": torch.full((3, 3), 2.0)}
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})
    model, near = tied(), {"address": str(tmp_path / "none.sock"), "timeout": 0.2, "fallback": "native"}
    with pytest.raises(ckptd.InvalidArgument, match="'a.weight' and 'b.weight' are to share memory") as raised:
        fill(model, str(tmp_path / "m.safetensors"), **near)
    assert raised.value.reason == "LAYOUT_MISMATCH"
    if fill is fill_by_accelerate:  # which takes another one
        with pytest.raises(ckptd.FailedPrecondition, match="start the daemons"):
            fill(model, str(tmp_path / "m.safetensors"), tied="first", **near)
    else:
        fill(model, str(tmp_path / "m.safetensors"), tied="first", **near)
        assert torch.equal(model["b"].weight, state["a.weight"])


def test_a_name_that_is_in_no_cache_of_the_hub_does_not_keep_a_rank_from_taking_part(monkeypatch, tmp_path):
    from ckptd import _participant
    from ckptd._rpc import Deadline

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    name, request = _participant._request("1", "hf://nobody/nothing", Deadline(5), False)
    assert (name, request.participant) == ("", "1")
