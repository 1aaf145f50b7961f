"""load_file: whole tensors as a dict."""

import gc

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from fsdp_bench import Net, numbers  # noqa: E402


def test_load_file_gives_every_tensor(make, daemon):
    state = numbers(Net())
    loaded = ckptd.torch.load_file(make.save(state), address=daemon.path)
    assert loaded.keys() == state.keys() and all(torch.equal(loaded[n], state[n]) for n in state)


def test_load_file_s_tensors_may_be_written(make, daemon):
    path = make.save(numbers(Net()))
    first = ckptd.torch.load_file(path, address=daemon.path)
    first["up.weight"].zero_()
    assert not torch.equal(
        ckptd.torch.load_file(path, address=daemon.path)["up.weight"], first["up.weight"]
    )


def test_load_file_s_tensors_keep_the_memory(make, daemon):
    state = numbers(Net())
    weight = ckptd.torch.load_file(make.save(state), address=daemon.path)["up.weight"]
    gc.collect()
    assert torch.equal(weight, state["up.weight"])


def test_load_file_carries_scalars_and_empty_tensors(make, daemon):
    state = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "fp8": torch.ones(8).to(torch.float8_e4m3fn),
    }
    loaded = ckptd.torch.load_file(make.save(state), address=daemon.path)
    assert loaded["scalar"].item() == 3.5 and loaded["empty"].shape == (0, 4)
    assert torch.equal(loaded["fp8"].view(torch.uint8), state["fp8"].view(torch.uint8))


def test_load_file_to_a_device_where_the_daemon_keeps_nothing_is_refused(make, daemon):
    with pytest.raises(ckptd.FailedPrecondition, match="cuda"):
        ckptd.torch.load_file(make.save(numbers(Net())), "cuda", address=daemon.path)
