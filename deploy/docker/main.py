"""Makes container images of what deploy/package has made, or of a build.

For each image, NAME-VERSION-IMAGE.oci.tar and NAME-VERSION-IMAGE.cdx.json come into --output, and the
image is in buildah's store as localhost/ckptd:VERSION-IMAGE. The store and the isolation are those that
buildah's own variables name: STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot work inside containers, too.
"""

import argparse
import datetime
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import List

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "packaging"))

import elf  # noqa: E402
import identity  # noqa: E402
import programs  # noqa: E402
import rootfs  # noqa: E402
import sbom  # noqa: E402

IMAGES = ("host", "cuda")
ARCHIVES = "ckptd-*-linux-x86_64.tar.gz"
BILL = "share/doc/ckptd/sbom.cdx.json"


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except FileNotFoundError as error:
        raise elf.Unfit(
            f"running {command[0]}: it is not installed; install it (Debian package buildah), or use "
            "--context DIR and another builder"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise elf.Unfit(
            f"running {' '.join(command[:2])}: it took more than {error.timeout} s"
        ) from error
    if done.returncode != 0:
        raise elf.Unfit(f"running {' '.join(command[:2])}: {(done.stderr or done.stdout).strip()}")


def newest(folder: pathlib.Path) -> pathlib.Path:
    archives = sorted(folder.glob(ARCHIVES), key=lambda path: path.stat().st_mtime)
    if not archives:
        raise elf.Unfit(
            f"there is no {folder}/{ARCHIVES}; run deploy/package, or name one with --package"
        )
    return archives[-1]


def unpacked(archive: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """The folder that is in an archive of deploy/package."""
    say(f"unpacking {archive.name}")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise elf.Unfit(
            f"unpacking {archive}: {error}; name an archive of deploy/package"
        ) from error
    folder = next(work.glob("ckptd-*"), work)
    if not (folder / BILL).is_file():
        raise elf.Unfit(
            f"{archive} has no {BILL}: it is no archive of this version's deploy/package"
        )
    return folder


class Package:
    """What deploy/package has made, unpacked, and what it says about itself."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.commit = (folder / "COMMIT").read_text().strip()
        bill = sbom.read(folder / BILL)
        self.version = bill.metadata.component.version
        self.epoch = int(bill.metadata.timestamp.timestamp())
        self.parts = list(bill.components)

    def lay_out(self, context: pathlib.Path) -> None:
        """What a builder needs: the Dockerfile with the file tree beside it."""
        context.mkdir(parents=True, exist_ok=True)
        if any(context.iterdir()):
            raise elf.Unfit(f"laying out {context}: it is not empty; name a new folder")
        (context / "run").mkdir()
        (context / "root").mkdir()
        shutil.copyfile(HERE / "Dockerfile", context / "Dockerfile")
        rootfs.lay_out(self.folder, context / "root")
        parts = self.parts + [sbom.of_package(found) for found in rootfs.packages()]
        subject = sbom.ckptd("ckptd", self.version, sbom.ComponentType.CONTAINER)
        bill = sbom.bill(subject, parts, self.commit, self.epoch)
        names = [part.name for part in self.parts]
        rootfs.lay_out_papers(self.folder, names, bill, context / "root")

    def options(self, image: str) -> List[str]:
        """Of a builder, for one of the images."""
        commit, *changes = self.commit.split()
        created = datetime.datetime.fromtimestamp(self.epoch, datetime.timezone.utc)
        arguments = {
            "VERSION": self.version,
            "REVISION": commit + ("-dirty" if changes else ""),
            "CREATED": created.isoformat(),
        }
        words = ["--target", image, "--tag", f"localhost/ckptd:{self.version}-{image}"]
        for name, value in arguments.items():
            words += ["--build-arg", f"{name}={value}"]
        return words


def build(image: str, package: Package, context: pathlib.Path, output: pathlib.Path) -> None:
    if image == "cuda" and not elf.has_kernels(context / "root/usr/bin/ckptd"):
        print("    this ckptd has no CUDA kernels, so it casts and repacks on the processor")
    tag = f"localhost/ckptd:{package.version}-{image}"
    stem = f"ckptd-{package.version}-{image}"
    say(f"building {tag}")
    when = ("--timestamp", str(package.epoch))  # the same commit comes out the same
    run("buildah", "bud", *package.options(image), *when, str(context))
    archive = output / f"{stem}.oci.tar"
    archive.unlink(missing_ok=True)
    run("buildah", "push", tag, f"oci-archive:{archive}:{tag}")
    bill = output / f"{stem}.cdx.json"
    shutil.copyfile(context / "root/usr" / BILL, bill)
    print(f"    {archive}   {programs.megabytes(archive)}\n    {bill}")


def make(arguments: argparse.Namespace) -> None:
    images = arguments.images or IMAGES
    with tempfile.TemporaryDirectory(prefix="ckptd-images-") as temporary:
        work = pathlib.Path(temporary)
        folder = work / "package"
        if arguments.build:
            say("stripping")
            programs.lay_out(arguments.build.resolve(), folder)
        else:
            folder = unpacked(arguments.package or newest(identity.ROOT / "dist"), folder)
        package = Package(folder)
        context = (arguments.context or work / "context").resolve()
        package.lay_out(context)
        if arguments.context:
            for image in images:
                print("docker build", *package.options(image), context)
            return
        output = arguments.output.resolve()
        output.mkdir(parents=True, exist_ok=True)
        for image in images:
            build(image, package, context, output)


def parsed() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="deploy/docker/build", description=__doc__, formatter_class=form
    )
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="host or cuda; both if none is named"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--package",
        type=pathlib.Path,
        help="archive of deploy/package; the newest in dist/ if not given",
    )
    source.add_argument(
        "--build",
        type=pathlib.Path,
        metavar="DIR",
        help="a build to take in its place, such as build/",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=identity.ROOT / "dist",
        metavar="DIR",
        help="default: dist/",
    )
    parser.add_argument(
        "--context",
        type=pathlib.Path,
        metavar="DIR",
        help="lay out the context there for another builder, and print docker's command; builds nothing",
    )
    arguments = parser.parse_args()
    wrong = [image for image in arguments.images if image not in IMAGES]
    if wrong:
        parser.error(f"there is no image {wrong[0]}; say host or cuda")
    return arguments


def main() -> None:
    arguments = parsed()
    os.umask(0o022)  # the daemon's user reads what this user lays out
    try:
        make(arguments)
    except elf.Unfit as unfit:
        sys.exit(f"deploy/docker/build: {unfit}")


if __name__ == "__main__":
    main()
