"""A ckptd that is installed and broken: `import torch` goes on, and CKPTD_PATCH is not passed over in silence."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "client/python/src"

# What is broken -> a file that breaks it, of a folder before all others, and what it says.
BROKEN = {
    "the package raises": ("ckptd/__init__.py", "raise OSError('half of it\\nis missing')"),
    "the package is of another language": ("ckptd/__init__.py", "fn main() {}"),
    "a part of the package is missing": ("ckptd/__init__.py", ""),
    "the package ends in recursion": ("ckptd/__init__.py", "def f(): f()\nf()"),
}
NEEDED = {
    "grpc is missing": ("grpc.py", "raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')"),
    "grpc is broken": ("grpc.py", "raise ImportError('undefined symbol: _Z3foov')"),
    "protobuf is missing": ("google/protobuf/__init__.py", "raise ModuleNotFoundError('no protobuf')"),
    "protobuf is too old": ("google/protobuf/__init__.py", "__version__ = '2.0'"),
    "protobuf refuses its runtime": ("google/protobuf/__init__.py", "raise TypeError('Descriptors cannot be created directly')"),
}


def site(folder, broken):
    """The packages of a process in which one is broken, with the metadata that the wheel has."""
    (folder / "ckptd_autoload.py").symlink_to(CLIENT / "ckptd_autoload.py")
    info = folder / "ckptd-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ckptd\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nckptd = ckptd_autoload:on_torch_import\n")
    name, text = broken
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    if not (folder / "ckptd").exists():
        (folder / "ckptd").symlink_to(CLIENT / "ckptd")
    return folder


def run(folder, program, given="", **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPTD_")}
    env = {**env, "PYTHONPATH": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", program], env=env, input=given, capture_output=True, text=True, timeout=600)


def lines_of(done):
    return [line for line in done.stderr.splitlines() if "ckptd" in line]


def test_import_torch_goes_on_without_a_package_that_is_broken(tmp_path):
    folder = site(tmp_path, BROKEN["the package raises"])
    done = run(folder, "import torch; print(torch.ones(1).item())", CKPTD_PATCH="accelerate")
    assert done.returncode == 0 and done.stdout.strip() == "1.0", done.stderr
    assert "patches nothing" in lines_of(done)[0] and "half of it is missing" in lines_of(done)[0]


# As torch calls it.
CALLED = "from importlib.metadata import entry_points as e\nfor each in e(group='torch.backends'): each.load()()\n"


@pytest.mark.parametrize("what", BROKEN)
def test_a_package_that_cannot_be_imported_is_one_line_of_warning(tmp_path, what):
    done = run(site(tmp_path, BROKEN[what]), CALLED + "print('on')", CKPTD_PATCH="accelerate")
    assert done.returncode == 0 and done.stdout.strip() == "on", done.stderr
    (line,) = done.stderr.splitlines()
    assert "patches nothing" in line and "CKPTD_PATCH=accelerate" in line and "install it again" in line


def test_whoever_asks_for_nothing_is_told_nothing(tmp_path):
    done = run(site(tmp_path, BROKEN["the package raises"]), CALLED + "print('on')")
    assert done.returncode == 0 and (done.stdout.strip(), done.stderr) == ("on", "")


# One process, for which torch is imported once. The library to be patched is there already.
NEEDS = """
import importlib, json, sys, types
import torch, ckptd_autoload
sys.modules["accelerate"] = types.ModuleType("accelerate")
sys.modules["accelerate"].__spec__ = importlib.machinery.ModuleSpec("accelerate", None)
said = {}
for what, folder in json.load(sys.stdin).items():
    for name in list(sys.modules):
        if name.partition(".")[0] in ("ckptd", "grpc", "google"):
            del sys.modules[name]
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    from ckptd import _autopatch
    try:
        _autopatch.on_torch_import()
        said[what] = None
    except ImportError as error:
        said[what] = str(error)
    sys.path.remove(folder)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """said(**environment) -> what is broken -> the error of the library's import, and all lines on stderr."""
    folder = site(tmp_path_factory.mktemp("site"), ("note", ""))
    folders = {}
    for i, (what, (name, text)) in enumerate(NEEDED.items()):
        path = folder / f"broken{i}" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        folders[what] = str(folder / f"broken{i}")

    def run_all(**environment):
        done = run(folder, NEEDS, json.dumps(folders), **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr.splitlines()

    return run_all


def test_a_broken_package_that_it_needs_ends_the_import_of_what_is_patched(said):
    errors, _ = said(CKPTD_PATCH="accelerate", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    for what in NEEDED:
        assert "patching accelerate, as CKPTD_PATCH asks" in (errors[what] or ""), what
        assert "CKPTD_PATCH_FALLBACK=native" in errors[what]


def test_where_the_native_way_is_allowed_it_is_one_line_of_warning(said):
    errors, lines = said(CKPTD_PATCH="accelerate", CKPTD_PATCH_FALLBACK="native", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert set(errors.values()) == {None} and len(lines) == len(NEEDED)
    assert all("accelerate is left as it is" in line for line in lines)
    assert "undefined symbol" in lines[list(NEEDED).index("grpc is broken")]
