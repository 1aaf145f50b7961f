"""The archive of deploy/package, unpacked, with tests/gpu/run in it on the fake driver."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile

import pytest
from group import BINARIES, sanitized

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDED = [
    *(BINARIES / name for name in ("ckptd", "ckptctl", "kernel_bench", "copy_bench", "contract_cuda")),
    *(BINARIES.parent / "fakes" / name for name in ("libcuda.so.1", "libckptd_twins.so", "libnccl.so.2")),
]
# What a fake driver, or a PyTorch without a GPU, cannot show.
NOT_SHOWN = {
    "a CUDA graph over imported memory is captured, replayed, and right",
    "a descriptor alone keeps memory while nobody has the GPU open (either answer passes)",
    "memory is imported by another user in another PID namespace",
    "CuPy has every tensor where the daemon put it, and the file's bytes",
    "JAX has every tensor where the daemon put it, and the file's bytes",
}
PATIENCE = 600
# The steps that take seconds. CKPTD_GPU_CHECKS=all: all of them, which takes minutes.
SOME = ("checks_bytes", "checks_kinds", "checks_driver", "checks_kept", "figures_attach")

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(
    sanitized() or not all(path.exists() for path in NEEDED),
    reason="it takes a build with cuda.h, nccl.h and no sanitizers",
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder that the archive of this build becomes."""
    folder = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-B", ROOT / "deploy/packaging/main.py", "--without-kernels"]
    made = subprocess.run(
        [*command, "--build", BINARIES.parent, "--output", folder],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (archive,) = folder.glob("*-linux-x86_64.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    return folder / archive.name[: -len(".tar.gz")]


@pytest.fixture
def folder(tmp_path_factory):
    """With a short name: paths of Unix sockets have 107 bytes."""
    return tmp_path_factory.mktemp("g")


def run(unpacked, where, *options):
    # PYTHONPATH alone, as where nothing can be installed; this Python has what ckptd needs.
    environment = {"PATH": os.environ["PATH"], "CKPTD_PYTHON": sys.executable, "TMPDIR": str(where)}
    return subprocess.run(
        [unpacked / "tests/gpu/run", *options],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def listed(unpacked, folder):
    """Names of checks, by step."""
    steps, lines = {}, run(unpacked, folder, "--list").stdout.splitlines()
    for line in lines:
        if not line.startswith(" "):
            checks = steps.setdefault(line, [])
        else:
            checks.append(line.strip())
    return steps


def test_the_checks_of_a_gpu_run_on_the_fake_driver_from_the_archive(unpacked, folder):
    steps = listed(unpacked, folder)
    if os.environ.get("CKPTD_GPU_CHECKS") != "all":
        steps = {step: steps[step] for step in SOME}
    only = [word for step in steps for word in ("--only", step)]
    done = run(unpacked, folder, "--fake", "--json", "found.json", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAKE" in done.stdout
    found = json.loads((folder / "found.json").read_text())
    results = {check["name"]: check for check in found["checks"]}
    assert sorted(results) == sorted(name for names in steps.values() for name in names)
    others = {name for name, check in results.items() if check["result"] != "passed"}
    assert others <= NOT_SHOWN | set(no_kernels(results)), others
    # Figures of a fake are no figures, and none of it is a report.
    assert found["figures"] and all(figure["value"] is None for figure in found["figures"])
    assert sorted(path.name for path in folder.iterdir()) == ["found.json"]


def no_kernels(results):
    return [n for n, c in results.items() if c["reason"] == "this build has no kernels"]


def test_the_archive_brings_all_of_the_programs_and_says_what_it_is(unpacked):
    said = subprocess.run([unpacked / "bin/ckptctl", "version"], capture_output=True, text=True)
    assert said.stdout.startswith("ckptctl ")
    assert len((unpacked / "COMMIT").read_text().split()[0]) == 40
    assert "Apache" in (unpacked / "LICENSE").read_text()


def test_the_archive_has_all_licences_and_a_bill_of_what_is_in_the_programs(unpacked):
    documents = unpacked / "share/doc"
    assert (documents / "libgtest-dev/copyright").is_file()  # of contract_cuda alone
    bill = json.loads((documents / "ckptd/sbom.cdx.json").read_text())
    names = {part["name"] for part in bill["components"]}
    assert "libgrpc++-dev" in names and "libgtest-dev" not in names
    assert all((documents / name / "copyright").is_file() for name in names - {"cuda-toolkit"})


def test_container_images_take_the_archive_s_programs(unpacked, tmp_path):
    archive = unpacked.parent / f"{unpacked.name}.tar.gz"
    command = [sys.executable, "-B", ROOT / "deploy/docker/main.py", "--package", archive]
    made = subprocess.run([*command, "--context", tmp_path / "context"], capture_output=True, text=True, timeout=PATIENCE)
    assert made.returncode == 0, made.stdout + made.stderr
    for name in ("ckptd", "ckptctl"):
        assert (tmp_path / "context/root/usr/bin" / name).read_bytes() == (unpacked / "bin" / name).read_bytes()
    assert "docker build --target host --tag localhost/ckptd:" in made.stdout


def test_a_python_without_protobuf_is_given_the_archive_s_own(unpacked, folder):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import place; path = place.python_path();"
        "import google.protobuf as p; print(p.__file__, path.endswith('vendored'))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, unpacked / "tests/gpu"],
        env={"PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [
        str(unpacked / "vendored/google/protobuf/__init__.py"),
        "True",
    ], done.stderr


def test_without_a_gpu_it_says_so_and_shows_nothing(unpacked, folder):
    done = run(unpacked, folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "missing: a GPU" in done.stdout and "nothing could be shown" in done.stderr
    assert list(folder.iterdir()) == []
