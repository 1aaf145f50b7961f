"""Loads by rule: what each rank maps is what torch would have put there."""

import json
import os
import shutil
from urllib.parse import unquote_to_bytes

import ckptd
import pytest
import torch
from group import save
from slices import as_bytes, rows


def check(shard, tensors, part):
    assert set(shard.tensors) == set(tensors)
    for name, tensor in tensors.items():
        view = shard.tensors[name]
        expected = part(tensor)
        assert tuple(view.shape) == tuple(expected.shape), name
        assert bytes(view.buffer) == as_bytes(expected), name


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_each_rank_maps_its_rows_of_an_fsdp_layout(start, source, ranks):
    path, tensors = source
    group = start(ranks)
    for rank in range(ranks):
        with ckptd.connect(group.address(rank)) as client:
            checkpoint = client.load(path, layout=f"fsdp:{ranks}")
            with client.acquire(checkpoint) as shard:
                check(shard, tensors, lambda t: rows(t, rank, ranks))
        progress = group.json("get", checkpoint.name, rank=rank)["progress"]
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        assert int(progress["read"]["storage_bytes"]) == total


def test_replicas_of_an_hsdp_layout_hold_the_same_rows_read_once(start, source):
    path, tensors = source
    group = start(4)
    for rank in range(4):
        with ckptd.connect(group.address(rank)) as client:
            checkpoint = client.load(path, layout="hsdp:2x2")
            with client.acquire(checkpoint) as shard:
                check(shard, tensors, lambda t: rows(t, rank % 2, 2))
    progress = group.json("get", checkpoint.name)["progress"]
    assert int(progress["read"]["storage_bytes"]) == sum(t.numel() * t.element_size() for t in tensors.values())


def test_replicate_gives_every_rank_everything_and_reads_it_once(pair, source):
    path, tensors = source
    for rank in range(2):
        with ckptd.connect(pair.address(rank)) as client:
            checkpoint = client.load(path, layout="replicate:2")
            with client.acquire(checkpoint) as shard:
                check(shard, tensors, lambda t: t)
    assert int(pair.json("get", checkpoint.name)["progress"]["read"]["storage_bytes"]) == sum(
        t.numel() * t.element_size() for t in tensors.values())


def test_floating_tensors_are_cast_as_torch_casts_them(pair, source):
    path, tensors = source
    with ckptd.connect(pair.address(1)) as client:
        checkpoint = client.load(path, layout="fsdp:2", dtype="BF16", keep_fp32=["layer.0.*"])
        with client.acquire(checkpoint) as shard:
            def part(name, tensor):
                # Integers, bool and fp8 stay as they are.
                if tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                    tensor = tensor.to(torch.float32 if name.startswith("layer.0.") else torch.bfloat16)
                return rows(tensor, 1, 2)
            for name, tensor in tensors.items():
                assert bytes(shard.tensors[name].buffer) == as_bytes(part(name, tensor)), name


def test_the_same_request_again_finds_the_resident_checkpoint(pair, source):
    path, _ = source
    with ckptd.connect(pair.address(0)) as client:
        first = client.load(path, layout="fsdp:2")
        again = client.load(path, layout="fsdp:2")
        assert (again.name, again.resident) == (first.name, True)


def test_a_changed_file_is_loaded_anew(pair, source, tmp_path):
    path = save(tmp_path / "changing.safetensors", {"w": torch.arange(8.0)})
    with ckptd.connect(pair.address(0)) as client:
        first = client.load(path, layout="fsdp:2")
        save(tmp_path / "changing.safetensors", {"w": torch.arange(8.0) + 1})
        second = client.load(path, layout="fsdp:2")
        assert second.name != first.name and not second.resident
        with client.acquire(second) as shard:
            assert bytes(shard.tensors["w"].buffer) == as_bytes(torch.arange(4.0) + 1)


def test_a_table_of_100_000_tensors_fits_default_message_limits(pair, tmp_path):
    tensors = {f"model.layers.{i // 100}.experts.{i % 100}.down_proj.weight": torch.full((2,), float(i % 7))
               for i in range(100_000)}
    path = save(tmp_path / "many.safetensors", tensors)
    with ckptd.connect(pair.address(1)) as client:
        checkpoint = client.load(path, layout="fsdp:2")
        with client.acquire(checkpoint) as shard:
            assert len(shard.tensors) == 100_000
            for i in (0, 99_999, 50_000):
                name = f"model.layers.{i // 100}.experts.{i % 100}.down_proj.weight"
                assert bytes(shard.tensors[name].buffer) == as_bytes(torch.full((1,), float(i % 7)))


def test_an_index_that_is_swapped_is_loaded_anew(pair, tmp_path):
    def point_to(name):
        index = {"weight_map": {"w": name}}
        (tmp_path / "new").write_text(json.dumps(index))
        (tmp_path / "new").rename(tmp_path / "model.safetensors.index.json")

    for step, name in enumerate(("first.safetensors", "second.safetensors")):
        save(tmp_path / name, {"w": torch.full((4,), float(step))})
    with ckptd.connect(pair.address(0)) as client:
        for step, name in enumerate(("first.safetensors", "second.safetensors")):
            point_to(name)
            with client.acquire(client.load(str(tmp_path), layout="fsdp:2")) as shard:
                assert bytes(shard.tensors["w"].buffer) == as_bytes(torch.full((2,), float(step)))


@pytest.mark.parametrize("layout, shards", [("fsdp:2", 2), ("replicate:2", 1)])
def test_a_plan_counts_equal_shards_once_in_every_language(pair, source, layout, shards):
    with ckptd.connect(pair.address(0)) as client:
        plan = client.plan(source[0], layout=layout)
    assert plan.distinct_bytes == sum(rank.tensor_bytes for rank in plan.ranks[:shards]) > 0
    for where in ((), ("--remote",)):
        assert pair.json("plan", source[0], "--layout", layout, *where)["plan"]["distinct_bytes"] == plan.distinct_bytes


@pytest.mark.parametrize("kind", ["file", "folder", "parts"])
def test_names_that_are_not_utf8_load_on_all_ranks(pair, source, tmp_path, kind):
    path, tensors = source
    odd = os.fsencode(tmp_path) + b"/%41\xff"
    target = odd + b"/m.safetensors" if kind == "folder" else odd + b"/\xfe.safetensors"
    os.mkdir(odd)
    shutil.copy(path, target)
    named = odd if kind == "parts" else target
    for rank in range(2):
        with ckptd.connect(pair.address(rank)) as client:
            checkpoint = client.load(named, layout="fsdp:2")
            with client.acquire(checkpoint) as shard:
                check(shard, tensors, lambda t: rows(t, rank, 2))
            assert client.verify(checkpoint).mismatched == ()
            assert client.plan(named, layout="fsdp:2").storage_bytes > 0
            assert os.fsencode(checkpoint.source) == named
            assert client.inspect(named) == client.inspect(checkpoint.source)
            assert os.fsencode(client.inspect(named).files[0][0]) == target
        shown = pair.json("inspect", os.fsdecode(named), rank=rank)["source"]
        assert shown == pair.json("inspect", "--remote", shown, rank=rank)["source"]
        assert shown.startswith("file:///") and shown.isascii() and unquote_to_bytes(shown[7:]) == named
        assert pair.json("load", shown, "--layout", "fsdp:2", rank=rank)["resident"]


def test_spellings_of_one_path_are_one_checkpoint(pair, source, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    shutil.copy(source[0], folder)
    names = set()
    for spelling in (f"{folder}", f"{folder}/", f"{tmp_path}//m", f"{tmp_path}/./m/.", f"file://{folder}"):
        for rank in range(2):
            names.add(pair.json("load", spelling, "--layout", "replicate:2", rank=rank)["checkpoint"]["name"])
    assert len(names) == 1
