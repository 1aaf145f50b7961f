"""safe_open against safetensors' own, call by call."""

import logging
import os

import ckptd
import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

A, E, S, T, SLICE = "a", "empty", "scalar", "three", slice
KEYS = [
    (A, ...),
    (A, ()),
    (A, []),
    (A, [0]),
    (A, 3),
    (A, -10),
    (A, -11),
    (A, True),
    (A, None),
    (A, 1.0),
    (A, 1 << 40),
    (A, np.int64(2)),
    (A, SLICE(None)),
    (A, SLICE(2, None)),
    (A, SLICE(None, 20)),
    (A, SLICE(10, 10)),
    (A, SLICE(5, 5)),
    (A, SLICE(-2, None)),
    (A, SLICE(None, -1)),
    (A, SLICE(0, 9, 3)),
    (A, SLICE(0, 4, 0)),
    (A, SLICE(0, 4, -1)),
    (A, SLICE("x", None)),
    (A, SLICE(1.0, 2)),
    (A, SLICE(0, 1 << 70)),
    (A, SLICE(0, 4, 1 << 70)),
    (A, (SLICE(None), SLICE(0, 2))),
    (A, (SLICE(None), SLICE(0, 0))),
    (A, (SLICE(2, None), 20)),
    (A, (SLICE(None), SLICE(None, 20))),
    (A, (20, 20)),
    (A, (1, 2)),
    (A, (1, 2, 3)),
    (A, (..., ...)),
    (A, (..., SLICE(1, 5, 2))),
    (E, SLICE(None)),
    (E, 0),
    (S, ...),
    (S, ()),
    (S, 0),
    (S, SLICE(None)),
    (T, (..., 1)),
    (T, (0, ..., SLICE(1, 3))),
    (T, (0, ..., 0, 0)),
    (T, (..., 0, 0, 0)),
    (T, (..., 0, 0, 0, 0)),
    (T, (SLICE(0, 2), 1, SLICE(0, 4, 3))),
]
DTYPES = [
    getattr(torch, name)
    for name in (
        "bool uint8 int8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e4m3fnuz "
        "float8_e5m2fnuz int16 uint16 float16 bfloat16 int32 uint32 float32 complex64 float64 int64 uint64"
    ).split()
    if hasattr(torch, name)
]


def write(folder):
    tensors = {
        A: torch.arange(50, dtype=torch.float32).reshape(10, 5),
        E: torch.zeros(0, 3),
        S: torch.tensor(3.5),
        T: torch.arange(24, dtype=torch.int16).reshape(2, 3, 4),
    }
    save_file(tensors, folder / "m.safetensors", metadata={"format": "pt"})
    return str(folder / "m.safetensors")


@pytest.fixture
def path(tmp_path):
    return write(tmp_path)


@pytest.fixture
def both(path, daemon):
    """The two as functions of the same arguments, in the order they are compared."""

    def native(framework="np", *arguments, **named):
        return safetensors.safe_open(path, framework, *arguments, **named)

    def ours(framework="np", *arguments, **named):
        return ckptd.safe_open(path, framework, *arguments, address=daemon.path, **named)

    return native, ours


def outcome(call):
    """What `call` gives, as values that can be compared; errors by type and words."""
    try:
        value = call()
    except Exception as error:  # compared, whatever it is
        return type(error).__name__, str(error)
    if isinstance(value, torch.Tensor):
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return value.dtype, value.shape, value.stride(), value.requires_grad, data
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.strides, value.flags.writeable, value.tobytes()
    return value


def name_of(case):
    return f"{case[0]}-{case[1]}"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """framework -> the same file opened by safetensors and by us."""
    from fake_daemon import FakeDaemon

    folder = tmp_path_factory.mktemp("m")
    file = write(folder)
    with FakeDaemon(str(folder)) as daemon:
        yield {
            framework: (
                safetensors.safe_open(file, framework),
                ckptd.safe_open(file, framework, address=daemon.path),
            )
            for framework in ("np", "pt")
        }


@pytest.mark.parametrize("case", KEYS, ids=name_of)
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_slice_is_what_safetensors_gives(opened, framework, case):
    name, key = case
    native, ours = (outcome(lambda: o.get_slice(name)[key]) for o in opened[framework])
    assert ours == native


@pytest.mark.parametrize("call", ["keys", "offset_keys", "metadata"])
def test_the_header_is_what_safetensors_gives(both, call):
    native, ours = (getattr(open_(), call)() for open_ in both)
    assert ours == native


@pytest.mark.parametrize("framework", ["np", "numpy", "pt", "torch", "pytorch"])
def test_all_tensors_come_in_the_order_of_their_bytes(both, framework):
    native, ours = (open_(framework).get_tensors() for open_ in both)
    assert list(ours) == list(native)
    assert all(outcome(lambda: ours[n]) == outcome(lambda: native[n]) for n in native)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_an_element_type_is_as_with_safetensors(tmp_path, daemon, dtype, framework):
    file = str(tmp_path / "d.safetensors")
    held = torch.arange(16, dtype=torch.uint8) if dtype != torch.bool else torch.ones(16) > 0
    save_file({"x": held.view(dtype).reshape(2, -1)}, file)
    native = safetensors.safe_open(file, framework)
    ours = ckptd.safe_open(file, framework, address=daemon.path)
    assert outcome(lambda: ours.get_tensor("x")) == outcome(lambda: native.get_tensor("x"))
    assert ours.get_slice("x").get_dtype() == native.get_slice("x").get_dtype()


WRONG = [
    {"framework": "tf2"},
    {"framework": 5},
    {"device": "xyz"},
    {"device": "meta"},
    {"device": 1.5},
    {"device": "cuda"},
    {"device": 3},
    {"device": "cuda:x", "framework": "pt"},
    {"device": "mps:1", "framework": "pt"},
    {"backend": "x"},
]


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_wrong_arguments_are_refused_in_safetensors_words(both, case):
    native, ours = (outcome(lambda: open_(**{"framework": "np", **case})) for open_ in both)
    assert ours == native


@pytest.mark.parametrize("call", ["get_tensor", "get_slice"])
def test_a_name_that_is_not_there_is_safetensors_error(both, call):
    native, ours = (outcome(lambda: getattr(open_(), call)("no")) for open_ in both)
    assert ours == native


@pytest.mark.parametrize("call", ["keys", "metadata", "offset_keys", "get_tensors"])
def test_a_closed_file_says_so(both, call):
    def ask(open_):
        with open_() as file:
            pass
        return getattr(file, call)()

    native, ours = (outcome(lambda: ask(open_)) for open_ in both)
    assert ours == native


def test_a_slice_outlives_its_file(both):
    with both[1]("pt") as file:
        part = file.get_slice(A)
    assert torch.equal(part[1], torch.arange(5.0) + 5)


def test_a_file_that_is_not_there_is_file_not_found(daemon):
    with pytest.raises(FileNotFoundError, match="^No such file or directory: notafile$"):
        ckptd.safe_open("notafile", "np", address=daemon.path)


def test_nothing_is_loaded_before_the_first_value_and_then_once(both, daemon):
    file = both[1]("pt")
    slices = [file.get_slice(name) for name in file.keys()]
    assert [part.get_shape() for part in slices] and "LoadCheckpoint" not in daemon.calls
    for part in slices:
        part[...]
    file.get_tensor(A)
    assert daemon.calls.count("LoadCheckpoint") == daemon.calls.count("AcquireShard") == 1


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_tensors_are_the_memory_itself_and_may_be_written(both, framework):
    file = both[1](framework)
    first, second = file.get_tensor(A), file.get_tensor(A)
    first[0, 0] = 7
    assert second[0, 0] == 7
    assert both[1](framework).get_tensor(A)[0, 0] == 0


def test_without_a_daemon_the_error_says_how_to_start_one(path, tmp_path):
    with pytest.raises(ckptd.Unavailable, match="start the job's daemons with `ckptd launch"):
        ckptd.safe_open(path, "np", address=str(tmp_path / "none.sock"), timeout=0.2)


def test_the_way_out_is_taken_only_if_allowed_and_said_once(path, tmp_path, caplog):
    nowhere = {"address": str(tmp_path / "none.sock"), "timeout": 0.2}
    with caplog.at_level(logging.WARNING, "ckptd"):
        for _ in range(2):
            file = ckptd.safe_open(path, "pt", fallback="native", **nowhere)
            assert torch.equal(file.get_slice(A)[0], torch.arange(5.0))
    assert len(caplog.records) == 1 and "fallback='native'" in caplog.text
    with pytest.raises(ckptd.InvalidArgument, match="fallback='naive'"):
        ckptd.safe_open(path, "pt", fallback="naive", **nowhere)


def test_a_load_that_fails_leaves_the_file_to_safetensors_if_allowed(both, daemon):
    from fake_daemon import Refusal

    daemon.fail_next["LoadCheckpoint"] = [Refusal(8, "NO_MEMORY", "no room")] * 2
    with pytest.raises(ckptd.ResourceExhausted):
        both[1]("pt").get_tensor(A)
    kept = both[1]("pt", fallback="native").get_tensor(A)
    assert torch.equal(kept[0], torch.arange(5.0))


def test_a_path_object_opens(path, daemon):
    import pathlib

    file = ckptd.safe_open(pathlib.Path(path), "np", address=daemon.path)
    assert os.fspath(path) and file.get_tensor(S) == 3.5
