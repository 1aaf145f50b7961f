"""The container images: what is in them, what their labels and bills say, and that they run as they are."""

import json
import pathlib
import shutil
import subprocess
import sys

import fake_cuda
import images
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from group import ROOT
from pods import Container, EmptyDir, HostPath, Pod, Probe, VolumeMount

pytestmark = pytest.mark.skipif(bool(images.why_not()), reason=str(images.why_not()))
SOCKETS = {"run": EmptyDir("Memory")}
AT_SOCKETS = (VolumeMount("run", "/run/ckptd"),)


@pytest.fixture(params=("host", "cuda"))
def layout(request, layouts):
    return layouts(request.param)


def once(folder, image, *words, volume_mounts=(), **named):
    """(exit status, what it said) of a container that is run to its end."""
    container = Container("once", image, args=words, volume_mounts=volume_mounts, **named)
    with Pod(folder, containers=[container], volumes=SOCKETS, restart_policy="Never") as pod:
        return pod.runs["once"].process.wait(60), pod.log("once")


def test_an_image_says_what_it_is_and_is_nobody_s_root(layout):
    told = layout.config
    labels = {key.rpartition(".")[2]: value for key, value in told["Labels"].items() if key.startswith("org.opencontainers")}
    assert labels["title"] == "ckptd" and labels["version"] in (ROOT / "CMakeLists.txt").read_text()
    assert labels["licenses"] == "Apache-2.0" and len(labels["revision"].removesuffix("-dirty")) == 40
    assert told["User"] == "65532:65532" and told["Entrypoint"] == ["/usr/bin/ckptd"] and told["Cmd"] == ["run"]


def test_an_image_is_small_and_nothing_in_it_belongs_to_its_user_but_the_socket_folder(layout):
    assert sum(layer["size"] for layer in layout.manifest["layers"]) < 25_000_000
    own = [path for path in layout.image.tree.rglob("*") if path.lstat().st_uid != 0 or path.lstat().st_mode & 0o022]
    assert [path for path in own if not path.is_symlink()] == [layout.image.tree / "run/ckptd"]
    assert not [path for path in layout.image.tree.rglob("*") if path.name in ("sh", "bash", "dash", "busybox")]


def test_its_entry_point_explains_itself(layout, tmp_path):
    code, said = once(tmp_path, layout.image, "--help")
    assert code == 0, said
    for words in ("Checkpoint loader daemon", "ckptd run", "ckptctl load", "RUN_DIR/JOB", "--run-dir TEXT=/run/ckptd"):
        assert words in said


def test_a_read_only_container_without_privileges_serves_and_stops_when_it_is_told(layouts, tmp_path_factory):
    probe = Probe(("/usr/bin/ckptctl", "info"), period_seconds=0.2)
    daemon = Container("daemon", layouts("host").image, env={"CKPTD_ARENA": "0"}, volume_mounts=AT_SOCKETS, startup_probe=probe, restart_policy="Always")
    with Pod(tmp_path_factory.mktemp("p"), init_containers=[daemon], containers=[], volumes=SOCKETS) as pod:
        assert pod.execute("daemon", "/usr/bin/ckptctl", "list").returncode == 0
        status = pod.proc("daemon", "status")
        assert status["Uid"].split() == ["65532"] * 4 and int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0
        assert status["NoNewPrivs"] == "1"
    assert pod.events[-1] == ("daemon", "ended 0"), pod.log("daemon")


def test_without_a_volume_for_its_sockets_it_says_what_is_missing(layout, tmp_path):
    code, said = once(tmp_path, layout.image, "run", "--memory", "host", "--run-dir", "/run/other")
    assert code != 0 and "/run/other" in said and "Read-only file system" in said


def test_an_image_for_gpus_does_not_fall_back_to_host_memory(layouts, tmp_path):
    code, said = once(tmp_path, layouts("cuda").image, volume_mounts=AT_SOCKETS)
    assert code != 0 and "libcuda" in said


@pytest.mark.parametrize("folder", ["/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64"])
def test_an_image_for_gpus_finds_the_driver_where_nodes_mount_it(folder, layouts, tmp_path):
    if fake_cuda.why_not():
        pytest.skip(fake_cuda.why_not())
    fake = fake_cuda.FakeCuda(tmp_path, gpus=1, uuid__0="GPU-00000000-0000-0000-0000-00000000abcd")
    tmp_path.chmod(0o755)
    fake.folder.chmod(0o777)
    (tmp_path / "driver").mkdir(0o755)
    shutil.copy(fake_cuda.LIBRARY, tmp_path / "driver")
    mounts = (VolumeMount("driver", folder, read_only=True), VolumeMount("gpus", str(fake.folder)))
    container = Container("once", layouts("cuda").image, args=("info",), volume_mounts=mounts,
                          env={"CKPTD_FAKE_CUDA": str(fake.config)})
    volumes = {"driver": HostPath(str(tmp_path / "driver")), "gpus": HostPath(str(fake.folder))}
    with Pod(tmp_path / "pod", containers=[container], volumes=volumes, restart_policy="Never") as pod:
        assert pod.runs["once"].process.wait(60) == 0 and "GPU-00000000-0000-0000-0000-00000000abcd" in pod.log("once")


def test_a_bill_of_materials_names_what_the_programs_are_made_of(layouts):
    layout = layouts("host")
    papers = layout.image.tree / "usr/share/doc/ckptd"
    text = layout.bill.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["component"]["version"] == layout.config["Labels"]["org.opencontainers.image.version"]
    packages = {part["name"]: part for part in bill["components"] if "purl" in part}
    # Linked archives, a library of headers alone, the compiler's, and the C library that is in the image.
    assert {"libgrpc++-dev", "libssl-dev", "rapidjson-dev", "libstdc++-12-dev", "libc6"} <= set(packages)
    assert "libgtest-dev" not in packages and "linux-libc-dev" not in packages
    asked = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${Version}\n", *packages], capture_output=True, text=True)
    installed = set(asked.stdout.splitlines())
    assert {f"{name} {part['version']}" for name, part in packages.items()} <= installed
    assert all((papers / part["externalReferences"][0]["url"]).is_file() for part in packages.values())


def test_a_bill_is_in_its_image_and_beside_the_archive(layout):
    assert layout.bill.read_text() == (layout.image.tree / "usr/share/doc/ckptd/sbom.cdx.json").read_text()


def test_the_same_build_gives_the_same_image(layouts, tmp_path):
    images.build(tmp_path / "again", "host")
    again = images.Layout(images.archive(tmp_path / "again", "host"), tmp_path)
    assert again.digest == layouts("host").digest


def test_the_dockerfile_passes_its_linter():
    linter = pathlib.Path(sys.executable).parent / "hadolint"
    files = [str(path) for path in (ROOT / "deploy").rglob("*Dockerfile*")]
    done = subprocess.run([linter, "--config", ROOT / ".hadolint.yaml", *files], capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout + done.stderr
