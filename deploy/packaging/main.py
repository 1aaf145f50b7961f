"""Makes the wheel and the archive out of a build. deploy/package calls it; see there."""

import argparse
import pathlib
import shutil
import sys
import tempfile

import elf
import identity
import make_archive
import make_wheel
import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 48_000_000  # of wheel and archive together


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def check_kernels(folder: pathlib.Path, without: bool) -> None:
    there = [elf.has_kernels(folder / "bin" / name) for name in ("ckptd", "kernel_bench")]
    if not all(there) and not without:
        raise elf.Unfit(
            "the build has no CUDA kernels: cmake found no nvcc; set CUDA_HOME to a toolkit, "
            "or say --without-kernels"
        )


def package(build: pathlib.Path, output: pathlib.Path, without_kernels: bool) -> None:
    output.mkdir(parents=True, exist_ok=True)
    epoch = identity.epoch()
    with tempfile.TemporaryDirectory(prefix="ckptd-package-") as temporary:
        work = pathlib.Path(temporary)
        say("stripping, and asking what each file needs")
        packed = [*programs.PATHS, *make_archive.of_tests(build)]
        needs = programs.strip(build, packed, work / "stripped")
        check_kernels(work / "stripped", without_kernels)

        say("making the wheel")
        staged = make_wheel.stage(
            ROOT / "client/python", [work / "stripped" / path for path in programs.PATHS], work
        )
        made = make_wheel.build(staged, f"manylinux_{needs[0]}_{needs[1]}_x86_64", work, epoch)

        say("making the archive")
        name = f"ckptd-{identity.version()}-linux-x86_64"
        make_archive.lay_out(ROOT, work / "stripped", made, work / name)
        programs.lay_out_papers(build, packed, work / name)
        archive = work / f"{name}.tar.gz"
        make_archive.pack(work / name, archive, epoch)

        total = made.stat().st_size + archive.stat().st_size
        if total > MOST_BYTES:
            raise elf.Unfit(
                f"wheel and archive have {total} bytes together, more than {MOST_BYTES}"
            )
        for path in (made, archive):
            shutil.copy2(path, output / path.name)
            print(f"    {output / path.name}   {programs.megabytes(path)}")
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
