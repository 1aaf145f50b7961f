#!/usr/bin/env python3
"""Writes src/ckptd/_proto/descriptors.pb from the contract in proto/.

The package ships descriptors and builds its message classes from them at
import, so one wheel serves every protobuf runtime: generated modules would
each be tied to a range of versions. Needs `protoc` on the PATH, or the module
grpc_tools.
"""

import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# What clients speak; the daemons' own service between each other is not among it.
FILES = (
    "ckptd/v1/checkpoint_service.proto",
    "ckptd/v1/admin_service.proto",
    "ckptd/v1/error.proto",
)
OUTPUT = HERE / "src" / "ckptd" / "_proto" / "descriptors.pb"


def proto_root() -> pathlib.Path:
    return HERE.parent.parent / "proto"


def generate() -> pathlib.Path:
    root = proto_root()
    if not (root / FILES[0]).exists():
        raise SystemExit(f"generate.py: no {FILES[0]} under {root}; run it in the repository")
    arguments = [f"-I{root}", "--include_imports", f"--descriptor_set_out={OUTPUT}", *FILES]
    protoc = shutil.which("protoc")
    if protoc:
        subprocess.run([protoc, *arguments], check=True)
        return OUTPUT
    try:
        import grpc_tools
        from grpc_tools import protoc as bundled
    except ImportError:
        raise SystemExit(
            "generate.py: no protoc on the PATH and no grpc_tools; install protobuf-compiler or "
            "grpcio-tools"
        ) from None
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    if bundled.main(["protoc", f"-I{well_known}", *arguments]) != 0:
        raise SystemExit("generate.py: grpc_tools.protoc failed; its message is above")
    return OUTPUT


if __name__ == "__main__":
    sys.stdout.write(f"{generate()}\n")
