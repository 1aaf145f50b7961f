"""Makes the wheel and the archive out of a build. deploy/package calls it; see there."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import make_archive
import elf
import make_wheel

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEWEST_GLIBC = (2, 36)
MOST_BYTES = 40_000_000  # of wheel and archive together
PROGRAMS = ("ckptd", "ckptctl")


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def megabytes(path: pathlib.Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


def version() -> str:
    """The project's; the wheel must bear the same one."""
    project = re.search(
        r"^project\(ckptd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M
    ).group(1)
    client = re.search(
        r'^version = "(.+)"', (ROOT / "client/python/pyproject.toml").read_text(), re.M
    ).group(1)
    if project != client:
        raise elf.Unfit(
            f"CMakeLists.txt says version {project} and client/python/pyproject.toml {client}; "
            "make them one"
        )
    return project


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    name = git("rev-parse", "HEAD") or "unknown"
    return f"{name} and changes" if git("status", "--porcelain") else name


def strip(build: pathlib.Path, folder: pathlib.Path):
    """Stripped copies of everything that is packed; the highest glibc that any of it needs."""
    needs = (2, 0)
    for name in (*(f"bin/{name}" for name in PROGRAMS), *make_archive.of_tests(build)):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", str(target), str(build / name)], check=True, timeout=120)
        needs = max(needs, elf.check(target, NEWEST_GLIBC))
        kernels = ", with kernels" if elf.has_kernels(target) else ""
        version_needed = ".".join(map(str, elf.glibc(target)))
        print(f"    {name:24} {megabytes(target):>8}   glibc {version_needed}{kernels}")
    return needs


def check_kernels(folder: pathlib.Path, without: bool) -> None:
    there = [elf.has_kernels(folder / "bin" / name) for name in ("ckptd", "kernel_bench")]
    if not all(there) and not without:
        raise elf.Unfit(
            "the build has no CUDA kernels: cmake found no nvcc; set CUDA_HOME to a toolkit, "
            "or say --without-kernels"
        )


def package(build: pathlib.Path, output: pathlib.Path, without_kernels: bool) -> None:
    output.mkdir(parents=True, exist_ok=True)
    epoch = int(git("log", "-1", "--format=%ct") or time.time())
    with tempfile.TemporaryDirectory(prefix="ckptd-package-") as temporary:
        work = pathlib.Path(temporary)
        say("stripping, and asking what each file needs")
        needs = strip(build, work / "stripped")
        check_kernels(work / "stripped", without_kernels)

        say("making the wheel")
        programs = [work / "stripped/bin" / name for name in PROGRAMS]
        staged = make_wheel.stage(ROOT / "client/python", programs, work)
        made = make_wheel.build(staged, f"manylinux_{needs[0]}_{needs[1]}_x86_64", work, epoch)

        say("making the archive")
        name = f"ckptd-{version()}-linux-x86_64"
        make_archive.lay_out(ROOT, work / "stripped", made, work / name, commit())
        packed = work / f"{name}.tar.gz"
        make_archive.pack(work / name, packed, epoch)

        total = made.stat().st_size + packed.stat().st_size
        if total > MOST_BYTES:
            raise elf.Unfit(
                f"wheel and archive have {total} bytes together, more than {MOST_BYTES}"
            )
        for path in (made, packed):
            shutil.copy2(path, output / path.name)
            print(f"    {output / path.name}   {megabytes(path)}")
        print(f"    together {total / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f}")
        print(f"    for Linux x86-64 with glibc {needs[0]}.{needs[1]} or later")


def main() -> None:
    parser = argparse.ArgumentParser(prog="deploy/packaging/main.py", description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder of the build")
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="where wheel and archive go"
    )
    parser.add_argument(
        "--without-kernels", action="store_true", help="accept a build without nvcc"
    )
    arguments = parser.parse_args()
    try:
        package(arguments.build.resolve(), arguments.output.resolve(), arguments.without_kernels)
    except elf.Unfit as unfit:
        sys.exit(f"deploy/package: {unfit}")


if __name__ == "__main__":
    main()
