"""One flipped bit is found, by name: in memory, on its way to another rank, and on disk."""

import json
import re
import shutil

import ckptd
import pytest
import torch
from group import Daemon, save, wait_until
from noise import doors
from wire import TappedMember

SEED = 5


@pytest.fixture
def model(tmp_path):
    """(path, tensors): bytes that occur nowhere else, and a tensor with padding behind it."""
    generator = torch.Generator().manual_seed(SEED)
    tensors = {
        "odd": torch.randint(0, 255, (3,), dtype=torch.uint8, generator=generator),
        "first": torch.randint(0, 255, (64, 4096), dtype=torch.uint8, generator=generator),
        "second": torch.randint(0, 255, (64, 4096), dtype=torch.uint8, generator=generator),
    }
    return save(tmp_path / "model.safetensors", tensors), tensors


def flip(path, offset):
    """Flips the lowest bit of a byte of a file; that of a process's memory is one, too."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def address_of(pid, pattern):
    """Where a process has these bytes in memory that it shares."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            begin, end, access, name = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \S+ *(.*)", line).groups()
            if "memfd" not in name or not access.startswith("rw"):
                continue
            memory.seek(int(begin, 16))
            at = memory.read(int(end, 16) - int(begin, 16)).find(pattern)
            if at >= 0:
                return int(begin, 16) + at
    raise AssertionError(f"process {pid} has no such bytes")


def shards_memory(group, rank):
    """(daemon's pid, path of its memory); skips the test where that cannot be written."""
    pid = group.pid(rank)
    try:
        open(f"/proc/{pid}/mem", "r+b", buffering=0).close()
    except PermissionError:
        pytest.skip("the memory of a daemon can be written by root alone")
    return pid, f"/proc/{pid}/mem"


@pytest.mark.parametrize("where", ["its bytes", "its padding"])
def test_a_bit_that_flips_in_a_shard_is_found_by_tensor_rank_and_file(start, sharded, where):
    folder, tensors, _ = sharded
    path = str(folder / ("b.safetensors" if where == "its bytes" else "a.safetensors"))
    group = start(2)
    pid, memory = shards_memory(group, 1)
    with ckptd.connect(group.address(1)) as client:
        checkpoint = client.load(str(folder), layout="replicate:2")
    for rank in range(2):
        assert group.json("verify", checkpoint.name, rank=rank)["rank"] == rank
    wanted = bytes(tensors["second" if where == "its bytes" else "odd"].numpy())
    pattern = wanted if len(wanted) > 3 else wanted + bytes(509)
    flip(memory, address_of(pid, pattern) + (1000 if len(wanted) > 3 else 400))
    name = "second" if len(wanted) > 3 else "odd"
    assert group.json("verify", checkpoint.name, rank=0)["mismatched"] == []
    answer = group.ctl("verify", checkpoint.name, rank=1)
    assert answer.returncode == 5
    found = json.loads(answer.stdout)
    assert found["mismatched"] == [name]
    assert found["differences"] == [
        {"tensor": name, "file": path, "what": "not the bytes that were loaded"}
    ]
    error = json.loads(answer.stderr)["error"]
    assert error["reason"] == "DIGEST_MISMATCH" and error["facts"]["rank"] == "1"
    assert f"{name} in {path}" in error["message"] and "rank 1" in error["message"]
    attached = group.ctl("verify", checkpoint.name, "--attached", rank=1)
    if where == "its bytes":
        assert json.loads(attached.stdout)["mismatched"] == [name]


class OneFlip:
    """Flips one bit of the first bytes of a tensor that come by."""

    def __init__(self, tensor):
        data = bytes(tensor.numpy().tobytes())
        self.marks = [data[i : i + 64] for i in range(0, len(data), 4096)]
        self.left = 0

    def __call__(self, data):
        for mark in self.marks if self.left else ():
            at = data.find(mark)
            if at >= 0:
                self.left -= 1
                return data[: at + 31] + bytes([data[at + 31] ^ 1]) + data[at + 32 :]
        return data


def test_a_bit_that_flips_on_the_way_fails_the_load_by_name_and_nothing_wrong_is_seen(
    tmp_path_factory, model
):
    path, tensors = model
    folder = [tmp_path_factory.mktemp("f") for _ in range(2)]
    flips = OneFlip(tensors["second"])
    plain = ("--peer-auth", "none")  # TLS would end the connection: what is tested lies behind it
    with Daemon(folder[0], "--host-id", "near", *plain, ranks=2) as leader:
        with TappedMember(doors(leader)["peer"], flips) as tapped, Daemon(
            folder[1], "--host-id", "far", *plain, ranks=2, rank=1, rendezvous=tapped.rendezvous
        ) as member:
            wait_until(lambda: leader.info()["state"] == "READY", "the group")
            flips.left = 1
            with ckptd.connect(member.address(1)) as client, ckptd.connect(
                leader.address(0)
            ) as other:
                with pytest.raises(ckptd.Error) as caught:
                    client.load(path, layout="replicate:2")
                error = caught.value
                assert (error.code, error.reason) == ("DATA_LOSS", "TRANSFER_CORRUPT"), error
                for part in (path, "rank 1", "second"):
                    assert part in error.message, error
                for asked in (client, other):
                    failed = [c for c in asked.list() if c.source == path]
                    assert [c.state for c in failed] == ["FAILED"]
                    with pytest.raises(ckptd.Error):
                        asked.acquire(failed[0])
                assert flips.left == 0
                with client.acquire(client.load(path, layout="replicate:2")) as shard:
                    for name, tensor in tensors.items():
                        assert bytes(shard.tensors[name].buffer) == tensor.numpy().tobytes()


@pytest.fixture
def sharded(tmp_path, model):
    """A folder with two files and an index, and its manifest."""
    _, tensors = model
    folder = tmp_path / "sharded"
    save(folder / "a.safetensors", {k: tensors[k] for k in ("odd", "first")})
    save(folder / "b.safetensors", {"second": tensors["second"]})
    weight_map = {"odd": "a.safetensors", "first": "a.safetensors", "second": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder, tensors, tmp_path / "kept.json"


def test_a_bit_that_flips_on_disk_is_found_by_tensor_and_file_beside_a_manifest(
    start, sharded, tmp_path
):
    folder, tensors, manifest = sharded
    group = start(1)
    group.json("verify", folder, "--write-manifest", manifest)
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    assert group.json("verify", copy, "--manifest", manifest)["ok"]
    file = copy / "b.safetensors"
    flip(file, file.read_bytes().find(tensors["second"].numpy().tobytes()) + 5000)
    assert group.json("verify", copy)["ok"]  # what can be read alone does not show it
    answer = group.ctl("verify", copy, "--manifest", manifest)
    assert answer.returncode == 5
    assert json.loads(answer.stdout)["differences"] == [
        {"tensor": "second", "file": "b.safetensors", "what": "its bytes differ"}
    ]
    error = json.loads(answer.stderr)["error"]
    assert error["reason"] == "DIGEST_MISMATCH"
    assert "second in b.safetensors" in error["message"]


@pytest.mark.parametrize("name", ["a.safetensors", "model.safetensors.index.json"])
def test_no_bit_of_any_file_escapes_its_manifest(start, sharded, name):
    folder, _, manifest = sharded
    group = start(1)
    group.json("verify", folder, "--write-manifest", manifest)
    whole = (folder / name).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little") if name.endswith("rs") else len(whole)
    offsets = {0, 1, 7, 8, 9, header // 2, header - 1, len(whole) // 2, len(whole) - 1}
    for offset in sorted(offsets):
        flip(folder / name, offset)
        answer = group.ctl("verify", folder, "--manifest", manifest)
        assert answer.returncode != 0 and name in answer.stderr, (offset, answer)
        flip(folder / name, offset)
    assert group.json("verify", folder, "--manifest", manifest)["ok"]
