"""Without daemons the same files make a checkpoint as with them: ckptctl inspect is who knows."""

import io
import json
import os
import pathlib
import subprocess

import ckptd
import pytest

pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
CKPTCTL = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin/ckptctl"
pytestmark = pytest.mark.skipif(not CKPTCTL.exists(), reason="ckptctl is not built")


def holding(name):
    header = json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"x"


def pickled(name):
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({name: torch.ones(1)}, file)
    return file.getvalue()


A, B, PICKLE = holding("x"), holding("y"), pickled("x")
USUAL = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def index(**weight_map):
    return json.dumps({"weight_map": weight_map}).encode()


def config(weights):
    return json.dumps({"transformers_weights": weights}).encode()


# name of the case -> (file -> bytes, the path that is opened)
SHAPES = {
    "one file": ({"a.safetensors": A}, "a.safetensors"),
    "a file of another name": ({"weights": A}, "weights"),
    "a file with the name of another format": ({"weights.bin": A}, "weights.bin"),
    "a folder of files": ({"b.safetensors": B, "a.safetensors": A, "config.json": b"{}"}, ""),
    "hidden files": ({"a.safetensors": A, ".b.safetensors": B}, ""),
    "a hidden index": ({"a.safetensors": A, ".x.safetensors.index.json": index()}, ""),
    "the usual index, other files beside it": (
        {USUAL: index(x="a.safetensors"), "a.safetensors": A, "b.safetensors": B}, ""),
    "an index of another name": (
        {"other.safetensors.index.json": index(x="a.safetensors"), "a.safetensors": A, "b.safetensors": B}, ""),
    "the usual index among others": (
        {USUAL: index(x="a.safetensors"), "x.safetensors.index.json": index(y="b.safetensors"),
         "a.safetensors": A, "b.safetensors": B}, ""),
    "two other indices": (
        {"w.safetensors.index.json": index(x="a.safetensors"), "x.safetensors.index.json": index(x="a.safetensors"),
         "a.safetensors": A}, ""),
    "an index by its path": (
        {"x.json": index(x="a.safetensors", y="b.safetensors"), "a.safetensors": A, "b.safetensors": B},
        "x.json"),
    "one file over an index": (
        {"model.safetensors": A, USUAL: index(y="b.safetensors"), "b.safetensors": B, "pytorch_model.bin": b""}, ""),
    "the usual index over pickles": ({USUAL: index(x="a.safetensors"), "a.safetensors": A, "pytorch_model.bin": b""}, ""),
    "pickles over other files": ({"pytorch_model.bin": PICKLE, "a.safetensors": A}, ""),
    "an index of pickles over a series": (
        {"pytorch_model.bin.index.json": index(x="a.bin"), "a.bin": PICKLE, FIRST: A, SECOND: B}, ""),
    "pickles alone": ({"pytorch_model.bin": PICKLE, "config.json": b"{}"}, ""),
    "an index of pickles alone": (
        {"pytorch_model.bin.index.json": index(x="a.bin"), "a.bin": PICKLE, "b.bin": PICKLE}, ""),
    "a pickle by its path": ({"a.pt": PICKLE, "a.safetensors": A}, "a.pt"),
    "an index of pickles by its path": ({"x.json": index(x="a.bin"), "a.bin": PICKLE}, "x.json"),
    "a series over other files": ({FIRST: A, SECOND: B, "c.safetensors": A}, ""),
    "a series with a gap": ({FIRST: A, "c.safetensors": A}, ""),
    "a series from zero": ({"m-00000-of-00002.safetensors": A, "m-00001-of-00002.safetensors": B}, ""),
    "the usual series over another": ({FIRST: A, SECOND: B, "n-00001-of-00001.safetensors": A}, ""),
    "two series": ({"m-00001-of-00001.safetensors": A, "n-00001-of-00001.safetensors": B}, ""),
    "files that are no part": (
        {"a.safetensors": A, **dict.fromkeys(("optimizer.safetensors", "adapter_model-00001-of-00001.safetensors",
                                              "random_states_0.safetensors"), B), "scalers.safetensors": B}, ""),
    "one file that is no part, alone": ({"consolidated.safetensors": A}, ""),
    "files that are no part, alone": ({"consolidated.safetensors": A, "adapter_model.safetensors": B}, ""),
    "an index that is no part beside one": (
        {"x.safetensors.index.json": index(x="a.safetensors"), "consolidated.safetensors.index.json": index(y="b.safetensors"),
         "a.safetensors": A, "b.safetensors": B}, ""),
    "a file that the config names": ({"config.json": config("b.safetensors"), "b.safetensors": B, "model.safetensors": A}, ""),
    "an index below that the config names": (
        {"config.json": config("i.safetensors.index.json"), "i.safetensors.index.json": index(y="b.safetensors"),
         "b.safetensors": B, "model.safetensors": A}, ""),
    "a file above that the config names": ({"config.json": config("../b.safetensors"), "model.safetensors": A}, ""),
    "pickles that the config names": ({"config.json": config("b.bin"), "model.safetensors": A}, ""),
    "a config that is no JSON": ({"config.json": b"{", "model.safetensors": A}, ""),
    "no file": ({"config.json": b"{}"}, ""),
    "an index without names": ({USUAL: b"{}", "a.safetensors": A}, ""),
    "an index that is a list": ({USUAL: b"[]", "a.safetensors": A}, ""),
    "an index that is no JSON": ({USUAL: b"{", "a.safetensors": A}, ""),
}  # fmt: skip


def inspected(path):
    """Names of the files, or None where it is refused."""
    done = subprocess.run([CKPTCTL, "--output", "json", "inspect", path], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return None
    files = {os.path.basename(file["path"]) for file in json.loads(done.stdout)["files"]}
    return {name for name in files if not name.endswith(".json")}  # without the index


def read_without(path):
    from ckptd.torch.load import _native_files

    read = set()
    try:
        _native_files.read(str(path), lambda file: read.add(os.path.basename(file)) or {})
    except (ckptd.Error, FileNotFoundError):
        return None
    return read


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_read_without_daemons_is_what_they_would_read(tmp_path, shape):
    contents, opened = SHAPES[shape]
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    assert read_without(tmp_path / opened) == inspected(tmp_path / opened)


def test_the_shapes_are_both_read_and_refused(tmp_path):
    found = []
    for number, (contents, opened) in enumerate(SHAPES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        found.append(inspected(folder / opened) is None)
    assert 3 <= sum(found) <= len(found) - 8, found
