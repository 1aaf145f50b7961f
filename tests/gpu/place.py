"""Where things are: in a repository that was built, or in an unpacked archive."""

import os
import pathlib
import subprocess
import sys
from typing import List

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKED = (ROOT / "COMMIT").exists()
# The folder that holds bin/ and fakes/.
BUILD = (
    ROOT if PACKED else pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")).resolve()
)
CLIENT = ROOT / "python" if PACKED else ROOT / "client/python/src"
FOLDERS = [CLIENT, HERE, ROOT / "tests/integration", ROOT / "tests/testing"]
OLDEST_PROTOBUF = (4, 25)


def program(name: str) -> pathlib.Path:
    return BUILD / "bin" / name


def missing_programs() -> List[str]:
    names = ("ckptd", "ckptctl", "kernel_bench", "copy_bench", "contract_cuda")
    return [name for name in names if not os.access(program(name), os.X_OK)]


def commit() -> str:
    """What the programs were built from, as far as one can know."""
    if PACKED:
        return (ROOT / "COMMIT").read_text().strip()
    told = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
        for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
    ]
    if any(done.returncode for done in told):
        return "unknown"
    return told[0].stdout.strip() + (" and changes" if told[1].stdout.strip() else "")


def protobuf_is_usable() -> bool:
    try:
        import google.protobuf

        version = tuple(int(part) for part in google.protobuf.__version__.split(".")[:2])
        return version >= OLDEST_PROTOBUF
    except (ImportError, ValueError):
        return False


def python_path() -> str:
    """PYTHONPATH for all processes, this one's included; the archive's protobuf if need be."""
    paths = [str(folder) for folder in FOLDERS]
    vendored = ROOT / "vendored"
    if vendored.is_dir() and not protobuf_is_usable():
        paths.append(str(vendored))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join(paths + ([before] if before else []))
