"""Parts of sources, as their names and an argument state them."""

import pytest

from ckptd import _passing, _source


def test_a_part_stands_behind_the_path(tmp_path):
    (tmp_path / "ckpt").mkdir()
    ckpt = str(tmp_path / "ckpt")
    assert _source.split_part(f"{ckpt}#optimizer") == (ckpt, "optimizer")
    assert _source.source_text(f"{ckpt}/#optimizer") == f"{ckpt}#optimizer"
    assert _source.source_text(_source.of_part(ckpt, "optimizer")) == f"{ckpt}#optimizer"
    assert _source.of_part(ckpt, None) == ckpt


@pytest.mark.parametrize("name", ["a", "a#", "#a#", "a#b c", "a#b/c"])
def test_other_names_are_whole(name, tmp_path):
    assert _source.split_part(str(tmp_path / name)) == (str(tmp_path / name), "")


def test_a_file_whose_name_holds_a_hash_is_whole(tmp_path):
    path = tmp_path / "a#b"
    path.write_bytes(b"")
    assert _source.split_part(str(path)) == (str(path), "")
    assert _source.source_text(path) == str(path)


def test_the_hubs_models_have_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--me--two" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for name in ("me/two#optimizer", "hf://me/two#optimizer"):
        assert _source.source_text(name) == f"{snapshot}#optimizer"


def test_two_parts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="ask for two parts"):
        _source.of_part(f"{tmp_path}#model", "optimizer")


def test_files_of_a_part_are_those_of_its_source(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"x")
    assert _passing.files_of(f"{tmp_path}#optimizer") == [str(tmp_path / "a.bin")]
