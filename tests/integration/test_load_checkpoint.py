"""load_checkpoint_in_model from a daemon and by accelerate itself: all that a caller can see is the same."""

import json
import logging
import os
import pathlib
import shutil

import ckptd
import pytest
import torch
from group import Group, wait_until
from safetensors.torch import save_file

accelerate = pytest.importorskip("accelerate")
import ckptd.accelerate  # noqa: E402
from accelerate.utils import modeling  # noqa: E402
from checkpoint_cases import (  # noqa: E402
    ALL_CPU,
    BEYOND,
    BY_PART,
    CALLS,
    DISK,
    VIEWS,
    Call,
    Model,
    bytes_of,
    files_of,
    numbers,
    on_meta,
    save,
    tensors_of,
)
from ckptd.torch.compat import _native_fallback  # noqa: E402
from ckptd.torch.load import _lazy_state_dict  # noqa: E402


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("c"), 1) as running:
        yield running


def ours(group):
    def load(model, checkpoint, **options):
        return ckptd.accelerate.load_checkpoint_in_model(model, checkpoint, address=group.address(0), **options)
    return load


@pytest.fixture
def alone(tmp_path):
    """A process group of one, without which torch fills no model on meta."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def saved(call, folder):
    return save(folder / "saved", numbers(**call.state), call.form, call.metadata)


def without_strides(tensors):
    """Values that lie as views in a file come in row-major order; torch keeps them views."""
    return {name: (*found[:3], *found[4:]) for name, found in tensors.items()}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_the_outcome_is_accelerate_s(call, group, tmp_path, alone):
    checkpoint = saved(call, tmp_path)
    theirs = call.outcome(modeling.load_checkpoint_in_model, tmp_path / "theirs", checkpoint)
    mine = call.outcome(ours(group), tmp_path / "mine", checkpoint)
    assert mine[0] == theirs[0]
    assert mine[2] == theirs[2], "the offload folder"
    if theirs[0] is None:  # an error leaves accelerate's model half filled
        seen = without_strides if call.state.get("more") is VIEWS else dict
        assert seen(mine[1]) == seen(theirs[1])


@pytest.mark.parametrize("form", ["file", "index"])
@pytest.mark.parametrize("device_map", [None, ALL_CPU, BY_PART], ids=["no map", "cpu", "parts"])
def test_a_folder_whose_name_is_not_utf8_is_loaded_as_any_other(form, device_map, group, tmp_path, alone):
    odd = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/%41\xff"))
    call = Call("odd", device_map=device_map, form=form, offload=True)
    checkpoint = odd / saved(call, tmp_path).relative_to(tmp_path)
    shutil.copytree(tmp_path / "saved", odd / "saved")
    # safetensors itself refuses such paths.
    theirs = call.outcome(modeling.load_checkpoint_in_model, tmp_path / "theirs", tmp_path / "saved")
    assert theirs[0] is None and call.outcome(ours(group), tmp_path / "mine", checkpoint) == theirs


@pytest.mark.parametrize("call,same", BEYOND, ids=lambda call: call.name)
def test_what_accelerate_fails_for_is_what_was_meant(call, same, group, tmp_path):
    checkpoint = saved(call, tmp_path)
    assert call.outcome(modeling.load_checkpoint_in_model, tmp_path / "fails", checkpoint)[0] is not None
    theirs = same.outcome(modeling.load_checkpoint_in_model, tmp_path / "theirs", checkpoint)
    assert theirs[0] is None and call.outcome(ours(group), tmp_path / "mine", checkpoint) == theirs


# Where it is not safe, or says nothing, to do as accelerate.


@pytest.mark.parametrize("device_map", [None, ALL_CPU], ids=["no map", "cpu"])
@pytest.mark.parametrize("away", ["../model.safetensors", "further/../../model.safetensors", "{}/model.safetensors"])
def test_an_index_that_leads_out_of_its_folder_is_refused_with_the_reason(away, device_map, group, tmp_path):
    path = save(tmp_path, numbers())
    (tmp_path / "sub").mkdir()
    index = tmp_path / "sub/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(numbers(), away.format(tmp_path))}))
    model = on_meta()
    with pytest.raises(ckptd.InvalidArgument, match="not below its folder; .* must not choose what they read") as caught:
        ours(group)(model, index, device_map=device_map)
    assert caught.value.reason == "SOURCE_INVALID" and all(t.is_meta for t in model.parameters())
    (tmp_path / "sub/model.safetensors").symlink_to(path)  # as the sentence advises
    index.write_text(json.dumps({"weight_map": dict.fromkeys(numbers(), "model.safetensors")}))
    ours(group)(model, index, device_map=device_map)
    assert torch.equal(model.embed.weight, numbers()["embed.weight"])


@pytest.mark.parametrize("device_map", [None, ALL_CPU], ids=["no map", "cpu"])
def test_metadata_that_says_nothing_is_no_reason_to_refuse_as_accelerate_does(device_map, group, tmp_path):
    path, model = tmp_path / "model.safetensors", on_meta()
    save_file(numbers(), path, metadata={})
    with pytest.raises(OSError):
        modeling.load_checkpoint_in_model(on_meta(), str(path), device_map=device_map)
    ours(group)(model, path, device_map=device_map)
    assert torch.equal(model.embed.weight, numbers()["embed.weight"])


# -- what is read, and where it lies -------------------------------------------


def storage_bytes(group, source):
    with ckptd.connect(group.address(0)) as client:
        return sum(c.progress.storage_bytes for c in client.list() if c.source == str(source))


def size_of(state, under=""):
    return sum(t.numel() * t.element_size() for name, t in state.items() if name.startswith(under))


def in_memfd(tensor):
    for line in open("/proc/self/maps"):
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= tensor.data_ptr() < high:
            return "memfd" in line
    return False


@pytest.mark.parametrize("options", [
    {}, {"dtype": torch.bfloat16}, {"offload_state_dict": True},
    {"dtype": torch.float16, "keep_in_fp32_modules": ["norm"]},
], ids=str)
@pytest.mark.parametrize("form", ["file", "index"])
def test_tensors_on_the_host_are_the_daemon_s_memory_read_once(form, options, group, tmp_path):
    state = numbers(without=("head.weight", "mask", "stats.num_batches_tracked"), dtype=torch.float32)
    path, model = save(tmp_path, state, form), on_meta()
    ours(group)(model, path, device_map=ALL_CPU, **options)
    placed = {name: t for name, t in model.state_dict().items() if name in state}
    assert [name for name, t in placed.items() if not in_memfd(t)] == []
    assert storage_bytes(group, path) == size_of(state)


def test_every_byte_is_read_once_whether_it_stays_or_goes_to_disk(group, tmp_path):
    state = numbers()
    path = save(tmp_path, state, "index")
    ours(group)(on_meta(), path, device_map=DISK, offload_folder=tmp_path / "o", offload_buffers=True)
    assert storage_bytes(group, path) == size_of(state)


def test_what_goes_to_disk_is_loaded_in_groups_that_are_let_go(group, tmp_path, monkeypatch):
    monkeypatch.setattr(_lazy_state_dict, "_CHUNK", 300)
    state, model, theirs = numbers(), on_meta(), on_meta()
    path, options = save(tmp_path, state), {"device_map": DISK, "offload_buffers": True}
    modeling.load_checkpoint_in_model(theirs, str(path), offload_folder=tmp_path / "theirs", **options)
    ours(group)(model, path, offload_folder=tmp_path / "mine", **options)
    assert files_of(tmp_path / "mine") == files_of(tmp_path / "theirs")

    def loads():
        return [c for c in group.json("list")["checkpoints"] if c["source"] == str(path)]

    assert len(loads()) > 3
    wait_until(lambda: sum(int(load["lease_count"]) for load in loads()) == 1, "one lease, of what the model holds")
    groups = [(int(load["tensor_count"]), int(load["progress"]["bytes_total"])) for load in loads()
              if not int(load["lease_count"])]
    assert all(count == 1 or size <= 300 for count, size in groups), groups  # a larger tensor comes alone
    assert {count > 1 for count, _ in groups} == {size > 300 for _, size in groups} == {False, True}, groups
    assert storage_bytes(group, path) == size_of(state) and in_memfd(model.embed.weight)


def test_buffers_that_stay_out_are_not_read(group, tmp_path):
    state = numbers()
    path = save(tmp_path, state)
    ours(group)(on_meta(), path, device_map=DISK, offload_folder=tmp_path / "o")
    left_out = [name for name in state if name.startswith(("mask", "stats.running", "stats.num"))]
    assert len(left_out) == 4
    assert storage_bytes(group, path) == size_of(state) - size_of({name: state[name] for name in left_out})


@pytest.mark.parametrize("before,options", [([], {}), (["--dtype", "BF16"], {"dtype": torch.bfloat16})], ids=str)
def test_a_checkpoint_that_was_loaded_before_is_found(before, options, group, tmp_path):
    path = save(tmp_path, numbers(without=("head.weight",)))
    group.json("load", path, "--layout", "replicate:1", *before)
    ours(group)(Model(), path, device_map=ALL_CPU, **options)
    assert len([c for c in group.json("list")["checkpoints"] if c["source"] == str(path)]) == 1


def test_a_name_that_reads_as_a_pattern_costs_others_no_bits(group, tmp_path):
    path, types = save(tmp_path, {name: torch.randn(99) for name in ("w*", "wx")}), (torch.float16, torch.bfloat16)
    models = [torch.nn.ParameterDict({n: torch.zeros(99, dtype=t) for n, t in zip(("w*", "wx"), types)}) for _ in "12"]
    for load, model in zip((modeling.load_checkpoint_in_model, ours(group)), models):
        load(model, str(path), device_map=ALL_CPU)
    assert tensors_of(models[0]) == tensors_of(models[1])


# -- offload folders -----------------------------------------------------------


def test_linked_entries_name_their_file_and_nothing_of_them_is_read(group, tmp_path):
    state, folder = numbers(dtype=torch.bfloat16), tmp_path / "o"
    path = save(tmp_path, state, "index")
    mine, theirs = on_meta(), on_meta()
    ours(group)(mine, path, device_map=BY_PART, offload_folder=folder, link_offloaded=True)
    modeling.load_checkpoint_in_model(theirs, str(path), device_map=BY_PART, offload_folder=tmp_path / "theirs")
    assert storage_bytes(group, path) == size_of(state) - size_of(state, "layers.1")
    assert [p.name for p in folder.iterdir()] == ["index.json"]
    assert mine.layers[1].up.weight.is_meta
    for name, value in accelerate.utils.OffloadedWeightsLoader(save_folder=tmp_path / "theirs").items():
        linked = accelerate.utils.OffloadedWeightsLoader(save_folder=folder)[name]
        assert linked.dtype == value.dtype and bytes_of(linked) == bytes_of(value)


def test_a_linked_entry_names_the_value_that_tied_chooses(group, tmp_path):
    state = {"a.weight": torch.ones(3, 3), "b.weight": torch.full((3, 3), 2.0)}
    model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3, bias=False, device="meta") for name in "ab"})
    model["b"].weight = model["a"].weight
    path = save(tmp_path, state)
    ours(group)(model, path, device_map={"a": "disk", "b": "disk"}, offload_folder=tmp_path / "o",
                link_offloaded=True, tied="first")
    weights = accelerate.utils.OffloadedWeightsLoader(save_folder=tmp_path / "o")
    assert {name: weights[name].mean().item() for name in weights} == {"a.weight": 1, "b.weight": 1}


@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize("fallback", [None, "native"])
def test_offloaded_weights_come_back_as_with_accelerate(link, fallback, group, tmp_path):
    path, models = save(tmp_path, numbers(dtype=torch.bfloat16)), []
    for folder, linked in ((tmp_path / "theirs", False), (tmp_path / "mine", link)):
        model = on_meta()
        ours(group)(model, path, device_map=BY_PART, offload_folder=folder, link_offloaded=linked)
        index = json.loads((folder / "index.json").read_text())
        if folder.name == "theirs":
            modeling.load_offloaded_weights(model, index, folder)
        else:
            address = str(tmp_path / "none.sock") if fallback else group.address(0)
            ckptd.accelerate.load_offloaded_weights(
                model, index, folder, address=address, timeout=0.2 if fallback else 20, fallback=fallback)
        models.append(model)
    theirs, mine = (m.layers[1].state_dict(keep_vars=True) for m in models)
    for name, value in theirs.items():
        assert mine[name].dtype == value.dtype and bytes_of(mine[name]) == bytes_of(value)
        assert mine[name].requires_grad == value.requires_grad
        assert in_memfd(mine[name]) == (link and not fallback and value.dtype == torch.bfloat16)


def test_nothing_offloaded_is_nothing_to_do(tmp_path):
    for index in (None, {}):
        assert ckptd.accelerate.load_offloaded_weights(Model(), index, tmp_path, address="/nowhere/x") is None


def test_a_lazy_state_dict_is_offloaded_as_its_tensors(group, tmp_path):
    state = numbers(dtype=torch.bfloat16)
    path = save(tmp_path, state)
    lazy = ckptd.accelerate.load_state_dict(path, address=group.address(0))
    ckptd.accelerate.offload_state_dict(tmp_path / "mine", lazy)
    accelerate.utils.offload_state_dict(tmp_path / "theirs", state)
    assert files_of(tmp_path / "mine") == files_of(tmp_path / "theirs")
    assert storage_bytes(group, path) == size_of(state)


# -- errors, and ways around ---------------------------------------------------


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path):
    path, model = save(tmp_path, numbers()), Model()
    for device_map in (None, ALL_CPU):
        with pytest.raises(ckptd.Unavailable, match="start the job's daemons with `ckptd launch"):
            ckptd.accelerate.load_checkpoint_in_model(model, path, device_map=device_map,
                                                      address=str(tmp_path / "none.sock"), timeout=0.2)


def test_the_native_way_is_taken_only_if_allowed_and_said_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(_native_fallback, "_said", set())  # by this test, not by others of this process
    path, mine, theirs = save(tmp_path, numbers()), on_meta(), on_meta()
    modeling.load_checkpoint_in_model(theirs, str(path), device_map=ALL_CPU)
    with caplog.at_level(logging.WARNING, "ckptd"):
        for _ in range(2):
            ckptd.accelerate.load_checkpoint_in_model(mine, path, device_map=ALL_CPU, timeout=0.2, fallback="native",
                                                      address=str(tmp_path / "none.sock"))
    assert tensors_of(mine) == tensors_of(theirs)
    assert len([r for r in caplog.records if r.name == "ckptd"]) == 1


def test_a_file_that_an_index_names_and_nobody_has_is_not_found(group, tmp_path):
    path = save(tmp_path, numbers(), "index")
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    for load in (modeling.load_checkpoint_in_model, ours(group)):
        with pytest.raises(FileNotFoundError, match="00002"):
            load(on_meta(), str(path), device_map=ALL_CPU)


@pytest.mark.parametrize("make", [lambda f: f / "none", lambda f: f, lambda f: [
    (f / f"{n}.index.json").write_text("{}") for n in "ab"] and f], ids=["nothing", "empty", "two"])
def test_what_is_no_checkpoint_is_a_value_error(make, group, tmp_path):
    path = make(tmp_path)
    for load in (modeling.load_checkpoint_in_model, ours(group)):
        with pytest.raises(ValueError):
            load(on_meta(), path, device_map=ALL_CPU)


def test_quantising_while_offloading_is_refused(group, tmp_path):
    with pytest.raises(ckptd.Unimplemented, match="offload_8bit_bnb"):
        ours(group)(on_meta(), save(tmp_path, numbers()), device_map=ALL_CPU, offload_8bit_bnb=True)


def test_an_accelerate_that_reads_by_other_means_is_refused(group, tmp_path, monkeypatch):
    monkeypatch.setattr(modeling, "load_checkpoint_in_model", lambda *_, **__: None)
    with pytest.raises(ckptd.FailedPrecondition, match="accelerate 1.15"):
        ours(group)(on_meta(), save(tmp_path, numbers()), device_map=ALL_CPU)


def test_the_module_of_accelerate_stays_as_it_is(group, tmp_path):
    before = dict(vars(modeling))
    ours(group)(on_meta(), save(tmp_path, numbers()), device_map=ALL_CPU, offload_state_dict=True)
    assert dict(vars(modeling)) == before


# -- beside a real model -------------------------------------------------------


SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
HUGGING = {
    "llama": {"num_hidden_layers": 3, **SMALL},
    "mixtral": {"num_hidden_layers": 2, "num_local_experts": 4, "num_key_value_heads": 2, **SMALL},
    "gpt2": {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 32},
}


def made(kind):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **HUGGING[kind])
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("kind", HUGGING)
def test_models_of_transformers_are_filled_as_by_accelerate(kind, group, tmp_path):
    source = made(kind)
    path = save(tmp_path, {name: p.detach().clone() for name, p in source.named_parameters()}, "index")
    layers = next(name for name, m in source.named_modules() if isinstance(m, torch.nn.ModuleList))
    device_map = {"": "cpu", f"{layers}.1": "disk"}
    options = {"offload": True, "options": {"dtype": torch.float16, "keep_in_fp32_modules": ["norm", "ln_f"]}}

    def on_meta():
        with accelerate.init_empty_weights(include_buffers=False):
            model = made(kind)
        model.tie_weights()
        return model

    call = Call(kind, device_map, build=on_meta, **options)
    theirs = call.outcome(modeling.load_checkpoint_in_model, tmp_path / "theirs", path)
    assert theirs[0] is None and call.outcome(ours(group), tmp_path / "mine", path) == theirs


def test_a_model_is_dispatched_from_the_daemon_under_the_patch(group, tmp_path):
    source = made("llama")
    source.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
                  "model.layers.2": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}

    def logits(folder):
        with accelerate.init_empty_weights(include_buffers=False):
            model = made("llama").eval()
        model = accelerate.load_checkpoint_and_dispatch(
            model, tmp_path / "saved", device_map=dict(device_map), offload_folder=folder)
        with torch.no_grad():
            return model(torch.arange(12)[None]).logits

    theirs = logits(tmp_path / "theirs")
    with ckptd.accelerate.patch(address=group.address(0)):
        mine = logits(tmp_path / "mine")
    assert torch.equal(mine, theirs)
    index = tmp_path / "saved" / "model.safetensors.index.json"
    assert storage_bytes(group, index) == size_of(source.state_dict())
