"""Hosts on which the same path leads to other files: no load mixes them."""

import os
import shutil

import ckptd
import pytest
import torch
from group import save
from hosts import SpreadGroup, TwoHosts, why_not

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

NAMES = {"one": torch.zeros(64, 64), "two": torch.ones(16)}


def later(folder):
    stat = os.stat(folder / "a.safetensors")
    save(folder / "a.safetensors", {name: tensor + 1 for name, tensor in NAMES.items()})
    os.utime(folder / "a.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def keeping_its_time(folder, tensors):
    stat = os.stat(folder / "a.safetensors")
    save(folder / "a.safetensors", tensors)
    os.utime(folder / "a.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))


def longer(folder):
    keeping_its_time(folder, {**NAMES, "two": torch.ones(1 << 20)})


def with_names_exchanged(folder):
    """As long as before, and of the same time: the header alone tells."""
    keeping_its_time(folder, {"eno": NAMES["one"], "owt": NAMES["two"]})


@pytest.mark.parametrize("reader", ["per_node", "all"])
@pytest.mark.parametrize("change", [later, longer, with_names_exchanged])
def test_a_reader_whose_files_are_others_than_rank_0s_fails_the_load_by_rank_and_file(
    tmp_path, change, reader
):
    folder, other = tmp_path / "model", tmp_path / "other"
    path = save(folder / "a.safetensors", NAMES)
    shutil.copytree(folder, other)
    change(other)
    with TwoHosts() as network, SpreadGroup(
        tmp_path, network, [0, 1], "--reader", reader, other_files=(folder, other)
    ) as group, ckptd.connect(group.address(0)) as client:
        with pytest.raises(ckptd.Error) as caught:
            client.load(str(folder), layout="fsdp:2")
        error = caught.value
        assert (error.code, error.reason) == ("ABORTED", "SOURCE_CHANGED"), error
        assert path in error.message and "rank 1" in error.message, error
        assert [c.state for c in client.list()] == ["FAILED"]


def test_a_copy_that_keeps_its_times_is_as_good_as_a_shared_file(tmp_path):
    folder, other = tmp_path / "model", tmp_path / "other"
    save(folder / "a.safetensors", NAMES)
    shutil.copytree(folder, other)
    with TwoHosts() as network, SpreadGroup(
        tmp_path, network, [0, 1], "--reader", "per_node", other_files=(folder, other)
    ) as group, ckptd.connect(group.address(1)) as client:
        with client.acquire(client.load(str(folder), layout="fsdp:2")) as shard:
            for name, tensor in NAMES.items():
                mine = torch.chunk(tensor, 2)[1]
                assert bytes(shard.tensors[name].buffer) == mine.contiguous().numpy().tobytes()
