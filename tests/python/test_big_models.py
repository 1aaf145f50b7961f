"""Functions for big models in ckptd.accelerate that need no daemon, or any: beside accelerate's own."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import accelerate.utils  # noqa: E402
import ckptd.accelerate  # noqa: E402
import ckptd.torch  # noqa: E402
from ckptd.torch.load import _devices  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402


@pytest.mark.parametrize("name", [
    "compute_module_sizes", "get_balanced_memory", "get_max_layer_size", "infer_auto_device_map", "offload_state_dict",
    "retie_parameters", "set_module_tensor_to_device"])
def test_functions_that_move_no_bytes_are_accelerate_s_own(name):
    assert getattr(ckptd.accelerate, name) is getattr(accelerate.utils, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        ckptd.accelerate.lode


# -- a tensor of the daemon in accelerate's functions ---------------------------


@pytest.fixture
def lazy(daemon, tmp_path):
    save_file({"w": torch.arange(12.0).reshape(4, 3), "b": torch.ones(4)}, tmp_path / "m.safetensors",
              metadata={"format": "pt"})
    return ckptd.accelerate.load_state_dict(tmp_path / "m.safetensors", address=daemon.path)


def test_a_daemon_s_tensor_becomes_the_parameter_itself(lazy):
    with torch.device("meta"):
        module = nn.Linear(3, 4)
    module.weight.requires_grad_(False)
    value = lazy["w"]
    ckptd.accelerate.set_module_tensor_to_device(module, "weight", "cpu", value=value)
    assert module.weight.data_ptr() == value.data_ptr() and not module.weight.requires_grad
    assert type(module.weight) is nn.Parameter and torch.equal(module.weight, value)


def test_tied_parameters_share_a_daemon_s_tensor_by_the_map(lazy):
    with torch.device("meta"):
        one, two = nn.Linear(3, 4), nn.Linear(3, 4)
    value = lazy["w"]
    tied = {value.data_ptr(): {}}
    for module in (one, two):
        ckptd.accelerate.set_module_tensor_to_device(module, "weight", "cpu", value=value, tied_params_map=tied)
    assert one.weight.data_ptr() == two.weight.data_ptr() == value.data_ptr()


def test_ties_that_were_broken_are_tied_again_over_a_daemon_s_tensor(lazy):
    with torch.device("meta"):
        model = nn.ModuleDict({"a": nn.Linear(3, 4, bias=False), "b": nn.Linear(3, 4, bias=False)})
    model["b"].weight = model["a"].weight
    ties = accelerate.utils.find_tied_parameters(model)
    value = lazy["w"]
    ckptd.accelerate.set_module_tensor_to_device(model, "b.weight", "cpu", value=value)
    ckptd.accelerate.retie_parameters(model, ties)
    assert model["a"].weight is model["b"].weight and model["a"].weight.data_ptr() == value.data_ptr()


# -- load_state_dict ------------------------------------------------------------


def test_names_under_none_of_several_devices_go_to_the_host(lazy, tmp_path, daemon):
    mapped = ckptd.accelerate.load_state_dict(
        tmp_path / "m.safetensors", {"w": "meta", "x": "disk", "y": "cpu"}, address=daemon.path)
    assert {name: value.device.type for name, value in mapped.items()} == {"w": "meta", "b": "cpu"}


# -- shard_checkpoint -----------------------------------------------------------


def state_of(*elements):
    return {f"w{i}": torch.zeros(count, dtype=torch.uint8) for i, count in enumerate(elements)}


# Parts that accelerate 0.34.2 gave.
SPLITS = [
    (10, (6, 6, 2, 6, 2, 2), [["w0"], ["w1", "w2"], ["w3", "w4", "w5"]]),
    (10, (12, 3), [[], ["w0"], ["w1"]]),
    (10, (5, 5, 1), [["w0", "w1"], ["w2"]]),
    (10, (2, 12, 3), [["w0"], ["w1"], ["w2"]]),
    ("1KB", (600, 600), [["w0"], ["w1"]]),
    ("1KiB", (500, 520, 10), [["w0", "w1"], ["w2"]]),
    ("16Kb", (1500, 600), [["w0"], ["w1"]]),
]


@pytest.mark.parametrize("limit,elements,parts", SPLITS)
def test_a_state_dict_is_split_by_size_in_its_order(limit, elements, parts):
    state = state_of(*elements)
    files, index = ckptd.accelerate.shard_checkpoint(state, limit)
    names = [f"pytorch_model-{i:05d}-of-{len(parts):05d}.bin" for i in range(1, len(parts) + 1)]
    assert {name: list(part) for name, part in files.items()} == dict(zip(names, parts))
    assert all(part[name] is state[name] for part in files.values() for name in part)
    where = {name: file for file, part in zip(names, parts) for name in part}
    assert index == {"metadata": {"total_size": sum(elements)}, "weight_map": where}


def test_what_fits_into_one_part_has_no_index():
    state = state_of(3, 4)
    assert ckptd.accelerate.shard_checkpoint(state, 7, "model.safetensors") == ({"model.safetensors": state}, None)


def test_tensors_of_one_storage_go_together_and_count_once():
    base = torch.zeros(8, dtype=torch.uint8)
    state = {"a": base, "b": torch.zeros(4, dtype=torch.uint8), "c": base, "d": base[2:]}
    files, index = ckptd.accelerate.shard_checkpoint(state, 10, "model.safetensors")
    assert [list(part) for part in files.values()] == [["a", "c", "d"], ["b"]]
    assert index["metadata"]["total_size"] == 12


def test_texts_are_left_out_and_a_bool_is_an_eighth():
    state = {"a": torch.zeros(16, dtype=torch.bool), "text": "of a quantiser", "b": torch.zeros(3)}
    files, index = ckptd.accelerate.shard_checkpoint(state, 12)
    assert [list(part) for part in files.values()] == [["a"], ["b"]] and index["metadata"]["total_size"] == 14


def test_a_size_that_cannot_be_read_is_a_value_error():
    with pytest.raises(ValueError):
        ckptd.accelerate.shard_checkpoint(state_of(1), "much")


def test_a_lazy_state_dict_is_split_without_reading(lazy, daemon):
    before = daemon.calls.count("LoadCheckpoint")
    files, index = ckptd.accelerate.shard_checkpoint(lazy, 48, "model.safetensors")
    assert {type(part) for part in files.values()} == {ckptd.torch.LazyStateDict}
    assert daemon.calls.count("LoadCheckpoint") == before
    assert sorted(index["weight_map"]) == ["b", "w"] and index["metadata"]["total_size"] == 64
    assert torch.equal(files[index["weight_map"]["w"]]["w"], torch.arange(12.0).reshape(4, 3))


def test_a_path_may_begin_with_two_slashes(daemon, tmp_path):
    whole = nn.Linear(3, 4)
    save_file(whole.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.device("meta"):
        model = nn.Linear(3, 4)
    ckptd.accelerate.load_checkpoint_in_model(model, f"/{tmp_path}", device_map={"": "cpu"}, address=daemon.path)
    assert torch.equal(model.weight, whole.weight)
    # Two slashes a daemon would make one, and by its name for the file it would not be found again.
    assert {request.spec.source for request in daemon.requests} == {str(tmp_path / "model.safetensors")}


HOST, META = "cpu", "meta"


@pytest.mark.parametrize("given,w,b", [
    ("cpu", HOST, HOST), ("cpu:0", HOST, HOST), (torch.device("cpu"), HOST, HOST), (torch.device("cpu", 0), HOST, HOST),
    ("meta", META, META), (torch.device("meta"), META, META), ({"": "meta:0"}, META, META), ({}, HOST, HOST),
    ({"": "cpu:0", "w": torch.device("cpu")}, HOST, HOST), ({"w": "meta", "b": torch.device("meta")}, META, META),
    ({"w": torch.device("meta", 0), "b": "cpu:0"}, META, HOST), ({"w": "meta", "x": "disk"}, META, HOST),
], ids=repr)
def test_a_device_is_that_device_however_it_is_spelled(tmp_path, daemon, given, w, b):
    save_file({"w": torch.ones(2), "b": torch.ones(1 << 15)}, tmp_path / "m.safetensors", metadata={"format": "pt"})
    state = ckptd.accelerate.load_state_dict(tmp_path / "m.safetensors", given, address=daemon.path)
    assert {name: str(value.device) for name, value in state.items()} == {"w": w, "b": b}


@pytest.mark.parametrize("given", [0, 1, "0", "cuda", "cuda:1", torch.device("cuda", 0), {"": 0}, {"w": 0, "b": "cpu"}], ids=repr)
def test_a_gpu_that_is_not_there_is_an_error_and_not_passed_over(lazy, tmp_path, daemon, given):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        ckptd.accelerate.load_state_dict(tmp_path / "m.safetensors", given, address=daemon.path)


@pytest.mark.parametrize("given,why", [
    ("auto", "'auto': it names none"), ("disk", "'disk'"), ({"": "disk"}, "'disk'"), (3.5, "3.5"), (True, "True"), ({"w": "mars"}, "mars")], ids=repr)
def test_what_is_no_device_is_a_value_error(lazy, tmp_path, daemon, given, why):
    with pytest.raises(ValueError, match=why):
        ckptd.accelerate.load_state_dict(tmp_path / "m.safetensors", given, address=daemon.path)


@pytest.mark.parametrize("given,same", [
    (0, 0), ("0", 0), ("cuda:0", 0), (torch.device("cuda", 1), 1), ("cpu", "cpu"), (torch.device("cpu", 0), "cpu"),
    ("cpu:0", "cpu"), ("disk", "disk"), ("meta", "meta"), (torch.device("meta"), "meta")], ids=repr)
def test_accelerate_gets_each_device_as_it_compares_them(given, same):
    assert _devices.for_accelerate(_devices.by_module({"a": given})) == {"a": same}
