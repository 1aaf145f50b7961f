"""The Python wheel that also carries `ckptd` and `ckptctl`."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
from typing import List

SOURCES = ("README.md", "generate.py", "MANIFEST.in", "pyproject.toml", "setup.py", "src")


def stage(client: pathlib.Path, programs: List[pathlib.Path], folder: pathlib.Path) -> pathlib.Path:
    """A copy of client/python below `folder`, with the programs in its package."""
    staged = folder / "client" / "python"
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "bin")
    for name in SOURCES:
        source = client / name
        if source.is_dir():
            shutil.copytree(source, staged / name, ignore=leave)
        else:
            staged.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, staged / name)
    target = staged / "src" / "ckptd" / "bin"
    target.mkdir()
    for program in programs:
        shutil.copy2(program, target / program.name)
    return staged


def build(staged: pathlib.Path, platform: str, output: pathlib.Path, epoch: int) -> pathlib.Path:
    """The wheel, in `output`, for that platform and any Python."""
    before = set(output.glob("*.whl"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        f"--config-settings=--build-option=--plat-name={platform}",
        "--wheel-dir",
        str(output),
        str(staged),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"deploy/package: building the wheel failed:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    made = sorted(set(output.glob("*.whl")) - before)
    return made[0] if made else next(output.glob(f"*-py3-none-{platform}.whl"))


def unpack(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """As pip would, into a folder for PYTHONPATH; zipfile by itself forgets modes."""
    with zipfile.ZipFile(wheel) as packed:
        for entry in packed.infolist():
            target = pathlib.Path(packed.extract(entry, folder))
            mode = entry.external_attr >> 16
            if mode & 0o111 and target.is_file():
                target.chmod(0o755)
