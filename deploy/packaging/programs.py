"""The programs of a build, stripped, with the papers that go with them."""

import pathlib
import re
import shutil
import subprocess
from typing import Iterable, Optional, Tuple

import dpkg
import elf
import identity
import sbom

NEWEST_GLIBC = (2, 36)
PATHS = ("bin/ckptd", "bin/ckptctl")  # in a build, as in an archive


def megabytes(path: pathlib.Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


def strip(build: pathlib.Path, paths: Iterable[str], folder: pathlib.Path) -> Tuple[int, int]:
    """Stripped copies of these of a build's files; the highest glibc that any of them needs."""
    needs = (2, 0)
    for path in paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", str(target), str(build / path)], check=True, timeout=120)
        needs = max(needs, elf.check(target, NEWEST_GLIBC))
        kernels = ", with kernels" if elf.has_kernels(target) else ""
        version_needed = ".".join(map(str, elf.glibc(target)))
        print(f"    {path:24} {megabytes(target):>8}   glibc {version_needed}{kernels}")
    return needs


def _toolkit(build: pathlib.Path) -> Optional[str]:
    """The version of the CUDA toolkit whose code is in the kernels, if there are any."""
    folder = re.search(
        r"^CKPTD_CUDA_INCLUDE_DIR:PATH=(/.*)$", (build / "CMakeCache.txt").read_text(), re.M
    )
    if not folder or not elf.has_kernels(build / "bin/ckptd"):
        return None
    header = (pathlib.Path(folder.group(1)) / "cuda.h").read_text(errors="replace")
    number = int(re.search(r"^#define CUDA_VERSION (\d+)", header, re.M).group(1))
    return f"{number // 1000}.{number % 1000 // 10}"


def _bill(build: pathlib.Path) -> str:
    """What is in ckptd and ckptctl, and in nothing else that is packed."""
    parts = [sbom.of_package(package) for package in dpkg.linked(build, PATHS)]
    toolkit = _toolkit(build)
    if toolkit:
        parts.append(sbom.of_toolkit(toolkit))
    subject = sbom.ckptd("ckptd", identity.version(), sbom.ComponentType.APPLICATION)
    return sbom.bill(subject, parts, identity.commit(), identity.epoch())


def lay_out_papers(build: pathlib.Path, packed: Iterable[str], folder: pathlib.Path) -> None:
    """Licences of all that is packed of a build, the bill of the programs, and the commit."""
    documents = folder / "share/doc"
    for package in dpkg.linked(build, list(packed)):
        target = documents / package.name / "copyright"
        target.parent.mkdir(parents=True)
        shutil.copyfile(package.copyright, target)
    (documents / "ckptd").mkdir()
    shutil.copyfile(identity.ROOT / "LICENSE", documents / "ckptd/copyright")
    shutil.copyfile(identity.ROOT / "LICENSE", folder / "LICENSE")
    (documents / "ckptd/sbom.cdx.json").write_text(_bill(build))
    (folder / "COMMIT").write_text(identity.commit() + "\n")


def lay_out(build: pathlib.Path, folder: pathlib.Path) -> None:
    """Of an archive, what the programs are: bin/, share/doc/, LICENSE and COMMIT."""
    strip(build, PATHS, folder)
    lay_out_papers(build, PATHS, folder)
