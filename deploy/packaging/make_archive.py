"""The archive: everything in one folder that runs where it is unpacked, with nothing installed."""

import gzip
import pathlib
import shutil
import subprocess
import sysconfig
import tarfile
from typing import Iterable, List

import make_wheel

# What tests/gpu/run uses of the tests, beside its own folder.
TEST_FILES = (
    "tests/integration/group.py",
    "tests/integration/program.py",
    "tests/testing/fake_cuda.py",
    "tests/testing/fake_nccl.py",
    "tests/testing/host_view.py",
    "tests/testing/host_view_trainer.py",
)
TESTS = ("kernel_bench", "copy_bench", "contract_cuda", "contract_comm_nccl")
# Where nccl.h was there to build against.
WITH_NCCL = ("contract_comm_nccl", "libnccl.so.2")
FAKES = ("libcuda.so.1", "libckptd_twins.so", "libnccl.so.2")


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def of_tests(binaries: pathlib.Path) -> List[str]:
    """What is packed of `binaries` for tests/gpu/run."""
    paths = [*(f"bin/{name}" for name in TESTS), *(f"fakes/{name}" for name in FAKES)]
    return [path for path in paths if (binaries / path).exists() or not path.endswith(WITH_NCCL)]


def tracked(root: pathlib.Path, folder: str) -> Iterable[str]:
    """Files of a folder that are part of the sources."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split("\n")
    return [name for name in listed if name and (root / name).is_file()]


def vendor_protobuf(target: pathlib.Path) -> None:
    """protobuf's Python files without its compiled part, for machines that have none."""
    installed = pathlib.Path(sysconfig.get_paths()["purelib"])
    if not (installed / "google/protobuf").is_dir():
        installed = pathlib.Path(sysconfig.get_paths()["platlib"])
    about = next(installed.glob("protobuf-*.dist-info"))
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(installed / "google/protobuf", target / "google/protobuf", ignore=leave)
    licence = next(about.rglob("LICENSE*"))
    _copy(licence, target / about.name / licence.name)
    _copy(about / "METADATA", target / about.name / "METADATA")


def lay_out(
    root: pathlib.Path, binaries: pathlib.Path, wheel: pathlib.Path, folder: pathlib.Path
) -> None:
    """Fills `folder`. `binaries` holds bin/ and fakes/, stripped."""
    folder.mkdir(parents=True)
    make_wheel.unpack(wheel, folder / "python")
    (folder / "bin").mkdir()
    for name in ("ckptd", "ckptctl"):
        (folder / "bin" / name).symlink_to(f"../python/ckptd/bin/{name}")
    for path in of_tests(binaries):
        _copy(binaries / path, folder / path)
    for name in (*tracked(root, "tests/gpu"), *tracked(root, "deploy/main_job"), *TEST_FILES):
        if not name.endswith((".cc", "CMakeLists.txt")):
            _copy(root / name, folder / name)
    vendor_protobuf(folder / "vendored")
    _copy(root / "deploy/packaging/README-archive.md", folder / "README.md")


def pack(folder: pathlib.Path, archive: pathlib.Path, epoch: int) -> None:
    """The same bytes for the same files: sorted, one time, no names of users."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
        executable = entry.isdir() or entry.mode & 0o111
        entry.mode = 0o755 if executable else 0o644
        return entry

    with open(archive, "wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(folder, arcname=folder.name, recursive=False, filter=plain)
            for path in sorted(folder.rglob("*")):
                tar.add(
                    path,
                    arcname=str(path.relative_to(folder.parent)),
                    recursive=False,
                    filter=plain,
                )
