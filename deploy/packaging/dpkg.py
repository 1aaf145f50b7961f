"""Debian packages that a build has code of, as ninja and dpkg know them."""

import dataclasses
import pathlib
import platform
import subprocess
from typing import Dict, Iterable, List, Sequence, Set

import elf

# Interfaces of the kernel: its headers bring constants and no code.
WITHOUT_CODE = {"linux-libc-dev"}
FIELDS = (
    "binary:Package",
    "Version",
    "Architecture",
    "source:Package",
    "source:Version",
    "Homepage",
)


@dataclasses.dataclass(frozen=True, order=True)
class Package:
    """One binary package as it is installed here. `name` has no architecture."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    homepage: str

    @property
    def copyright(self) -> pathlib.Path:
        """The file with its licences, which whoever passes the code on passes on, too."""
        path = pathlib.Path("/usr/share/doc") / self.name / "copyright"
        if not path.is_file():
            raise elf.Unfit(
                f"{path} is missing, so nobody could read the licence of {self.name}; reinstall it"
            )
        return path.resolve()


def distribution() -> str:
    """Such as debian-12."""
    about = platform.freedesktop_os_release()
    return f"{about['ID']}-{about.get('VERSION_ID', 'unstable')}"


def _run(*command: str) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        raise elf.Unfit(
            f"asking {command[0]}: {error}; deploy/setup says what is needed"
        ) from error


def described(names: Iterable[str]) -> List[Package]:
    """What dpkg knows of these packages, by name."""
    form = "\\t".join(f"${{{field}}}" for field in FIELDS) + "\\n"
    asked = sorted(names)
    if not asked:
        return []
    done = _run("dpkg-query", "-W", f"-f={form}", *asked)
    if done.returncode != 0:
        raise elf.Unfit(f"asking dpkg about {', '.join(asked)}: {done.stderr.strip()}")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return sorted(Package(name.partition(":")[0], *rest) for name, *rest in rows)


def owners(paths: Iterable[str]) -> Dict[str, str]:
    """Path -> the package that installed it; paths that no package has are left out."""
    asked = sorted(set(paths))
    if not asked:
        return {}
    found = {}
    for line in _run("dpkg", "-S", *asked).stdout.splitlines():
        names, _, path = line.partition(": ")
        found[path] = names.partition(",")[0]
    return found


def _lines(build: pathlib.Path, tool: str, words: Sequence[str]) -> List[str]:
    done = _run("ninja", "-C", str(build), "-t", tool, *words)
    if done.returncode != 0:
        raise elf.Unfit(
            f"asking ninja what {build} was made of: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout.splitlines()


def files_of(build: pathlib.Path, targets: Sequence[str]) -> Set[str]:
    """Absolute paths of the archives that were linked into the targets, and of the headers compiled in."""
    inputs = _lines(build, "inputs", targets)
    headers = _lines(build, "deps", [path for path in inputs if path.endswith(".o")])
    paths = {line.strip() for line in headers if line.startswith("    ")} | set(inputs)
    return {path for path in paths if path.startswith("/")}


def linked(build: pathlib.Path, targets: Sequence[str]) -> List[Package]:
    """Packages whose code is in these programs of a build, header-only ones and the compiler's own included."""
    names = set(owners(files_of(build, targets)).values())
    packages = described(names)
    if not packages:
        raise elf.Unfit(
            f"no Debian package seems to be in {', '.join(targets)} of {build}; build them there first"
        )
    return [package for package in packages if package.name not in WITHOUT_CODE]
