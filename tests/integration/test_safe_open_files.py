"""safe_open against safetensors' own, with real daemons."""

import pathlib

import ckptd
import pytest
import safetensors
import torch
from group import save

TENSORS = {
    "a": torch.arange(50, dtype=torch.float32).reshape(10, 5),
    "b": torch.arange(12).to(torch.bfloat16).reshape(3, 4),
    "packed": torch.arange(16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(2, 8),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(7),
}


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.contiguous().view(-1).view(torch.uint8).tolist()


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "m.safetensors", TENSORS)


def test_every_tensor_is_what_safetensors_gives(start, path):
    group = start(1)
    native = safetensors.safe_open(path, "pt")
    with ckptd.safe_open(path, "pt", address=group.address(0)) as ours:
        assert ours.offset_keys() == native.offset_keys()
        for name in ours.keys():
            assert bits(ours.get_tensor(name)) == bits(native.get_tensor(name))
            assert ours.get_slice(name).get_shape() == native.get_slice(name).get_shape()


def test_an_odd_number_of_packed_elements_is_refused_in_safetensors_words(start, tmp_path):
    header = b'{"x":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]}}'
    file = tmp_path / "odd.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\x12")
    group, said = start(1), []
    for opened in (safetensors.safe_open(file, "pt"), ckptd.safe_open(file, "pt", address=group.address(0))):
        with pytest.raises(safetensors.SafetensorError) as error:
            opened.get_tensor("x")
        said.append(str(error.value))
    assert said[0] == said[1]


def test_a_file_that_is_none_is_safetensors_error(start, path, tmp_path):
    group, good = start(1), pathlib.Path(path).read_bytes()
    bad = tmp_path / "bad.safetensors"
    for content in (b"", good[:40], good[:-1], good + b"x"):
        bad.write_bytes(content)
        with pytest.raises(Exception):
            safetensors.safe_open(bad, "np")
        with pytest.raises(safetensors.SafetensorError, match="Error while deserializing header"):
            ckptd.safe_open(bad, "np", address=group.address(0))


def test_a_rewritten_file_is_read_anew(start, path):
    address = start(1).address(0)
    assert ckptd.safe_open(path, "pt", address=address).get_tensor("a")[0, 1] == 1
    save(pathlib.Path(path), {"a": torch.full((2, 2), 5.0)})
    assert ckptd.safe_open(path, "pt", address=address).get_tensor("a").tolist() == [[5, 5], [5, 5]]


@pytest.mark.parametrize("in_place", [False, True], ids=["replaced", "written again"])
@pytest.mark.parametrize("resident", [False, True], ids=["first load", "newer one resident"])
def test_a_header_is_never_read_with_the_bytes_of_another_file(start, path, in_place, resident):
    address = start(1).address(0)
    opened = ckptd.safe_open(path, "pt", address=address)
    assert opened.get_slice("a").get_shape() == [10, 5]
    newer = {**TENSORS, "a": TENSORS["a"] + 1000}
    if in_place:
        other = pathlib.Path(save(pathlib.Path(path).with_name("other"), newer)).read_bytes()
        pathlib.Path(path).write_bytes(other)
    else:
        save(pathlib.Path(path).with_name("other"), newer)
        pathlib.Path(path).with_name("other").rename(path)
    if resident:
        assert ckptd.safe_open(path, "pt", address=address).get_tensor("a")[0, 1] == 1001
    with pytest.raises(ckptd.Aborted, match="have changed since it was opened; open it again") as error:
        opened.get_tensor("a")
    assert error.value.reason == "SOURCE_CHANGED"
    assert ckptd.safe_open(path, "pt", address=address).get_tensor("a")[0, 1] == 1001
