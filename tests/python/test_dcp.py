"""Checkpoints that torch.distributed.checkpoint writes here, tensor by tensor as torch has them.

Drives the program hash_tool, as test_fixtures.py does.
"""

import argparse
import collections
import hashlib
import io
import json
import math
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
PATIENCE = 300
WAY = ".metadata.planner_data."


def ask(*sources):
    """The answer of hash_tool for each source; its tensors with their bytes."""
    build = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build"))
    tool = build / "bin/hash_tool"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    text = "".join(f"{source}\n" for source in sources)
    rest = subprocess.run([tool], input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=PATIENCE).stdout
    answers = []
    for _ in sources:
        length, rest = rest.split(b"\n", 1)
        answer, rest = json.loads(rest[:int(length)]), rest[int(length):]
        assert "error" not in answer, answer["error"]
        for tensor in answer["tensors"]:
            size = tensor["bytes"]
            tensor["bytes"], rest = rest[:size], rest[size:]
        answer["tensors"] = {tensor["name"]: tensor for tensor in answer["tensors"]}
        answers.append(answer)
    return answers


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def flat(value, path=()):
    """As DCP flattens a state dict."""
    nests = isinstance(value, dict) or (isinstance(value, list) and any(
        isinstance(one, (torch.Tensor, dict, list)) for one in value))
    if not nests:
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {below: leaf for key, one in items for below, leaf in flat(one, (*path, key)).items()}


def check(state, answer):
    wanted = {".".join(map(str, path)): value for path, value in flat(state).items()}
    assert set(answer["tensors"]) == set(wanted)
    for name, want in wanted.items():
        got = answer["tensors"][name]
        if isinstance(want, torch.Tensor):
            assert got["shape"] == list(want.shape), name
            assert got["bytes"] == bytes_of(want), name
        else:
            assert (got["kind"], got["dtype"]) == ("object", "U8"), name
            # dcp.load's planner does the same with it in the trainer.
            loaded = torch.load(io.BytesIO(got["bytes"]), weights_only=False)
            assert type(loaded) is type(want) and loaded == want, name


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
          torch.float8_e4m3fn, torch.float8_e5m2]


def a_state():
    torch.manual_seed(7)
    noise = torch.randint(0, 255, (6, 40), dtype=torch.uint8)
    base = torch.randn(6, 8)
    tensors = {f"dtype.{dtype}": noise.clone().view(torch.uint8)[:, :16].contiguous().view(dtype) if dtype != torch.bool
               else noise[:, :5] > 127 for dtype in DTYPES}
    views = {"transposed": base.t(), "rows": base[1:4], "columns": base[:, 2:5], "expanded": base[:1].expand(4, 8),
             "scalar": torch.tensor(3.5), "empty": torch.empty(0, 3), "channels": torch.randn(2, 3, 4, 5).to(
                 memory_format=torch.channels_last), "parameter": torch.nn.Parameter(torch.randn(3))}
    return {
        "model": {**tensors, **views},
        "optimizer": {"state": {"a.b": {"step": torch.tensor(2.0), "exp_avg": torch.randn(3, 2)}},
                      "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": ["a.b"]}]},
        "list": [torch.arange(3), 5, {"x": torch.ones(1)}],
        "step": 7, "none": None, "text": "words", "flags": [True, False], "big": 2 ** 80,
        "odd": {"deque": collections.deque([1]), "namespace": argparse.Namespace(x=1)},
    }


@pytest.mark.parametrize("options", [{}, {"thread_count": 3}, {"single_file_per_rank": False}], ids=str)
def test_each_thing_of_a_save_has_its_bytes(tmp_path, options):
    state = a_state()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "d", **options), no_dist=True)
    whole, = ask(f"{tmp_path}/d#all")
    check(state, whole)
    values = whole["values"]
    assert json.loads(values["optimizer.param_groups.0.lr"]) == 0.1
    assert json.loads(values["optimizer.param_groups.0.betas.1"]) == 0.999
    assert (values["none"], json.loads(values["text"]), values["big"]) == ("null", "words", str(2 ** 80))
    assert whole["opaque"]["odd.namespace"] == "argparse.Namespace"
    # The way to each entry, where the parts of it have dots themselves. The first level needs none.
    ways = {name: json.loads(way) for name, way in values.items() if name.startswith(WAY)}
    assert ways == {WAY + ".".join(map(str, path)): list(path) for path in flat(state) if len(path) > 1}
    model, = ask(f"{tmp_path}/d#model")
    assert not any(name.startswith(WAY) for name in model["values"])


def test_each_part_of_a_save_is_there_by_its_name(tmp_path):
    state = a_state()
    dcp.save(state, checkpoint_id=tmp_path / "d", no_dist=True)
    default, model, optimizer, extra = ask(f"{tmp_path}/d", *(f"{tmp_path}/d#{part}" for part in
                                                              ("model", "optimizer", "extra")))
    check(state["model"], default)
    check(state["model"], model)
    check(state["optimizer"], optimizer)
    check({key: value for key, value in state.items() if key not in ("model", "optimizer")}, extra)
    assert {tensor["kind"] for tensor in optimizer["tensors"].values()} == {"optimizer", "object"}


def test_a_flat_state_dict_is_a_model(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    dcp.save(dict(model.state_dict()), checkpoint_id=tmp_path / "d", no_dist=True)
    got, = ask(tmp_path / "d")
    check(dict(model.state_dict()), got)
    assert not got["remarks"]


def test_items_in_safetensors_are_found(tmp_path):
    formats = pytest.importorskip("torch.distributed.checkpoint.filesystem")
    if not hasattr(formats, "SerializationFormat"):
        pytest.skip("this torch has no such option")
    state = {"model": {"a": torch.randn(3, 2), "b": torch.arange(4)}, "step": 3}
    dcp.save(state, no_dist=True, storage_writer=dcp.FileSystemWriter(
        tmp_path / "d", serialization_format=formats.SerializationFormat.SAFETENSORS))
    got, = ask(f"{tmp_path}/d#all")
    check(state, got)


def test_what_hugging_faces_writer_saves_is_found(tmp_path):
    if not hasattr(dcp, "HuggingFaceStorageWriter"):
        pytest.skip("this torch has no such writer")
    state = {"a": torch.randn(3, 2), "b": torch.arange(4)}
    for distributed in (False, True):
        writer = dcp.HuggingFaceStorageWriter(path=str(tmp_path / str(distributed)), save_distributed=distributed)
        dcp.save(state, storage_writer=writer, no_dist=True)
    for got in ask(tmp_path / "False", tmp_path / "True"):
        check(state, got)


def test_a_file_that_changed_hands_is_named(tmp_path):
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "d", no_dist=True)
    (tmp_path / "d/__0_0.distcp").unlink()
    with pytest.raises(AssertionError, match=r'it lacks "__0_0\.distcp"'):
        ask(tmp_path / "d")


def test_flat_runs_of_megatron_are_shards_of_their_tensors():
    case = FIXTURES / "megatron_old_fully_sharded_model_space"
    expected = json.loads((case / "expected.json").read_text())
    got, = ask(f"{case}#all")
    for name, stored in expected["stored_keys"].items():
        if not name.startswith("optimizer.state.") or stored == "bytes":
            continue
        tensor = got["tensors"][name]
        shards = stored["size"][:-1]
        local = [size // count for size, count in zip(tensor["shape"], shards, strict=True)]
        assert math.prod(local) == stored["size"][-1], name
        values = torch.frombuffer(bytearray(tensor["bytes"]), dtype=torch.float32)
        grid = [size for pair in zip(shards, local, strict=True) for size in pair]
        axes = [*range(0, len(grid), 2), *range(1, len(grid), 2)]
        as_stored = values.reshape(grid).permute(axes)
        assert hashlib.sha256(bytes_of(as_stored)).hexdigest() == expected["tensors"][name]["sha256"], name
    # As Megatron-Core itself had them on its ranks.
    for name, axis in (("output_layer.weight", 0), ("embedding.word_embeddings.weight", 0)):
        for kind in ("fp32_param", "exp_avg", "exp_avg_sq"):
            tensor = got["tensors"][f"optimizer.state.{kind}.model.{name}"]
            values = torch.frombuffer(bytearray(tensor["bytes"]), dtype=torch.float32).reshape(tensor["shape"])
            for rank, shard in enumerate(values.chunk(2, axis)):
                want = expected["per_tp_rank_optimizer_state"][f"{name}|tp{rank}|{kind}"]
                assert list(shard.shape) == want["shape"]
                assert hashlib.sha256(bytes_of(shard)).hexdigest() == want["sha256"]
