"""ckptd.accelerate.merge_fsdp_weights beside accelerate's own, on what accelerate saved."""

import os
import pathlib
import shutil

import ckptd
import pytest

torch = pytest.importorskip("torch")
accelerate_utils = pytest.importorskip("accelerate.utils")

import torch.distributed.checkpoint as dcp  # noqa: E402

from ckptd.accelerate import merge_fsdp_weights  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
SHARDED = [FIXTURES / case / "pytorch_model_fsdp_0" for case in (
    "accelerate_fsdp1_sharded", "accelerate_fsdp1_sharded_flat", "accelerate_fsdp2_sharded",
    "accelerate_save_state_fsdp2")]


@pytest.fixture(autouse=True)
def program(monkeypatch):
    folder = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin"
    if not (folder / "ckptctl").exists():
        pytest.skip(f"there is no {folder}/ckptctl")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def both(checkpoint_dir, tmp_path, **options):
    """(ours, accelerate's): folders with what each of them wrote."""
    merge_fsdp_weights(checkpoint_dir, tmp_path / "ours", **options)
    accelerate_utils.merge_fsdp_weights(checkpoint_dir, tmp_path / "theirs", **options)
    return tmp_path / "ours", tmp_path / "theirs"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("folder", SHARDED, ids=lambda folder: folder.parent.name)
def test_a_merged_file_is_byte_for_byte_accelerate_s(folder, tmp_path):
    ours, theirs = both(folder, tmp_path)
    assert names(ours) == names(theirs) == ["model.safetensors"]
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()


@pytest.mark.parametrize("folder", SHARDED[::2], ids=lambda folder: folder.parent.name)
def test_a_merged_file_of_torch_holds_what_accelerate_s_does(folder, tmp_path):
    ours, theirs = both(folder, tmp_path, safe_serialization=False)
    assert names(ours) == names(theirs) == ["pytorch_model.bin"]
    ours, theirs = (torch.load(one / "pytorch_model.bin", weights_only=True) for one in (ours, theirs))
    assert sorted(ours) == sorted(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_names_without_a_wrapper_stay_as_they_are(tmp_path):
    state = {"model.w": torch.randn(3, 2), "model.b": torch.randn(3), "head": torch.randn(2)}
    dcp.save(state, checkpoint_id=tmp_path / "in", no_dist=True)
    ours, theirs = both(tmp_path / "in", tmp_path)
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()


def test_a_file_that_is_there_is_replaced(tmp_path):
    (tmp_path / "model.safetensors").write_text("old")
    (tmp_path / "config.json").write_text("{}")
    merge_fsdp_weights(SHARDED[2], tmp_path)
    assert names(tmp_path) == ["config.json", "model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_size > 100


def test_the_checkpoint_is_removed_where_that_is_wanted(tmp_path):
    shutil.copytree(SHARDED[2], tmp_path / "in")
    merge_fsdp_weights(tmp_path / "in", tmp_path / "out", remove_checkpoint_dir=True)
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("output", ["in", "in/out/", "link", "link/out", "out/../in/"])
def test_a_result_that_would_be_removed_with_the_checkpoint_is_refused_before_it_is_written(output, tmp_path, monkeypatch):
    shutil.copytree(SHARDED[2], tmp_path / "in")
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "out").mkdir()
    saved = names(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    for path in (output, tmp_path / output):
        with pytest.raises(ckptd.InvalidArgument, match="outside of it") as raised:
            merge_fsdp_weights(tmp_path / "in", path, remove_checkpoint_dir=True)
        assert raised.value.reason == "TARGET_INVALID"
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(ckptd.InvalidArgument, match="outside of it"):
        merge_fsdp_weights(".", "new", remove_checkpoint_dir=True)
    assert names(tmp_path / "in") == saved


def test_one_part_is_not_removed_as_the_whole_would_be_with_it(tmp_path):
    shutil.copytree(SHARDED[2].parent, tmp_path / "in")
    with pytest.raises(ckptd.InvalidArgument, match="would remove all of them"):
        merge_fsdp_weights(f"{tmp_path}/in#model", tmp_path / "out", remove_checkpoint_dir=True)
    merge_fsdp_weights(f"{tmp_path}/in#model", tmp_path / "out")
    assert names(tmp_path / "out") == ["model.safetensors"]


def test_a_folder_that_is_not_there_is_accelerate_s_error_and_says_so(tmp_path):
    messages = []
    for merge in (merge_fsdp_weights, accelerate_utils.merge_fsdp_weights):
        with pytest.raises(ValueError) as raised:
            merge(tmp_path / "none", tmp_path / "out")
        messages.append(str(raised.value))
    assert messages[0] == messages[1] + " The path does not exist."


def test_the_folder_above_is_told_the_one_that_is_merged(tmp_path):
    with pytest.raises(ValueError, match="passing in .*/pytorch_model_fsdp_0 instead"):
        merge_fsdp_weights(SHARDED[2].parent, tmp_path / "out")


def test_a_part_that_is_an_optimizer_s_is_refused_by_name(tmp_path):
    with pytest.raises(ckptd.Unimplemented, match="an optimizer's state"):
        merge_fsdp_weights(f"{SHARDED[2].parent}#optimizer", tmp_path / "out")


def test_an_optimizer_s_state_is_refused_by_name(tmp_path):
    with pytest.raises(ckptd.Unimplemented) as raised:
        merge_fsdp_weights(FIXTURES / "accelerate_fsdp2_sharded/optimizer_0", tmp_path / "out")
    assert raised.value.reason == "TARGET_INVALID"
    assert not (tmp_path / "out").exists()


def test_an_output_below_a_folder_that_is_not_there_fails(tmp_path):
    for merge, error in ((merge_fsdp_weights, ckptd.NotFound), (accelerate_utils.merge_fsdp_weights, FileNotFoundError)):
        with pytest.raises(error):
            merge(SHARDED[2], tmp_path / "none/out")


def test_without_the_program_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="ckptctl"):
        merge_fsdp_weights(SHARDED[2], tmp_path / "out")
