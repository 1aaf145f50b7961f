"""Runs another package's own tests, unmodified, without ckptd and with it, and compares what passes."""

import concurrent.futures
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Tuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / "build" / "foreign"
SECONDS = 900
SKIPPED = 77  # as automake has it

sys.path.insert(0, str(ROOT / "tests" / "integration"))


@dataclass(frozen=True)
class Suite:
    """Tests in the source of the installed version of a package."""

    package: str
    folder: str  # of the tests, in the source
    chosen: Callable[[pathlib.Path], List[str]]  # that folder -> what pytest is to run, and how
    plugin: str  # a module of this folder that puts ckptd in place before any test is imported
    needs: Tuple[str, ...] = ()  # "name==version" of what the tests import besides
    environment: Dict[str, str] = field(default_factory=dict)


def run(suite, options):
    """Prints both counts, and what passes without ckptd and does not with it: then ends with 1.

    Ends with 77, saying why, where the source cannot be had.
    """
    from group import Group

    version = importlib.metadata.version(suite.package)
    tests = fetch(suite.package, version) / suite.folder
    with tempfile.TemporaryDirectory() as folder, Group(folder, 1) as group:
        environment = {**group.environment, **suite.environment, "CKPTD_FOREIGN_TESTS": str(tests),
                       "PYTHONPATH": os.pathsep.join(map(str, paths(suite)))}
        with concurrent.futures.ThreadPoolExecutor() as both:
            chosen = [*suite.chosen(tests), *options]
            native = both.submit(outcomes, tests, chosen, environment)
            ours = both.submit(outcomes, tests, ["-p", suite.plugin, *chosen],
                               {**environment, "CKPTD_ADDRESS": group.address(0)})
        loads = len(group.json("list")["checkpoints"])
    print(f"{suite.package} {version}: {tests.relative_to(ROOT)}")
    sys.exit(report(native.result(), ours.result(), loads))


def report(native, ours, loads):
    """Prints the table; 1 for a test that is lost, or when nothing was compared, else 0."""
    said = {name: text for name, (_, text) in ours.items()}
    native, ours = ({name: kind for name, (kind, _) in found.items()} for found in (native, ours))
    print(f"{'':10}{'native':>8}{'ckptd':>8}")
    for kind in ("passed", "failed", "skipped"):
        print(f"{kind:10}{list(native.values()).count(kind):8}{list(ours.values()).count(kind):8}")
    print(f"loaded by the daemon: {loads} checkpoints")
    wrong = [f"passes natively, {ours.get(name, 'missing')} with ckptd: {name}"
             for name, was in native.items() if was == "passed" and ours.get(name) != "passed"]
    if "passed" not in native.values() or not loads:
        wrong.append("no test passed natively, or none reached the daemon, so nothing was compared")
    for line in wrong:
        print(line)
        why = said.get(line.rpartition(": ")[2])
        if why:
            print(why[-2000:])
    return 1 if wrong else 0


def paths(suite):
    return [HERE, ROOT / "client/python/src", *(installed(need) for need in suite.needs)]


def fetch(package, version):
    """The unpacked source; ends the program where it cannot be had."""
    folder = CACHE / f"{package}-{version}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        pip(f"{package}=={version}", "download", "--no-build-isolation", "--no-binary", package,
            "--dest", CACHE, environment={"PYTHONPATH": str(HERE), "CKPTD_FOREIGN_VERSION": version})
        with tempfile.TemporaryDirectory(dir=CACHE) as unpacked:  # all of it is there, or nothing
            with tarfile.open(CACHE / f"{package}-{version}.tar.gz") as archive:
                # Python 3.11.4 and newer know it; what comes is PyPI's, by its version.
                safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(unpacked, **safely)
            (pathlib.Path(unpacked) / folder.name).rename(folder)
    return folder


def installed(need):
    """A folder that holds the package `need`, "name==version", and nothing else."""
    folder = CACHE / need.replace("==", "-")
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
            made = pathlib.Path(unfinished) / folder.name
            pip(need, "install", "--target", made)
            made.rename(folder)
    return folder


def pip(what, verb, *options, environment=None):
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-deps",
               *map(str, options), what]
    got = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
                         timeout=SECONDS)
    if got.returncode:
        last = (got.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        print(f"skipped: pip could not fetch {what}: {last}", file=sys.stderr)
        sys.exit(SKIPPED)


def outcomes(tests, arguments, environment):
    """test -> (passed, failed or skipped; what it said), of one run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        xml = pathlib.Path(folder) / "report.xml"
        (pathlib.Path(folder) / "tests" / "data").mkdir(parents=True)  # where some of safetensors' write
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "same_numbers",
             "--continue-on-collection-errors", f"--junit-xml={xml}", f"--rootdir={tests}",
             *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
        if not xml.exists():
            sys.exit(f"pytest left no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        found = {}
        for case in ElementTree.parse(xml).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            if found.get(name, ("",))[0] != "failed":  # one with parts is there for each that failed
                found[name] = outcome(case)
        return found


def outcome(case):
    for kind in ("failure", "error", "skipped"):
        said = case.find(kind)
        if said is not None:
            return "skipped" if kind == "skipped" else "failed", said.get("message", "") + (said.text or "")
    return "passed", ""
