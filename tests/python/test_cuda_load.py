"""load_into and load_file with a daemon that keeps its shards in GPU memory.

This PyTorch has no CUDA: tests.testing.host_view makes CPU tensors over the fake GPU's memory.
"""

import gc
import types

import ckptd
import pytest
from ckptd._rpc import Deadline
from fake_daemon import FakeDaemon

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from ckptd.torch.load import _load_into, _memory, _targets  # noqa: E402
from fsdp_bench import Net, assert_in_daemon_memory, numbers, on_meta, train  # noqa: E402


@pytest.fixture
def daemon(tmp_path, gpus):
    with FakeDaemon(str(tmp_path), gpu=1) as running:
        yield running


@pytest.fixture(autouse=True)
def host_view(gpus, monkeypatch):
    import host_view

    monkeypatch.setattr(_memory, "over_device", host_view.over_device)


def equal(model, state):
    return all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


def test_auto_takes_the_memory_of_a_model_that_is_trained(make, daemon):
    model, state = on_meta(), numbers(Net())
    result = make.load(model, state)
    assert result.mode == "exclusive" and result.copied == {} and result.copied_bytes == 0
    assert result.device.startswith("GPU-") and result.device in str(result)
    assert equal(model, state)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert_in_daemon_memory(model, skip=("freq",))
    assert not equal(model, state)


def test_auto_shares_with_a_model_that_is_not_trained(make, daemon):
    model, state = on_meta().requires_grad_(False), numbers(Net())
    assert make.load(model, state).mode == "shared" and equal(model, state)


def test_private_says_how_much_it_copied(make, daemon, gpus):
    before = len(gpus.calls("cuMemcpyDtoDAsync"))
    result = make.load(on_meta(), numbers(Net()), mode="private")
    slab = next(iter(daemon.slabs.values())).size
    assert result.copied_bytes == slab and "copied there" in str(result)
    assert len(gpus.calls("cuMemcpyDtoDAsync")) == before + 1


def test_auto_for_a_model_on_the_host_takes_nothing_away(make, daemon):
    assert make.load(Net(), numbers(Net())).mode == "private"


def test_the_model_keeps_the_memory_and_gives_it_back(make, daemon, gpus):
    model, state = on_meta(), numbers(Net())
    make.load(model, state)
    before = len(gpus.calls("cuMemUnmap"))
    gc.collect()
    assert equal(model, state) and len(gpus.calls("cuMemUnmap")) == before
    del model
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)
    assert len(gpus.calls("cuMemUnmap")) == before + 1 and gpus.violations() == []


def test_every_tensor_has_a_storage_of_its_own(make, daemon):
    model = on_meta()
    make.load(model, numbers(Net()))
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) == len(list(model.parameters()))


def test_load_file_shares_by_default(make, daemon):
    state = numbers(Net())
    # The view makes CPU tensors; "cuda" is what a user asks for.
    loaded = ckptd.torch.load_file(make.save(state), mode="shared", address=daemon.path)
    assert all(torch.equal(loaded[name], state[name]) for name in state)


def as_a_gpu_build_sees_it(memory, dtype, count, offset):
    return types.SimpleNamespace(device=torch.device("cuda", memory.ordinal))


def test_a_model_on_the_host_is_refused_by_name_and_left_as_it_was(make, daemon, monkeypatch):
    monkeypatch.setattr(_memory, "over_device", as_a_gpu_build_sees_it)
    model = Net()
    before = model.up.weight.clone()
    with pytest.raises(ckptd.FailedPrecondition, match="belongs on cpu") as caught:
        make.load(model, numbers(Net()))
    assert caught.value.reason == "DEVICE_MISMATCH" and "cuda:1" in caught.value.message
    assert torch.equal(model.up.weight, before)
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)


def test_load_file_to_the_host_is_refused(make, daemon, monkeypatch):
    monkeypatch.setattr(_memory, "over_device", as_a_gpu_build_sees_it)
    with pytest.raises(ckptd.FailedPrecondition, match="GPU-"):
        ckptd.torch.load_file(make.save(numbers(Net())), address=daemon.path)


@pytest.mark.parametrize("error", [RuntimeError, BufferError])  # as torch's release is
def test_a_type_that_this_pytorch_cannot_make_is_refused_before_anything_is_touched(
    make, daemon, monkeypatch, error
):
    def makes_all_but_fp8(memory, dtype, count, offset):
        if dtype == torch.float8_e4m3fn:
            raise error("Unsupported code 10")
        return as_on_the_host(memory, dtype, count, offset)

    as_on_the_host = _memory.over_device
    monkeypatch.setattr(_memory, "over_device", makes_all_but_fp8)
    model = torch.nn.Linear(4, 4, device="meta")
    model.register_buffer("scales", torch.empty(4, dtype=torch.float8_e4m3fn, device="meta"))
    state = {**torch.nn.Linear(4, 4).state_dict(), "scales": torch.ones(4).to(torch.float8_e4m3fn)}
    with pytest.raises(ckptd.FailedPrecondition, match="scales: .*float8_e4m3fn") as caught:
        make.load(model, state)
    assert caught.value.reason == "DTYPE_UNSUPPORTED" and "Unsupported code 10" in caught.value.message
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    del caught
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)


# -- where a model belongs ----------------------------------------------------


class OfDaemon:
    """A client whose daemon keeps shards on that GPU; counts how often it is asked."""

    def __init__(self, device):
        self.answer, self.asked = device, 0

    def device(self, timeout):
        assert 0 < timeout <= 30
        self.asked += 1
        return self.answer


def target(device, trainable=True, is_buffer=False):
    arrangement = _targets.Arrangement(None, None, torch.device(device) if device else None)
    tensor = types.SimpleNamespace(requires_grad=trainable)
    return _targets.Target(["w"], tensor, [], is_buffer, True, arrangement)


@pytest.mark.parametrize(
    "device,trainable,mode,daemon_gpu,settled,asked",
    [
        ("cuda", True, "auto", "GPU-1", "exclusive", 1),
        ("cuda", False, "auto", "GPU-1", "shared", 1),
        ("cuda", True, "private", "GPU-1", "private", 1),
        (None, True, "auto", "GPU-1", "exclusive", 1),
        (None, True, "auto", None, "private", 1),
        (None, True, "exclusive", "GPU-1", "exclusive", 0),
        ("cpu", True, "auto", "GPU-1", "private", 0),
        ("cpu", False, "shared", None, "shared", 0),
    ],
)
def test_the_mode_follows_from_where_model_and_shards_are(
    gpus, device, trainable, mode, daemon_gpu, settled, asked
):
    client = OfDaemon(daemon_gpu)
    targets = [target(device, trainable), target("cpu", is_buffer=True)]
    found = _load_into._settle_mode(mode, targets, client, Deadline(30))
    assert found == settled and client.asked == asked


@pytest.mark.parametrize("mode", ["auto", "exclusive"])
def test_a_model_on_a_gpu_is_refused_before_a_daemon_in_host_memory_loads(mode):
    with pytest.raises(ckptd.FailedPrecondition, match="host memory") as caught:
        _load_into._settle_mode(mode, [target("cuda")], OfDaemon(None), Deadline(30))
    assert caught.value.reason == "DEVICE_MISMATCH"


@pytest.mark.parametrize(
    "wanted,have,fits",
    [("cuda", "cuda:1", True), ("cuda:1", "cuda:1", True), ("cuda:0", "cuda:1", False),
     ("cpu", "cuda:1", False), ("cpu", "cpu", True)],  # fmt: skip
)
def test_a_tensor_fits_the_device_it_names(wanted, have, fits):
    def check():
        _memory.check_device("w", torch.device(wanted), torch.device(have), "GPU-1")

    if fits:
        check()
    else:
        with pytest.raises(ckptd.FailedPrecondition):
            check()
