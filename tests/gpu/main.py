"""Checks ckptd on a real GPU, measures it, and writes gpu-report.json and gpu-report.md."""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import place

PYTHON_PATH = place.python_path()

import machine  # noqa: E402
import gpu_record  # noqa: E402
import gpu_report  # noqa: E402
from group import clean_environment  # noqa: E402
from steps import PATIENCE_WITH_FAKE, STEPS, Runner  # noqa: E402

TOTAL_SECONDS = 525  # nine minutes, less what starting and writing take
EPILOG = """
examples:
  tests/gpu/run                         all of it, at most nine minutes
  tests/gpu/run --quick                 smaller and fewer, some two minutes
  tests/gpu/run --only attach           what has this word in its name; --list shows the names
  tests/gpu/run --output /tmp/report    where gpu-report.json and gpu-report.md go
  tests/gpu/run --fake                  the same on the fake driver: no GPU, no figures, no report

It needs a GPU that nothing else uses, NVIDIA's driver, and Python with grpcio, protobuf and
cuda-bindings; PyTorch for most of it. What is missing is said first. Nothing is installed, no
setting of the GPU is changed, and all that is started ends. Exit status: 0 if no check failed
(missed targets do not fail), 1 if one did, 2 for bad usage or where nothing can be run."""


def arguments():
    parser = argparse.ArgumentParser(
        prog="tests/gpu/run",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smaller files, fewer rounds")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only checks or steps with this in the name; may be given again",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("."),
        metavar="DIR",
        help="where the two reports go (default: here)",
    )
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="the JSON report goes there instead"
    )
    parser.add_argument(
        "--directory",
        type=pathlib.Path,
        metavar="DIR",
        help="for files of up to 15 GB, removed at the end (default: TMPDIR)",
    )
    parser.add_argument("--gpu", metavar="UUID", help="which GPU (default: the first visible one)")
    parser.add_argument(
        "--nccl-library",
        metavar="FILE",
        help="libnccl.so.2 of NCCL 2.30 or newer (default: that of this Python)",
    )
    parser.add_argument("--fake", action="store_true", help="use the fake driver of the tests")
    parser.add_argument("--list", action="store_true", help="name all checks and end")
    return parser.parse_args()


def fake_environment(folder: pathlib.Path) -> dict:
    import fake_cuda
    import fake_nccl

    why_not = fake_cuda.why_not()
    if why_not:
        sys.exit(f"tests/gpu/run: --fake: {why_not}")
    twins = fake_cuda.LIBRARY.parent / "libckptd_twins.so"
    options = {"twins": str(twins)} if twins.exists() else {}
    # Slow enough to be hit in the middle of a copy.
    fake = fake_cuda.FakeCuda(
        folder, gpus=1, bytes=1 << 30, link_bytes_per_second=100_000_000, **options
    )
    # Slower still: what travels by NCCL is half of a load. Where it is not built, none is found.
    nccl = fake_nccl.FakeNccl(fake, link_bytes_per_second=20_000_000)
    return {**fake.environment(), **nccl.environment()}


def look_around(environment: dict) -> dict:
    """What the machine has, asked in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-B", str(place.HERE / "machine.py")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        sys.exit(f"tests/gpu/run: looking at this machine failed:\n{done.stderr[-2000:]}")
    for line in done.stderr.splitlines():
        if line.startswith("import "):
            print(f"  {line}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def print_found(found: dict, fake: bool) -> None:
    print("found:")
    for line in gpu_report.facts(found):
        print(f"  {line}")
    if "vendored" in PYTHON_PATH:
        print("  protobuf: this Python has none that is new enough; the archive's own copy is used")
    for sentence in machine.lacks(found):
        print(f"missing: {sentence}")
    if fake:
        print("this is the FAKE driver: no figure means anything, and no report is written")


def run(options, folder: pathlib.Path) -> int:
    begin = time.monotonic()
    environment = fake_environment(folder) if options.fake else {}
    if options.nccl_library:
        environment["CKPTD_NCCL_LIBRARY"] = os.path.abspath(options.nccl_library)
    found = look_around(environment)
    print_found(found, options.fake)
    programs = place.missing_programs()
    if programs:
        sys.exit(f"tests/gpu/run: {place.BUILD}/bin lacks {', '.join(programs)}; build first")
    gpus = [gpu["uuid"] for gpu in found["driver"]["gpus"]]
    if options.gpu and options.gpu not in gpus:
        sys.exit(
            f"tests/gpu/run: there is no {options.gpu} here, but {', '.join(gpus) or 'no GPU'}"
        )
    unusable = machine.unusable(found)
    spec = {
        "fake": options.fake,
        "quick": options.quick or options.fake,
        "uuid": options.gpu or (gpus[0] if gpus else ""),
        "has": machine.has(found, options.fake),
        "environment": environment,
        "nccl": found["nccl"],
        "only": options.only,
    }
    total = TOTAL_SECONDS * (PATIENCE_WITH_FAKE if options.fake else 1)
    runner = Runner(spec, folder, begin + total, unusable)
    try:
        for step in STEPS:
            runner.run(step)
    finally:
        runner.end()
    results = {check["result"] for check in runner.checks}
    if not results - {gpu_record.NOT_SHOWN}:
        print(f"tests/gpu/run: nothing could be shown: {unusable}", file=sys.stderr)
        return 2
    outcome = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": place.commit(),
        "quick": options.quick,
        "only": options.only,
        "fake": options.fake,
        "machine": found,
        "gpu": spec["uuid"],
        "seconds": time.monotonic() - begin,
        "checks": runner.checks,
        "figures": runner.figures,
    }
    gpu_report.conclude(outcome, options.output, options.json, runner.logs())
    return 1 if gpu_record.FAILED in results else 0


def main() -> int:
    options = arguments()
    if options.list:
        for step in STEPS:
            print(step.module + "".join(f"\n  {name}" for name in step.names()))
        return 0
    # Nothing of a job or a daemon around it.
    for name in set(os.environ) - set(clean_environment()):
        del os.environ[name]
    os.environ["PYTHONPATH"] = PYTHON_PATH
    os.environ["CKPTD_BUILD_DIR"] = str(place.BUILD)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # the archive stays as it was unpacked
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-gpu-files-", dir=options.directory))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # PyTorch makes one unasked
    try:
        return run(options, folder)
    except KeyboardInterrupt:
        print("tests/gpu/run: interrupted; all that it started has been ended", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
