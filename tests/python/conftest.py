"""Shared parts: the package from the tree, the fake daemon, groups of ranks."""

import ctypes
import gc
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "client" / "python"
for path in (str(HERE), str(HERE.parent / "cases"), str(HERE.parent / "testing"), str(SOURCES / "src")):
    if path not in sys.path:
        sys.path.insert(0, path)

if not (SOURCES / "src" / "ckptd" / "_proto" / "descriptors.pb").exists():
    subprocess.run(
        [sys.executable, str(SOURCES / "generate.py")], check=True, stdout=subprocess.DEVNULL
    )


import warm  # noqa: E402


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        warm.share()
    config.addinivalue_line("markers", "slow: makes environments or needs minutes")


def pytest_collection_finish():
    """Neither Python nor libraries that collect garbage in each call look through all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_ambient_daemon(monkeypatch):
    for name in (
        "CKPTD_ADDRESS",
        "CKPTD_JOB",
        "CKPTD_RUN_DIR",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "SLURM_JOB_ID",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NTASKS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def daemon(tmp_path):
    from fake_daemon import FakeDaemon

    with FakeDaemon(str(tmp_path)) as running:
        yield running


@pytest.fixture(scope="session")
def gpus(tmp_path_factory):
    """Two fake GPUs of this process, which opens a driver once. Queued work waits to be waited for."""
    sys.path.append(str(HERE.parent / "testing"))
    import fake_cuda

    pytest.importorskip("cuda.bindings.driver")
    if fake_cuda.why_not():
        pytest.skip(fake_cuda.why_not())
    fake = fake_cuda.FakeCuda(tmp_path_factory.mktemp("gpus"), gpus=2, lazy=1)
    os.environ["CKPTD_FAKE_CUDA"] = str(fake.config)
    # Loaded under its own name, it is what a later look for libcuda.so.1 finds.
    ctypes.CDLL(str(fake_cuda.LIBRARY), mode=ctypes.RTLD_GLOBAL)
    return fake


@pytest.fixture
def collect():
    """collect(): what nothing uses any more is given back when it returns."""
    from ckptd import _deferred_free

    def everything():
        gc.collect()
        _deferred_free.drain(60)

    return everything


@pytest.fixture
def calls(gpus, collect):
    """calls(): names of the driver's functions called since the test began."""
    collect()  # what earlier tests left
    start = len(gpus.trace())
    yield lambda: [line["call"] for line in gpus.trace()[start:] if "call" in line]
    assert gpus.violations() == []


@pytest.fixture
def client(daemon):
    import ckptd

    with ckptd.connect(daemon.path) as connected:
        yield connected


@pytest.fixture
def source(tmp_path):
    """A small checkpoint, and its tensors."""
    import numpy as np
    from safetensors.numpy import save_file

    generator = np.random.default_rng(3)
    tensors = {
        f"layer.{i}.weight": generator.standard_normal((5, 7 + i)).astype("f4") for i in range(9)
    }
    tensors["big"] = generator.standard_normal((300, 400)).astype("f4")
    tensors["count"] = np.arange(4, dtype="i8")
    tensors["empty"] = np.zeros((0, 3), dtype="f4")
    path = tmp_path / "model.safetensors"
    save_file(tensors, str(path))
    return str(path), tensors


@pytest.fixture
def make(tmp_path, daemon):
    """Saves tensors and loads them into a model."""

    import ckptd.torch
    from fsdp_bench import init_buffers
    from safetensors.torch import save_file

    class Maker:
        def save(self, tensors, name="m.safetensors"):
            save_file(tensors, str(tmp_path / name))
            return str(tmp_path / name)

        def load(self, model, tensors, name="m.safetensors", **options):
            options.setdefault("init_buffers", init_buffers)
            return ckptd.torch.load_into(
                model, self.save(tensors, name), address=daemon.path, **options
            )

    return Maker()


@pytest.fixture(scope="session")
def group_outcomes(tmp_path_factory):
    """Runs each size of group once a session, on first demand."""
    from worker_group import run_group

    known = {}

    def outcome(world):
        if world not in known:
            known[world] = run_group(tmp_path_factory.mktemp(f"group{world}"), world)
        return known[world]

    return outcome
