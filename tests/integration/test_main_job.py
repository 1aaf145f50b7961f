"""deploy/main_job, as deploy/quickstart runs it: in host memory, and on fake GPUs."""

import os
import re
import signal
import subprocess
import sys

import fake_cuda
import pytest
from group import BINARIES, clean_environment, wait_until
from process_state import runs
from ranks import COPIES, HERE
from tiers import skip_without_fake_gpus

MAIN_JOB = HERE.parents[1] / "deploy" / "main_job"
TRAINER = HERE.parent / "testing" / "host_view_trainer.py"


@pytest.fixture
def job(tmp_path_factory):
    """job(*options, gpus=0) -> (the running main job, its fake GPUs or None)."""
    # A shell's background jobs inherit that Ctrl-C is ignored; these are to hear it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    started = []

    def start(*options, gpus=0):
        folder = tmp_path_factory.mktemp("j")
        fake = None
        if gpus:
            skip_without_fake_gpus()
            fake = fake_cuda.FakeCuda(folder, gpus=gpus)
        environment = {**clean_environment(), **(fake.environment() if fake else {"CUDA_VISIBLE_DEVICES": ""})}
        started.append(subprocess.Popen(
            [sys.executable, MAIN_JOB / "main_job.py", "--binaries", BINARIES, "--directory", folder / "d",
             "--bytes", "3MB", *options],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1], fake

    yield start
    signal.signal(signal.SIGINT, before)
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it ends what it has started
        process.communicate(timeout=60)


def ended(process):
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def figure(out, name):
    """The number in that line of what the main job prints."""
    return [float(found) for found in re.findall(rf"^  {name} +([0-9.]+) ", out, re.MULTILINE)]


def what_others_keep(ranks):
    """Of the whole; not all shards are alike, as sizes are odd."""
    return [pytest.approx(1 - 1 / ranks, abs=0.02)]


def test_on_gpus_the_main_job_reads_once_copies_nothing_there_and_starts_again_without_storage(job):
    gpus = 2
    process, fake = job("--memory", "cuda", "--ranks", str(gpus), "--trainer", TRAINER, gpus=gpus)
    code, out, err = ended(process)
    assert code == 0 and out.endswith("\nverified\n"), out + err
    assert figure(out, "storage read") == [1.0, 0.0] and figure(out, "copied") == [0, 0]
    assert figure(out, "sent to others") == what_others_keep(gpus)
    assert [name for name in COPIES if fake.calls(name)] == []
    # Both times each trainer took a slab that was exported once.
    assert len(fake.calls("cuMemExportToShareableHandle", result=0)) == 2 * gpus
    assert (fake.violations(), fake.held_bytes()) == ([], 0)


def test_in_host_memory_the_main_job_reads_once_attaches_again_and_keeps_daemons_that_it_is_to_keep(job):
    code, out, err = ended(job("--memory", "host", "--keep")[0])
    assert code == 0 and "\nverified\n" in out, out + err
    assert figure(out, "storage read") == [1.0] and figure(out, "sent to others") == what_others_keep(2)
    assert figure(out, "copied") == [0] and len(figure(out, "re-attached")) == 1
    [(address, pid)] = re.findall(r"^daemons kept: export CKPTD_ADDRESS='(.+)'; stop them with: kill (\d+)$", out, re.M)
    try:
        info = subprocess.run([BINARIES / "ckptctl", "--output", "json", "list"], capture_output=True, text=True,
                              env={**clean_environment(), "CKPTD_ADDRESS": address}, timeout=60)
        assert info.returncode == 0 and '"STATE_ACTIVE"' in info.stdout, info.stdout + info.stderr
    finally:
        os.kill(int(pid), signal.SIGTERM)
        wait_until(lambda: not os.path.exists(address.replace("{rank}", "0").removeprefix("unix://")),
                   "the daemons to end")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_main_job_that_is_interrupted_or_killed(job, how):
    process, fake = job("--memory", "cuda", "--trainer", TRAINER, gpus=2)
    for line in process.stdout:
        if line.startswith("daemons: 2, ready"):
            break
    wait_until(lambda: fake.calls("cuMemImportFromShareableHandle"), "a trainer to map its memory", 300)
    process.send_signal(how)
    code, _, err = ended(process)
    pids = {line["pid"] for line in fake.trace()}
    assert len(pids) >= 3

    def none_left():
        return not [pid for pid in pids if runs(pid)]

    if how == signal.SIGINT:
        assert code == 130 and "everything it started has been stopped" in err and none_left()
    else:
        wait_until(none_left, "daemons and trainers to end")
    # Threads of a killed process may hold its descriptors for a moment after the first one has ended.
    wait_until(lambda: fake.held_bytes() == 0, "their memory to be free")


@pytest.mark.parametrize(
    "options, gpus, said",
    [(("--memory", "cuda"), 0, "there is no GPU here .* try --memory host"),
     (("--memory", "cuda", "--ranks", "3"), 2, "each takes a GPU, and there are 2; try --ranks 2"),
     # This PyTorch has no CUDA, so nothing of its is on a GPU.
     (("--memory", "cuda"), 2, "a trainer ended with code 1:\n[^$]*DEVICE_MISMATCH")],
)  # fmt: skip
def test_gpus_that_cannot_be_had_are_said_with_what_to_try(job, options, gpus, said):
    code, _, err = ended(job(*options, gpus=gpus)[0])
    assert code == 1 and err.startswith("quickstart: ") and re.search(said, err), err


def test_a_machine_whose_pytorch_sees_no_gpu_has_its_main_job_in_host_memory(fake_gpus, monkeypatch):
    monkeypatch.syspath_prepend(str(MAIN_JOB))
    import machine

    for name, value in fake_gpus.environment().items():
        monkeypatch.setenv(name, value)
    assert machine.gpus_seen(BINARIES) == 4
    place = machine.choose(BINARIES, "auto", None)
    assert (place.memory, place.device, place.ranks) == ("host", "cpu", 2)
