"""`ckptd info`: what a daemon would find on this machine."""

import re
import subprocess

import fake_cuda
import pytest
from group import BINARIES, clean_environment
from tiers import Tier

tomllib = pytest.importorskip("tomllib")


def ask(*options, environment=None):
    return subprocess.run([BINARIES / "ckptd", "info", *options], env={**clean_environment(), **(environment or {})},
                          capture_output=True, text=True, timeout=60)


def found(*options, environment=None):
    answer = ask(*options, environment=environment)
    assert answer.returncode == 0, answer.stderr
    return tomllib.loads(answer.stdout)


def test_without_a_gpu_memory_is_the_host_s_and_the_reason_is_said():
    info = found(environment={"CUDA_VISIBLE_DEVICES": ""})
    assert info["memory"] == "host"
    assert info["memory-reason"].startswith(("no GPU is visible: ", "built without CUDA"))
    assert info["host-memory"].endswith(" GB available") and int(info["cores"]) >= 1
    assert not any(key.startswith("gpu-") for key in info)


@pytest.mark.parametrize("arena, said", [("", r"\d+\.\d GB: a quarter of the memory that was available at start"),
                                         ("3GB", r"3\.0 GB: --arena 3GB")])
def test_the_memory_that_a_daemon_would_take_ahead_is_said_and_why(tmp_path, arena, said):
    info = found("--run-dir", tmp_path, environment={"CUDA_VISIBLE_DEVICES": "", "CKPTD_ARENA": arena})
    assert re.match(said, info["arena"]), info


def test_host_memory_that_was_asked_for_is_said_to_be():
    assert found("--memory", "host")["memory-reason"] == "asked for"


def test_every_gpu_is_named_as_device_takes_it(fake_gpus):
    info = found(environment=Tier(fake_gpus).environment)
    assert (info["memory"], info["memory-reason"]) == ("cuda", "a GPU is there")
    gpus = [info[f"gpu-{number}"] for number in range(4)]
    assert all("GPU-" in gpu and gpu.endswith(", 1.1 GB") for gpu in gpus), gpus
    assert len({gpu.split(", ")[1] for gpu in gpus}) == 4


@pytest.mark.parametrize("attribute", ["attribute__102", "attribute__103"])
@pytest.mark.parametrize("options, memory, sentence",
                         [((), "host", "; --memory cuda serves loads that ask for --handle cuda_ipc"),
                          (("--memory", "cuda"), "cuda", ": it serves only loads that ask for --handle cuda_ipc")])
def test_a_gpu_that_has_no_descriptors_is_taken_only_if_asked_for_and_the_reason_is_said(
        tmp_path, attribute, options, memory, sentence):
    fake = fake_cuda.FakeCuda(tmp_path, **{attribute: 0})
    info = found(*options, environment=fake.environment())
    assert info["memory"] == memory and info["gpu-0"].split(", ")[1] in info["memory-reason"]
    assert "cannot lend memory by descriptors" in info["memory-reason"]
    assert info["memory-reason"].endswith(sentence)


@pytest.mark.parametrize("options, number", [((), 0), (("--device", "2"), 2)])
def test_the_gpu_that_a_daemon_would_take_is_said(fake_gpus, options, number):
    info = found(*options, environment=Tier(fake_gpus).environment)
    assert info["device"] == info[f"gpu-{number}"].split(", ")[1]


@pytest.mark.parametrize(
    "options, reason",
    [(("--device", "9"), "NO_DEVICE"), (("--device", "GPU-none"), "NO_DEVICE"),
     (("--comm", "nccl", "--nccl-library", "/nowhere/libnccl.so.2"), "NO_NCCL")],
)  # fmt: skip
def test_what_run_would_refuse_on_gpus_is_refused(fake_gpus, options, reason):
    answer = ask(*options, environment=Tier(fake_gpus).environment)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"[{reason}]" in answer.stderr


def test_nccl_is_named_with_its_version_and_place(fake_gpus):
    library = BINARIES.parent / "fakes" / "libnccl.so.2"
    if not library.exists():
        pytest.skip(f"{library} was not built")
    info = found("--nccl-library", str(library), environment=Tier(fake_gpus).environment)
    assert re.fullmatch(rf"2\.\d+\.\d+ \({re.escape(str(library))}\)", info["nccl"]), info


@pytest.mark.parametrize(
    "options, reason",
    [(("--memory", "cuda"), "NO_DEVICE"), (("--memory", "disk"), "CONFIG_INVALID"), (("--comm", "nccl"), "NO_NCCL")],
)
def test_memory_that_run_would_refuse_is_refused(options, reason):
    answer = ask(*options, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"[{reason}]" in answer.stderr
