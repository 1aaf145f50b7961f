"""`ckptd info`: what a daemon would find on this machine."""

import re
import subprocess

import pytest
from group import BINARIES, clean_environment
from tiers import Tier

tomllib = pytest.importorskip("tomllib")


def ask(*options, environment=None):
    return subprocess.run([BINARIES / "ckptd", "info", *options], env={**clean_environment(), **(environment or {})},
                          capture_output=True, text=True, timeout=20)


def found(*options, environment=None):
    answer = ask(*options, environment=environment)
    assert answer.returncode == 0, answer.stderr
    return tomllib.loads(answer.stdout)


def test_without_a_gpu_memory_is_the_host_s_and_the_reason_is_said():
    info = found(environment={"CUDA_VISIBLE_DEVICES": ""})
    assert info["memory"] == "host"
    assert info["memory-reason"].startswith(("no GPU to be seen: ", "built without CUDA"))
    assert info["host-memory"].endswith(" GB available") and int(info["cores"]) >= 1
    assert not any(key.startswith("gpu-") for key in info)


def test_host_memory_that_was_asked_for_is_said_to_be():
    assert found("--memory", "host")["memory-reason"] == "asked for"


def test_every_gpu_is_named_as_device_takes_it(fake_gpus):
    info = found(environment=Tier(fake_gpus).environment)
    assert (info["memory"], info["memory-reason"]) == ("cuda", "a GPU is there")
    gpus = [info[f"gpu-{number}"] for number in range(4)]
    assert all("GPU-" in gpu and gpu.endswith(", 1.1 GB") for gpu in gpus), gpus
    assert len({gpu.split(", ")[1] for gpu in gpus}) == 4


def test_nccl_is_named_with_its_version_and_place(fake_gpus):
    library = BINARIES.parent / "fakes" / "libnccl.so.2"
    if not library.exists():
        pytest.skip(f"{library} was not built")
    info = found("--nccl-library", str(library), environment=Tier(fake_gpus).environment)
    assert re.fullmatch(rf"2\.\d+\.\d+ \({re.escape(str(library))}\)", info["nccl"]), info


@pytest.mark.parametrize(
    "options, reason",
    [(("--memory", "cuda"), "NO_DEVICE"), (("--memory", "disk"), "CONFIG_INVALID")],
)
def test_memory_that_run_would_refuse_is_refused(options, reason):
    answer = ask(*options, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"[{reason}]" in answer.stderr
