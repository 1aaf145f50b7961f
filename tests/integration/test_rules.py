"""Loads by rule: what each rank maps is what torch would have put there."""

import json

import ckptd
import pytest
import torch
from group import save


def as_bytes(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def chunk(tensor, rank, ranks):
    """torch.chunk's part, empty past the end, as fully_shard keeps it."""
    if tensor.dim() == 0:
        return tensor
    parts = list(torch.chunk(tensor, ranks))
    return parts[rank] if rank < len(parts) else tensor[:0]


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
                check(shard, tensors, lambda t: chunk(t, rank, ranks))
        progress = group.json("get", checkpoint.name, rank=rank)["progress"]
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        assert int(progress["storage_bytes"]) == total


def test_replicas_of_an_hsdp_layout_hold_the_same_rows_read_once(start, source):
    path, tensors = source
    group = start(4)
    for rank in range(4):
        with ckptd.connect(group.address(rank)) as client:
            checkpoint = client.load(path, layout="hsdp:2x2")
            with client.acquire(checkpoint) as shard:
                check(shard, tensors, lambda t: chunk(t, rank % 2, 2))
    progress = group.json("get", checkpoint.name)["progress"]
    assert int(progress["storage_bytes"]) == sum(t.numel() * t.element_size() for t in tensors.values())


def test_replicate_gives_every_rank_everything_and_reads_it_once(pair, source):
    path, tensors = source
    for rank in range(2):
        with ckptd.connect(pair.address(rank)) as client:
            checkpoint = client.load(path, layout="replicate:2")
            with client.acquire(checkpoint) as shard:
                check(shard, tensors, lambda t: t)
    assert int(pair.json("get", checkpoint.name)["progress"]["storage_bytes"]) == sum(
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
                return chunk(tensor, 1, 2)
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
