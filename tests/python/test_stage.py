"""A state dict of this process as a safetensors file in memory."""

import os
import struct
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
from ckptd.torch.spread import _staging  # noqa: E402
from fake_slab import offered as read_offered  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from worker_group import PYTHONPATH  # noqa: E402


@pytest.fixture
def staged():
    """staged(tensors) -> a MemoryFile that is closed after the test."""
    made = []

    def make(tensors, how=_staging.MemoryFile):
        made.append(how(_staging._image(tensors)))
        return made[-1]

    yield make
    for file in made:
        file.close()


def tensors():
    generator = torch.Generator().manual_seed(2)
    return {
        "plain": torch.randn(5, 7, generator=generator),
        "half": torch.randn(3, generator=generator).to(torch.bfloat16),
        "fp8": torch.randn(4, 4, generator=generator).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False, True]),
        "one": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "turned": torch.randn(6, 9, generator=generator).t(),
        "every other": torch.randn(8, 4, generator=generator)[::2, 1:],
    }


def test_safetensors_reads_what_was_written(staged):
    expected = tensors()
    found = load_file(staged(expected).path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        if tensor.numel():
            assert torch.equal(found[name].view(torch.uint8) if tensor.dim() else found[name],
                               tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor), name


def test_tensors_larger_than_a_block_are_written_in_any_memory_order(staged, monkeypatch):
    monkeypatch.setattr(_staging, "_BLOCK", 1000)
    expected = {"rows": torch.randn(700, 33), "turned": torch.randn(90, 800).t(), "deep": torch.randn(7, 60, 40).transpose(1, 2)}
    found = load_file(staged(expected).path)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_tensors_that_are_the_same_memory_are_stored_once(staged):
    weight = torch.randn(50, 4)
    file = staged({"a": weight, "b": weight, "part": weight[:2], "equal": weight.clone()})
    with safe_open(file.path, "pt") as opened:
        assert sorted(opened.keys()) == ["a", "equal", "part"]
        assert opened.metadata() == {"format": "pt", "b": "a"}


def test_nothing_can_change_what_the_daemons_read(staged):
    file = staged({"a": torch.ones(4)})
    fd = os.open(file.path, os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def closed(file):
    """Closes it, and waits for what that leaves to a thread."""
    others = set(threading.enumerate())
    file.close()
    for thread in set(threading.enumerate()) - others:
        thread.join(60)


def test_its_memory_is_gone_when_it_is_closed(staged):
    file = staged({"a": torch.ones(4)})
    path = file.path
    closed(file)
    file.close()
    assert not os.path.exists(path)


def test_its_memory_is_gone_also_where_no_thread_can_be_had(staged, monkeypatch):
    def none(_):
        raise RuntimeError("can't start new thread")

    file = staged({"a": torch.ones(4)})
    path = file.path
    monkeypatch.setattr(threading.Thread, "start", none)
    file.close()
    assert not os.path.exists(path)


def test_a_folder_that_both_see_can_be_named(staged, tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_STAGE_DIR", str(tmp_path))
    file = staged({"a": torch.arange(4.0)})
    assert os.path.dirname(file.path) == str(tmp_path)
    assert os.stat(file.path).st_mode & 0o777 == 0o600
    assert torch.equal(load_file(file.path)["a"], torch.arange(4.0))
    file.close()
    assert os.listdir(tmp_path) == []


LEAVE_ONE = """
import os, signal, torch
from ckptd.torch.spread import _staging
file = _staging.MemoryFile(_staging._image({"a": torch.ones(4)}))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_in_the_folder_the_next_one_removes(staged, tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_STAGE_DIR", str(tmp_path))
    others = ["ckptd-original.safetensors", "ckptd-stage-my weights.safetensors", "model.safetensors"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    process = subprocess.run([sys.executable, "-c", LEAVE_ONE], env={**os.environ, "PYTHONPATH": PYTHONPATH})
    assert process.returncode == -9
    (left,) = set(os.listdir(tmp_path)) - set(others)
    check = _staging._check_room
    monkeypatch.setattr(_staging, "_check_room", lambda size: check(size) or (tmp_path / left).exists() and pytest.fail("its room is lost"))
    file = staged({"a": torch.zeros(2)})
    assert left.startswith("ckptd-stage-") and left.endswith(".safetensors")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, os.path.basename(file.path)])


def test_what_is_no_file_in_the_folder_is_not_waited_for_and_stays(staged, tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_STAGE_DIR", str(tmp_path))
    pipe = tmp_path / "ckptd-stage-abcdefgh.safetensors"
    os.mkfifo(pipe)
    files = []
    thread = threading.Thread(target=lambda: files.append(staged({"a": torch.zeros(2)})), daemon=True)
    thread.start()
    thread.join(60)
    assert files, "it waits for somebody to write into the pipe"
    assert sorted(os.listdir(tmp_path)) == sorted([pipe.name, os.path.basename(files[0].path)])


def test_a_copy_that_somebody_removed_is_closed_all_the_same(staged, tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_STAGE_DIR", str(tmp_path))
    file = staged({"a": torch.zeros(2)})
    os.unlink(file.path)
    file.close()
    assert file._fd == -1


def test_what_others_still_offer_in_the_folder_stays(staged, tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_STAGE_DIR", str(tmp_path))
    first, second = staged({"a": torch.ones(2)}), staged({"a": torch.zeros(2)})
    assert torch.equal(load_file(first.path)["a"], torch.ones(2))
    first.close()
    assert os.listdir(tmp_path) == [os.path.basename(second.path)]


def test_a_dict_for_which_there_is_no_room_is_refused_before_anything_is_written(monkeypatch):
    monkeypatch.setattr(_staging, "available_bytes", lambda: (64 << 20) + 1000)
    monkeypatch.setattr(os, "memfd_create", lambda *_: pytest.fail("a file was made"))
    with pytest.raises(ckptd.ResourceExhausted, match="there is room for 1e-06 GB; save it to a file") as raised:
        _staging.MemoryFile(_staging._image({"a": torch.ones(1000)}))
    assert raised.value.reason == "NO_MEMORY"


def test_room_is_within_what_the_system_has_free():
    with open("/proc/meminfo") as file:
        total = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) * 1024
    assert 0 < _staging.available_bytes() <= total


@pytest.mark.parametrize("tensor,reason", [
    (torch.empty(2, device="meta"), "NO_VALUES"),
    (torch.zeros(2, dtype=torch.complex128), "DTYPE_UNSUPPORTED"),
])
def test_a_tensor_that_cannot_be_written_is_named(tensor, reason):
    with pytest.raises(ckptd.Error, match="spreading odd") as raised:
        _staging._image({"fine": torch.ones(2), "odd": tensor})
    assert raised.value.reason == reason


# ---- Offered where it is.


def ranges_of(offered):
    with open(offered.path, "rb") as file:
        data = file.read()
    assert data[:8] == b"CKPTDMEM"
    return list(struct.iter_unpack("<QQ", data[16 : 16 + 16 * int.from_bytes(data[8:16], "little")]))


def test_what_is_offered_has_the_bytes_that_a_copy_has(staged):
    given = tensors()
    offered, copied = staged(given, _staging.OfferedMemory), staged(given)
    with open(offered.path, "rb") as file:
        start = file.read()
    assert len(start) == os.stat(copied.path).st_size + 16 + 16 * len(ranges_of(offered))
    with open(copied.path, "rb") as file:
        assert read_offered(start) == file.read()


def test_tensors_in_row_major_order_stay_where_they_are(staged):
    given = tensors()
    found = ranges_of(staged(given, _staging.OfferedMemory))
    assert {(t.data_ptr(), t.numel() * t.element_size()) for n, t in given.items()
            if t.is_contiguous() and n != "none"} < set(found)
    assert len(found) == len(given) - 1
    assert {given["turned"].data_ptr(), given["every other"].data_ptr()}.isdisjoint(a for a, _ in found)


def test_an_offer_holds_its_tensors_until_it_is_closed(staged):
    tensor = torch.ones(1000)
    kept = weakref.ref(tensor)
    offered = staged({"a": tensor}, _staging.OfferedMemory)
    path = offered.path
    del tensor
    assert kept() is not None or offered._tensors[0].data_ptr() == ranges_of(offered)[0][0]
    offered.close()
    offered.close()
    assert offered._tensors == [] and not os.path.exists(path)


def test_nothing_can_change_what_is_offered(staged):
    fd = os.open(staged({"a": torch.ones(4)}, _staging.OfferedMemory).path, os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_only_copies_need_room(staged, monkeypatch):
    monkeypatch.setattr(_staging, "available_bytes", lambda: (64 << 20) + 1000)
    staged({"a": torch.ones(4000)}, _staging.OfferedMemory)
    with pytest.raises(ckptd.ResourceExhausted):
        staged({"a": torch.ones(40, 100).t()}, _staging.OfferedMemory)


def test_yama_is_told_who_may_read_for_as_long_as_something_is_offered(staged, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(_staging.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *a: said.append((a[0], a[1].value))))
    monkeypatch.setattr(_staging, "_YAMA", str(tmp_path / "scope"))
    (tmp_path / "scope").write_text("1\n")
    offered = staged({"a": torch.ones(4)}, _staging.OfferedMemory)
    assert said == [(0x59616D61, 2**64 - 1)]
    offered.close()
    assert said[1:] == [(0x59616D61, 0)]
    (tmp_path / "scope").write_text("0\n")  # whoever may trace may read, as without it
    staged({"a": torch.ones(4)}, _staging.OfferedMemory).close()
    assert len(said) == 2
