"""The wheel with programs in it, and what deploy/package refuses to pack."""

import importlib.util
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "deploy" / "packaging"
sys.path.append(str(PACKAGING))

import dpkg  # noqa: E402
import elf  # noqa: E402
import make_wheel  # noqa: E402

PLATFORM = "manylinux_2_36_x86_64"
STUB = '#!/bin/sh\necho "$0 $$ $*"\n'


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel with two scripts in the place of the programs."""
    folder = tmp_path_factory.mktemp("wheel")
    programs = [folder / "ckptd", folder / "ckptctl"]
    for program in programs:
        program.write_text(STUB)
        program.chmod(0o755)
    staged = make_wheel.stage(ROOT / "client/python", programs, folder)
    return make_wheel.build(staged, PLATFORM, folder, 1_600_000_000)


def test_the_wheel_is_for_its_platform_and_any_python(built):
    assert built.name.endswith(f"-py3-none-{PLATFORM}.whl")
    names = zipfile.ZipFile(built).namelist()
    assert "ckptd/bin/ckptctl" in names and "ckptd/_proto/descriptors.pb" in names
    assert not any(".data/" in name for name in names)


def test_an_installed_program_is_the_process_that_was_started(built, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path, built], check=True, timeout=120)
    process = subprocess.Popen(
        [tmp_path / "bin" / "ckptctl", "list", "a b"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate(timeout=60)
    program, pid, *words = said.split()
    assert program == str(tmp_path / "ckptd/bin/ckptctl")
    assert int(pid) == process.pid and words == ["list", "a", "b"]


def test_unpacked_programs_can_be_executed(built, tmp_path):
    make_wheel.unpack(built, tmp_path)
    said = subprocess.run(
        [tmp_path / "ckptd/bin/ckptd"], capture_output=True, text=True, timeout=60
    )
    assert said.stdout.startswith(str(tmp_path))


def run_entry(tmp_path, built, change):
    make_wheel.unpack(built, tmp_path)
    change(tmp_path / "ckptd/bin/ckptd")
    code = "from ckptd import _programs; _programs.ckptd()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "change,advice",
    [
        (pathlib.Path.unlink, "install the wheel for your platform"),
        (lambda path: path.chmod(0o644), "chmod +x"),
    ],
)
def test_a_program_that_is_not_there_is_an_error_that_says_what_to_do(
    tmp_path, built, change, advice
):
    done = run_entry(tmp_path, built, change)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert advice in done.stderr


def test_without_programs_the_wheel_is_for_every_machine(tmp_path):
    staged = make_wheel.stage(ROOT / "client/python", [], tmp_path)
    built = make_wheel.build(staged, "any", tmp_path, 1_600_000_000)
    assert built.name.endswith("-py3-none-any.whl")
    assert "console_scripts" not in declared(built)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What a source distribution holds, as paths below its folder."""
    folder = tmp_path_factory.mktemp("sdist")
    staged = make_wheel.stage(ROOT / "client/python", [], folder)
    program = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", program, folder]
    subprocess.run(command, cwd=staged, check=True, capture_output=True, timeout=120)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def test_type_checkers_are_told_that_the_package_has_types(built, sources):
    """PEP 561."""
    assert "ckptd/py.typed" in zipfile.ZipFile(built).namelist()
    assert "src/ckptd/py.typed" in sources


def test_a_source_distribution_has_what_its_setup_needs(sources):
    assert {"setup.py", "generate.py", "src/ckptd/_proto/descriptors.pb"} <= set(sources)


def test_the_wheel_lets_torch_call_it_at_its_import(built):
    assert "[torch.backends]\nckptd = ckptd_autoload:on_torch_import" in declared(built)
    assert "ckptd_autoload.py" in zipfile.ZipFile(built).namelist()


def declared(wheel):
    """Its entry points, as pip will read them."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith("/entry_points.txt"))
        return archive.read(name).decode()


BOUND = "-Wl,-z,relro,-z,now"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """makes(source, *options) -> a stripped shared library."""
    folder = tmp_path_factory.mktemp("elf")

    def make(source, *options):
        path = folder / f"made-{len(list(folder.iterdir()))}.so"
        command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path), *options]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return path

    return make


def test_a_library_beyond_the_system_s_is_refused_by_name(library):
    foreign = library("#include <string>\nstd::string f() { return std::string(99, 'x'); }", "-s")
    with pytest.raises(elf.Unfit, match="libstdc"):
        elf.check(foreign, (2, 36))


def test_a_later_c_library_is_refused(library):
    plain = library('#include <cstdio>\nvoid f() { puts("x"); }', "-s", "-nostdlib", "-lc", BOUND)
    assert elf.check(plain, (2, 36)) <= (2, 36)
    with pytest.raises(elf.Unfit, match="glibc"):
        elf.check(plain, (2, 1))


def test_functions_whose_table_stays_writable_are_refused(library):
    with pytest.raises(elf.Unfit, match="writable"):
        elf.check(library('#include <cstdio>\nvoid f() { puts("x"); }', "-s", "-nostdlib", "-lc", "-Wl,-z,lazy"), (2, 36))


def test_symbols_that_are_left_are_refused(library):
    with pytest.raises(elf.Unfit, match="symbols"):
        elf.check(library("int f() { return 1; }", "-nostdlib"), (2, 36))


def test_kernels_are_found_by_their_mark(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"..." + elf.KERNELS)
    assert elf.has_kernels(file)
    file.write_bytes(b"...")
    assert not elf.has_kernels(file)


@pytest.mark.parametrize(
    "with_kernels,option,fine",
    [
        (("ckptd", "kernel_bench"), False, True),
        (("kernel_bench",), False, False),
        ((), False, False),
        ((), True, True),
    ],
)
def test_a_build_without_kernels_is_packed_only_if_one_says_so(
    tmp_path, with_kernels, option, fine
):
    spec = importlib.util.spec_from_file_location("package_main", PACKAGING / "main.py")
    package_main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package_main)
    (tmp_path / "bin").mkdir()
    for name in ("ckptd", "kernel_bench"):
        (tmp_path / "bin" / name).write_bytes(elf.KERNELS if name in with_kernels else b"")
    if fine:
        package_main.check_kernels(tmp_path, option)
    else:
        with pytest.raises(elf.Unfit, match="--without-kernels"):
            package_main.check_kernels(tmp_path, option)


def test_a_program_s_headers_and_archives_are_found_in_what_ninja_remembers(tmp_path):
    (tmp_path / "zero.cc").write_text("#include <zlib.h>\nint main() { return zlibVersion() == nullptr; }\n")
    archive = "/usr/lib/x86_64-linux-gnu/libz.a"
    (tmp_path / "build.ninja").write_text(
        "rule cc\n  command = g++ -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
        f"rule link\n  command = g++ -o $out $in {archive}\n"
        f"build zero.o: cc zero.cc\nbuild zero: link zero.o | {archive}\n"
    )
    with pytest.raises(elf.Unfit, match="build them there first"):
        dpkg.linked(tmp_path, ["zero.cc"])
    subprocess.run(["ninja", "-C", tmp_path, "zero"], check=True, capture_output=True, timeout=60)
    names = [package.name for package in dpkg.linked(tmp_path, ["zero"])]
    assert "zlib1g-dev" in names and "libc6-dev" in names and "linux-libc-dev" not in names


def test_a_target_that_the_build_does_not_have_is_named(tmp_path):
    (tmp_path / "build.ninja").write_text("")
    with pytest.raises(elf.Unfit, match="nosuch"):
        dpkg.linked(tmp_path, ["nosuch"])


def test_a_package_without_its_licence_is_refused():
    with pytest.raises(elf.Unfit, match="/usr/share/doc/nosuch/copyright is missing"):
        dpkg.Package("nosuch", "1", "amd64", "nosuch", "1", "").copyright


def test_images_say_what_is_missing_before_they_are_made(tmp_path):
    command = [sys.executable, ROOT / "deploy/docker/main.py", "--package", tmp_path / "none.tar.gz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "none.tar.gz" in done.stderr and "deploy/package" in done.stderr
