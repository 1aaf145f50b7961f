"""The file tree of the images: the two programs, the C library that they need, and their papers."""

import pathlib
import shutil
from typing import Iterable, List

import dpkg
import elf

USER = 65532  # the number that images without a shell call nonroot
LIBRARIES = pathlib.Path("lib/x86_64-linux-gnu")  # where Debian's loader looks
LOADER = "ld-linux-x86-64.so.2"
# Debian's C library. It reads hosts, passwd and DNS by itself; other sources of names are not there.
C_LIBRARY = "libc6"
FILES = {
    "etc/passwd": f"root:x:0:0::/:/none\nckptd:x:{USER}:{USER}::/run/ckptd:/none\n",
    "etc/group": f"root:x:0:\nckptd:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def _put(source: pathlib.Path, target: pathlib.Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _libraries() -> List[pathlib.Path]:
    """The C library's parts on this machine. GPU drivers, which the machine brings, need all of them."""
    paths = [pathlib.Path("/") / LIBRARIES / name for name in sorted(elf.OF_THE_SYSTEM)]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise elf.Unfit(f"{', '.join(missing)} missing: images are made on Debian, for x86-64")
    return paths


def packages() -> List[dpkg.Package]:
    """What is in the tree besides the programs."""
    return dpkg.described([C_LIBRARY])


def lay_out(package: pathlib.Path, root: pathlib.Path) -> None:
    """Fills `root` from what deploy/package has made, unpacked."""
    for name in ("ckptd", "ckptctl"):
        _put(package / "bin" / name, root / "usr/bin" / name, 0o755)
    for path in _libraries():
        _put(path.resolve(), root / LIBRARIES / path.name, 0o755)
    (root / "lib64").mkdir()
    (root / "lib64" / LOADER).symlink_to(pathlib.Path("..") / LIBRARIES / LOADER)
    for path, text in FILES.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    (root / "run").mkdir()  # the system's; only run/ckptd is the daemon's


def lay_out_papers(
    package: pathlib.Path, names: Iterable[str], bill: str, root: pathlib.Path
) -> None:
    """Licences of these packages, as far as they are linked into the programs, and the bill."""
    documents = root / "usr/share/doc"
    for found in packages():
        _put(found.copyright, documents / found.name / "copyright", 0o644)
    for name in ("ckptd", *names):
        papers = package / "share/doc" / name / "copyright"
        if papers.is_file():
            _put(papers, documents / name / "copyright", 0o644)
    (documents / "ckptd/sbom.cdx.json").write_text(bill)
