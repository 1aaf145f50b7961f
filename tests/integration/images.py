"""Container images of this build, unpacked as a container runtime has them."""

import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

from group import BINARIES, ROOT, sanitized

TOOLS = ("buildah", "crun", "unshare", "nsenter")
SECONDS = 900  # for both, on a machine that does much else


@dataclasses.dataclass(frozen=True)
class Image:
    """A file tree, and what its maker says about it (`config` of the OCI image specification).

    `binds` are folders of this machine that the tree shows, read-only, under their own names."""

    tree: pathlib.Path
    config: dict
    binds: tuple = ()

    @property
    def user(self):
        """(uid, gid)"""
        uid, _, gid = self.config.get("User", "0:0").partition(":")
        return int(uid), int(gid or uid)

    @property
    def environment(self):
        return dict(line.split("=", 1) for line in self.config.get("Env", []))


def why_not():
    """None where images of this build can be made and run, else the reason."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing; deploy/setup installs what is needed"
    if os.geteuid() != 0:
        return "images are unpacked and run by root"
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"namespaces cannot be made here: {tried.stderr.strip()}"
    return "programs with sanitizers are not packed" if sanitized() else None


class Layout:
    """An image in an OCI archive. `image` is it with its tree, whose files have their owners."""

    def __init__(self, archive, folder):
        self.archive, self._blobs = archive, folder / "archive"
        with tarfile.open(archive) as tar:
            tar.extractall(self._blobs, filter="data")
        (named,) = json.loads((self._blobs / "index.json").read_text())["manifests"]
        self.digest, self.manifest = named["digest"], self._read(named)
        self.config = self._read(self.manifest["config"])["config"]
        self.image = Image(folder / "tree", self.config)
        for layer in self.manifest["layers"]:
            with tarfile.open(self._blob(layer)) as tar:
                tar.extractall(self.image.tree, numeric_owner=True, filter="tar")
        self.image.tree.chmod(0o755)  # folders of tests are their user's alone

    @property
    def bill(self):
        """The bill of materials that lies beside the archive."""
        return self.archive.with_name(self.archive.name.replace(".oci.tar", ".cdx.json"))

    def _blob(self, descriptor):
        return self._blobs / "blobs" / descriptor["digest"].replace(":", "/")

    def _read(self, descriptor):
        return json.loads(self._blob(descriptor).read_text())


def build(folder, *names):
    """deploy/docker/build into `folder`, in a store of its own, of this build's programs."""
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "storage.conf"
    store.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n')
    environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(store), "BUILDAH_ISOLATION": "chroot",
                   "STORAGE_DRIVER": "vfs"}
    command = [sys.executable, "-B", ROOT / "deploy/docker/main.py", *names]
    done = subprocess.run([*command, "--build", BINARIES.parent, "--output", folder], env=environment,
                          capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def archive(folder, name):
    """The archive of an image in a folder that processes have in common. The first that asks makes both."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.oci.tar")):
            build(folder)
        return next(folder.glob(f"*-{name}.oci.tar"))


def of_system(tree):
    """This machine's Python with all that tests import, for trainers: an image that other people made."""
    tree.chmod(0o755)
    for name in ("bin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "etc").mkdir()
    (tree / "etc/passwd").write_text("root:x:0:0::/:/none\ntrainer:x:65532:65532::/tmp:/none\n")
    python = {pathlib.Path(path).resolve() for path in (sys.base_prefix, sys.prefix)}
    binds = {pathlib.Path("/usr"), ROOT, *python}
    outer = [path for path in binds if not any(other != path and path.is_relative_to(other) for other in binds)]
    return Image(tree, {"Entrypoint": [sys.executable], "Env": ["PATH=/usr/bin", f"PYTHONPATH={ROOT}/client/python/src"]},
                 tuple(map(str, sorted(outer))))
