"""Odd folders: every function reads the weights that transformers reads, or says why not.

Each line of the table is a folder. transformers' own from_pretrained says which weights are right.
"""

import json
import os
import time

import ckptd
import ckptd.torch
import pytest
import torch
from group import PATIENCE, SOON, Group
from safetensors import safe_open
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import ckptd.accelerate  # noqa: E402

CONFIG = transformers.LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
KIND = transformers.LlamaForCausalLM
INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"
transformers.logging.set_verbosity_error()


def save(folder, seed, **how):
    torch.manual_seed(seed)
    KIND(CONFIG).save_pretrained(folder, **how)


def save_in_shards(folder, seed, **how):
    save(folder, seed, max_shard_size="8KB", **how)


def other(folder, name, seed=9):
    """A file of another model's weights."""
    torch.manual_seed(seed)
    save_file(KIND(CONFIG).state_dict(), folder / name, metadata={"format": "pt"})


def edit_index(folder, edit):
    index = json.loads((folder / INDEX).read_text())
    edit(index)
    (folder / INDEX).write_text(json.dumps(index))


# -- folders: each of these fills one ------------------------------------------


def saved_in_one_file_over_shards(folder):
    save_in_shards(folder, 1)
    save(folder, 2)
    assert (folder / INDEX).exists(), "save_pretrained leaves the stale index"


def stale_shards_beside_one_file(folder):
    save_in_shards(folder, 1)
    other(folder, "model.safetensors")


def files_that_are_no_part(folder):
    save_in_shards(folder, 1)
    for name in ("consolidated", "model.fp16", "optimizer", "scaler"):
        other(folder, f"{name}.safetensors")


def pickles_beside_one_file(folder):
    save(folder, 1)
    torch.save(KIND(CONFIG).state_dict(), folder / "pytorch_model.bin")


def pickles_beside_an_index(folder):
    save_in_shards(folder, 1)
    torch.save(KIND(CONFIG).state_dict(), folder / "pytorch_model.bin")


def pickles_beside_a_file_of_another_name(folder):
    save(folder, 1)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    other(folder, "weights.safetensors")


def pickles_in_shards_beside_a_series(folder):
    pickles_beside_a_file_of_another_name(folder)
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-00001.bin")
    (folder / "weights.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = KIND(CONFIG).state_dict()
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "pytorch_model-00001-of-00001.bin")}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def an_index_with_a_name_that_no_file_has(folder):
    save_in_shards(folder, 1)
    edit_index(folder, lambda index: index["weight_map"].update(gone=index["weight_map"][NORM]))


def an_index_that_puts_names_into_other_shards(folder):
    save_in_shards(folder, 1)

    def turn(index):
        names, files = zip(*index["weight_map"].items())
        index["weight_map"] = dict(zip(names, files[1:] + files[:1]))

    edit_index(folder, turn)


def an_index_with_nan(folder):
    save_in_shards(folder, 1)
    edit_index(folder, lambda index: index["metadata"].update(loss=float("nan"), best=float("-inf")))


def a_tensor_in_two_shards_of_which_the_index_names_the_first(folder):
    save_in_shards(folder, 1)
    index = json.loads((folder / INDEX).read_text())
    first, last = min(index["weight_map"].values()), max(index["weight_map"].values())
    for number, file in enumerate((first, last)):
        held = load_file(folder / file)
        held[NORM] = torch.full((16,), float(number))
        save_file(held, folder / file, metadata={"format": "pt"})
    edit_index(folder, lambda index: index["weight_map"].update({NORM: first}))


def weights_that_the_config_names(folder):
    save(folder, 1)
    other(folder, "named.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "named.safetensors"}))


def an_index_of_transformers_beside_another(folder):
    save_in_shards(folder, 1)
    (folder / "x.safetensors.index.json").write_text(json.dumps({"weight_map": {NORM: "x.safetensors"}}))


def a_variant(folder):
    save(folder, 1)
    save(folder, 2, variant="fp16")


def a_variant_in_shards(folder):
    save(folder, 1)
    save_in_shards(folder, 2, variant="fp16")


FOLDERS = [saved_in_one_file_over_shards, stale_shards_beside_one_file, files_that_are_no_part,
           pickles_beside_one_file, pickles_beside_an_index, pickles_beside_a_file_of_another_name,
           pickles_in_shards_beside_a_series, an_index_with_a_name_that_no_file_has,
           an_index_that_puts_names_into_other_shards, an_index_with_nan,
           a_tensor_in_two_shards_of_which_the_index_names_the_first, weights_that_the_config_names,
           an_index_of_transformers_beside_another]  # fmt: skip
VARIANTS = [a_variant, a_variant_in_shards]


# -- functions: each gives name -> tensor --------------------------------------


def on_meta():
    with torch.device("meta"):
        return KIND(CONFIG)


def by_load_into(folder, address, **named):
    model = on_meta()
    ckptd.torch.load_into(model, folder, address=address, **named)
    return model.state_dict()


def by_from_pretrained(folder, address, **named):
    with ckptd.patch(address=address):
        return KIND.from_pretrained(folder, **named).state_dict()


def by_load_checkpoint(folder, address):
    model = on_meta()
    ckptd.accelerate.load_checkpoint_in_model(model, folder, device_map={"": "cpu"}, address=address)
    return model.state_dict()


def by_lazy_dict(folder, address, **named):
    return dict(ckptd.torch.load_state_dict(str(folder), address=address, **named))


def by_load_file(folder, address):
    return ckptd.torch.load_file(folder, address=address)


EVERY = [by_load_into, by_from_pretrained, by_load_checkpoint, by_lazy_dict, by_load_file]
WITH_VARIANT = [by_load_into, by_from_pretrained, by_lazy_dict]


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("f"), 1) as running:
        yield running


def differing(mine, right):
    """Names whose bytes are others; of the model's, for a checkpoint may hold more."""
    return [name for name in right if name not in mine or not torch.equal(mine[name], right[name])]


@pytest.mark.parametrize("fill", FOLDERS, ids=lambda fill: fill.__name__)
def test_every_function_reads_what_transformers_reads(fill, group, tmp_path):
    fill(tmp_path)
    right = KIND.from_pretrained(tmp_path).state_dict()
    wrong = {load.__name__: differing(load(tmp_path, group.address(0)), right) for load in EVERY}
    assert not any(wrong.values()), wrong


def a_series_without_an_index(folder):
    save_in_shards(folder, 1)
    (folder / INDEX).unlink()
    other(folder, "adapter_model.safetensors")


def one_file_of_another_name(folder):
    save(folder, 1)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    other(folder, "optimizer.safetensors")


@pytest.mark.parametrize("fill", [a_series_without_an_index, one_file_of_another_name], ids=lambda fill: fill.__name__)
def test_where_transformers_finds_nothing_all_others_agree(fill, group, tmp_path):
    fill(tmp_path)
    with pytest.raises(OSError):
        KIND.from_pretrained(tmp_path)
    torch.manual_seed(1)
    right = KIND(CONFIG).state_dict()
    for load in (by_load_into, by_load_checkpoint, by_lazy_dict, by_load_file):
        assert not differing(load(tmp_path, group.address(0)), right), load
    with ckptd.patch(address=group.address(0)), pytest.raises(OSError):
        KIND.from_pretrained(tmp_path)


@pytest.mark.parametrize("fill", VARIANTS, ids=lambda fill: fill.__name__)
def test_a_variant_is_read_where_it_is_asked_for(fill, group, tmp_path):
    fill(tmp_path)
    right = {name: KIND.from_pretrained(tmp_path, variant=name).state_dict() for name in (None, "fp16")}
    assert differing(*right.values())
    for load in WITH_VARIANT:
        for variant, weights in right.items():
            named = {} if variant is None else {"variant": variant}
            assert not differing(load(tmp_path, group.address(0), **named), weights), (load, variant)


def test_the_daemon_s_log_says_what_was_left_out(group, tmp_path):
    saved_in_one_file_over_shards(tmp_path)
    by_load_file(tmp_path, group.address(0))
    lines = [line for line in group.log().splitlines() if f"{tmp_path}: left out" in line]
    assert lines and all(INDEX in line and '"model.safetensors" counts' in line for line in lines)


@pytest.mark.parametrize("remote", [False, True], ids=["offline", "by the daemon"])
def test_inspect_and_verify_say_it_and_do_not_refuse(remote, group, tmp_path):
    an_index_with_a_name_that_no_file_has(tmp_path)
    other(tmp_path, "consolidated.safetensors")
    found = group.json("inspect", tmp_path, *["--remote"] * remote)
    left_out, nowhere = found["remarks"]
    assert 'left out "consolidated.safetensors"' in left_out and "in no file that it names" in nowhere
    assert group.json("verify", tmp_path)["remarks"] == found["remarks"]
    with ckptd.connect(group.address(0)) as client:
        assert client.inspect(tmp_path).remarks == found["remarks"]


def test_what_the_model_needs_and_no_file_has_is_refused_by_name(group, tmp_path):
    save_in_shards(tmp_path, 1)
    file = tmp_path / json.loads((tmp_path / INDEX).read_text())["weight_map"][NORM]
    with safe_open(file, "pt") as opened:
        kept = {name: opened.get_tensor(name) for name in opened.keys() if name != NORM}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ckptd.NotFound, match=NORM):
        by_load_into(tmp_path, group.address(0))


# -- names of sources ----------------------------------------------------------


def test_home_variables_and_names_of_the_hub_are_served(group, tmp_path, monkeypatch):
    snapshot = tmp_path / "cache/models--org--tiny/snapshots/0123abcd"
    snapshot.mkdir(parents=True)
    save(snapshot, 3)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    for revision in ("main", "refs/pr/1", "feature/x"):
        (refs / revision).parent.mkdir(parents=True, exist_ok=True)
        (refs / revision).write_text("0123abcd")
    for name, value in {"HF_HUB_CACHE": tmp_path / "cache", "HOME": tmp_path, "WHERE": snapshot}.items():
        monkeypatch.setenv(name, str(value))
        group.environment[name] = str(value)  # ckptctl's
    right = load_file(snapshot / "model.safetensors")
    names = ("org/tiny", "org/tiny@0123abcd", "hf://org/tiny", "hf://org/tiny@main/", "hf://org/tiny/model.safetensors",
             "hf://org/tiny@refs/pr/1", "org/tiny@refs/pr/1", "org/tiny@feature%2Fx",
             "~/cache/models--org--tiny/snapshots/0123abcd", "$WHERE", "${WHERE}/model.safetensors")
    for source in names:
        assert not differing(ckptd.torch.load_file(source, address=group.address(0)), right), source
        assert group.json("inspect", source)["tensor_count"] == len(right), source


REFUSED = {
    "s3://bucket/model": (ckptd.Unimplemented, "s3:// are not read; copy it"),
    "hf://org/none": (ckptd.NotFound, "hf download org/none --revision main"),
    "hf://org/none@feature/x": (ckptd.NotFound, "hf download org/none --revision feature"),
    "nobody/none@v2": (ckptd.NotFound, "hf download nobody/none --revision v2"),
    "/models/*.safetensors": (ckptd.NotFound, "patterns are not expanded: name the folder"),
    "/models/$UNSET_HERE": (ckptd.NotFound, "a variable that is not set"),
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_no_path_has_a_sentence_of_its_own(source, group):
    kind, sentence = REFUSED[source]
    with pytest.raises(kind, match=sentence.replace("*", r"\*")):
        ckptd.torch.load_file(source, address=group.address(0))
    done = group.ctl("inspect", source)
    assert done.returncode != 0 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize("given,sentence", [
    (["a", "b"], "pass the folder that holds them"), ({"w": 1}, "set_model_state_dict"), (None, "pass the path of"),
], ids=["a list", "a state dict", "None"])  # fmt: skip
def test_what_is_no_path_at_all_is_a_type_error(given, sentence):
    with pytest.raises(TypeError, match=sentence):
        ckptd.torch.load_into(on_meta(), given)


# -- a source is recognised before anyone waits --------------------------------


def a_pointer_in_place_of_a_file(folder):
    (folder / "weights.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
    return folder / "weights.bin"


class Runs:
    def __reduce__(self):
        return os.system, ("true",)


def a_folder_of_a_pickle_that_runs_something(folder):
    torch.save({"w": Runs()}, folder / "pytorch_model.bin")
    return folder


def a_distributed_checkpoint(folder):
    (folder / ".metadata").write_bytes(b"x")
    (folder / "__0_0.distcp").write_bytes(b"x")
    return folder


def no_such_file(folder):
    return folder / "none.safetensors"


def a_broken_header(folder):
    (folder / "model.safetensors").write_bytes(b"\0" * 4)
    return folder


def an_index_of_pickles(folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": "pytorch_model.bin"}}))
    return folder


def a_folder_one_level_above(folder):
    (folder / "checkpoint-500").mkdir()
    save(folder / "checkpoint-500", 1)
    return folder


UNREADABLE = {
    a_pointer_in_place_of_a_file: "Git LFS", a_folder_of_a_pickle_that_runs_something: "system", a_distributed_checkpoint: "its pickle is damaged",
    no_such_file: "check the path", a_broken_header: "HeaderTooSmall", an_index_of_pickles: "not .safetensors",
    a_folder_one_level_above: "name the one below that holds them: checkpoint-500",
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("p"), 2) as running:
        yield running


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
def test_what_cannot_be_read_is_said_while_other_ranks_are_missing(make, rank, pair, tmp_path, monkeypatch):
    source = make(tmp_path)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    begun = time.monotonic()
    with pytest.raises(ckptd.Error, match=UNREADABLE[make]) as caught:
        ckptd.torch.load_into(on_meta(), source, address=pair.address(rank), timeout=PATIENCE)
    assert not isinstance(caught.value, ckptd.DeadlineExceeded) and time.monotonic() - begun < SOON
