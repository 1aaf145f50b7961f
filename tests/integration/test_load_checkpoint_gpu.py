"""load_checkpoint_in_model with a daemon that keeps its shards in GPU memory, over the fake driver.

This PyTorch has no CUDA: tests.testing.host_view makes CPU tensors over the fake GPU's memory, so
what goes to a GPU is looked at before accelerate would put it there.
"""

import gc
import os

import ckptd
import pytest
import torch

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("cuda.bindings.driver")
import ckptd.accelerate  # noqa: E402
from accelerate.utils import modeling  # noqa: E402
from checkpoint_cases import BY_PART, Call, numbers, on_meta, save  # noqa: E402
from group import wait_until  # noqa: E402
from ckptd._cuda_driver import find_device  # noqa: E402
from ckptd._rpc import Deadline  # noqa: E402
from ckptd.accelerate import _dtype_rules, _file_entries, _files  # noqa: E402
from ckptd.torch.load import _memory  # noqa: E402

pytestmark = pytest.mark.parametrize("memory", ["cuda"], indirect=True)


@pytest.fixture
def group(start, monkeypatch):
    import host_view

    monkeypatch.setattr(_memory, "over_device", host_view.over_device)
    yield start(1)
    gc.collect()


def entries(group, path, device_map):
    """name -> tensor or InFile. device_map: from the ordinal of the daemon's GPU."""
    off = dict.fromkeys(("offload_state_dict", "offload_buffers", "strict", "linked"), False)
    with ckptd.connect(group.address(0)) as own:
        wanted = device_map(find_device(own.device()).ordinal)
        dtype_rules = _dtype_rules.DtypeRules.of(on_meta(), dtype=torch.bfloat16, keep_fp32=[], device_map=wanted, **off)
        files = _files.resolve(os.fspath(path))
        return _file_entries.entries(own, own.inspect(path), files, dtype_rules, True, Deadline(30))[str(path)]


def placed(held):
    return {name for name, value in held.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("device", [lambda n: n, lambda n: f"cuda:{n}", lambda n: torch.device("cuda", n),
                                    lambda n: "cuda"], ids=["number", "name", "device", "current"])
def test_what_belongs_on_the_daemon_s_gpu_is_its_memory_and_is_taken(device, group, tmp_path, memory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    path, copies = save(tmp_path, numbers()), len(memory.fake.calls("cuMemcpyDtoDAsync"))
    held = entries(group, path, lambda ordinal: {"": device(ordinal)})
    assert placed(held) == set(held)
    assert held["scale"].dtype == torch.bfloat16 and torch.equal(held["mask"], numbers()["mask"])
    assert len(memory.fake.calls("cuMemcpyDtoDAsync")) == copies
    wait_until(lambda: group.json("list")["checkpoints"][0]["state"] == "STATE_TAKEN", "it to be taken")


@pytest.mark.parametrize("device", [lambda n: n + 1, lambda n: f"cuda:{n + 1}", lambda n: "cpu", lambda n: "disk"],
                         ids=["another", "another by name", "host", "disk"])
def test_what_belongs_elsewhere_stays_in_its_file(device, group, tmp_path):
    path = save(tmp_path, numbers())
    held = entries(group, path, lambda ordinal: {"": device(ordinal), "layers": ordinal})
    values = {name for name in placed(held) if not held[name].is_meta}  # on meta: what nobody looks at
    assert values == {name for name in held if name.startswith("layers.")}


def test_the_outcome_on_host_and_disk_is_accelerate_s(group, tmp_path):
    call = Call("by part", BY_PART, offload=True)
    path = save(tmp_path, numbers())
    theirs = call.outcome(modeling.load_checkpoint_in_model, tmp_path / "theirs", path)

    def load(model, checkpoint, **options):
        return ckptd.accelerate.load_checkpoint_in_model(model, checkpoint, address=group.address(0), **options)

    assert call.outcome(load, tmp_path / "mine", path) == theirs
