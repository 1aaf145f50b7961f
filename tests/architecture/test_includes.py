"""The folder table is law: who may include whom, and how long a file may be."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

SLAB_VIEW = ["server/memory/slab_view.h", "server/memory/block_copy.h"]
MEMORY = ["server/memory/memory.h", "server/memory/transit.h", "server/memory/ready_memory.h", *SLAB_VIEW]
COMM = ["server/comm/peer_memory.h", "server/comm/group_comm.h"]
TRANSFER = ["server/transfer/transfer.h", "server/transfer/transfer_types.h", "server/transfer/frames.h",
            "server/transfer/frame_receiver.h", "server/transfer/slab_spans.h", "server/transfer/step_user.h"]
# Of common/source, what storages and formats are written against.
SOURCE_SEAMS = [f"common/source/{name}.h" for name in ("access", "passed_files", "storage", "storage_watch", "format", "index", "dtype",
                                                         "piece",
                                                         "placements", "intervals", "text", "path_text", "tiling")]
SOURCE = [*SOURCE_SEAMS, *(f"common/source/{name}.h" for name in ("hub_cache", "manifest", "odd_tensors", "open", "piece_reader",
                                                               "registry", "table_memory", "together"))]
FORMATS = sorted(folder.name for folder in (ROOT / "common/source/formats").iterdir())
# Parts that several formats are made of: each may include those before it.
FORMAT_PARTS = [f"common/source/{name}" for name in ("pickle", "zip", "weight_map", "safetensors", "torch", "ranks")]
BEHIND_SEAMS = ("common/source/storage/", "common/source/formats/", *(f"{part}/" for part in FORMAT_PARTS))
# Who may name storages and formats.
REGISTRY = "common/source/registry.cc"
# The daemon's own rooms: each may include those before it.
ROOMS = ["protocol", "collective", "catalog", "group", "load", "node", "metrics"]

# Folder prefix -> prefixes it may include. The longest prefix that matches a
# file decides.
ALLOWED = {
    "common/base": ["common/base"],
    "common/source": [*SOURCE, "common/base"],
    "common/source/storage": ["common/source/storage", *SOURCE_SEAMS, "common/base"],
    **{part: [*FORMAT_PARTS[:place + 1], *SOURCE_SEAMS, "common/base"] for place, part in enumerate(FORMAT_PARTS)},
    # A format knows no storage and no other format.
    **{f"common/source/formats/{name}": [f"common/source/formats/{name}", *FORMAT_PARTS, *SOURCE_SEAMS, "common/base"]
       for name in FORMATS},
    "common/cast": ["common/cast", "common/source", "common/base"],
    "common/layout": ["common/layout", "common/source", "common/base"],
    "common/plan": ["common/plan", "common/layout", "common/source", "common/base"],
    # Files at rest: writers of what a source holds.
    "common/export": ["common/export", "common/layout", "common/cast", "common/source", "common/base"],
    "common/devices": ["common/devices", "common/layout", "common/source", "common/base"],
    "common/wire": ["common/wire", "common/plan", "common/devices", "common/layout", "common/source", "common/base",
                    "ckptd/v1"],
    "server/memory": [*MEMORY, "common"],
    "server/memory/host": ["server/memory/host", *MEMORY, "common"],
    "common/cuda": ["common/cuda", "common/base"],
    "server/memory/cuda": ["server/memory/cuda", *MEMORY, "common"],
    "server/transfer": ["server/transfer", *SLAB_VIEW, "common"],
    "server/comm": [*COMM, *SLAB_VIEW, "common"],
    "server/comm/host": ["server/comm/host", *COMM, *SLAB_VIEW, "common"],
    "server/comm/nccl": ["server/comm/nccl", *COMM, *SLAB_VIEW, "common"],
    **{f"server/{room}": [*(f"server/{lower}" for lower in ROOMS[:place + 1]), *MEMORY, *COMM, *TRANSFER, "common"]
       for place, room in enumerate(ROOMS)},
    # Descriptors by name, for a process that is away: it knows neither memory nor checkpoints.
    "server/keeper": ["server/keeper", "ckptd/v1", "common/base"],
    "server/rpc": ["server/rpc", *(f"server/{room}" for room in ROOMS), "server/transfer/frames.h", "ckptd/v1",
                   "common"],
    "server/daemon": ["server", "ckptd/v1", "common"],
    "client/cpp": ["client/cpp", "ckptd/v1", "common"],
    "client/cli": ["client/cli", "client/cpp", "ckptd/v1", "common"],
}
# Third-party headers that only these folders may see.
CONFINED = {
    re.compile(r"^grpcpp/"): ["server/rpc", "client/cpp"],
    re.compile(r"^google/protobuf/"): ["server/rpc", "client/cpp", "client/cli"],
    re.compile(r"^spdlog/"): ["common/base"],
    re.compile(r"^CLI/"): ["server/daemon", "client/cli"],
    re.compile(r"^cuda"): ["common/cuda"],
    re.compile(r"^nccl"): ["server/comm/nccl"],
}
OURS = ("common/", "server/", "client/", "ckptd/", "tests/")
HARD_CAP = 530


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).exists()]


def rule_for(path):
    matching = [prefix for prefix in ALLOWED if path.startswith(prefix + "/")]
    return max(matching, key=len) if matching else None


def includes_of(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', text, flags=re.M)


def violations(path, includes):
    if path == REGISTRY:
        return [f"{path} includes {header}" for header in includes
                if header.startswith(OURS) and not header.startswith(("common/source/", "common/base/"))]
    folder = rule_for(path)
    if folder is None:
        return [f"{path}: lies in no folder of the table"]
    found = []
    for header in includes:
        if header.startswith(OURS):
            allowed = any(header == one or header.startswith(one + "/") for one in ALLOWED[folder])
            # "common" is all of it but what only the registry names.
            allowed = allowed and (path.startswith("common/source/") or not header.startswith(BEHIND_SEAMS))
            if not allowed:
                found.append(f"{path} includes {header}")
        for pattern, folders in CONFINED.items():
            if pattern.search(header) and folder not in folders:
                found.append(f"{path} includes {header}, which is confined to {', '.join(folders)}")
    return found


def test_every_include_follows_the_folder_table():
    sources = tracked("common/*.h", "common/*.cc", "server/*.h", "server/*.cc", "client/*.h", "client/*.cc")
    assert len(sources) > 50
    found = [line for path in sources for line in violations(path, includes_of(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path,header", [
    ("common/layout/x.cc", "server/node/node.h"),
    ("server/catalog/x.cc", "server/memory/host/arena.h"),
    ("server/load/x.cc", "grpcpp/server.h"),
    ("server/catalog/x.cc", "server/load/pending_loads.h"),
    ("server/group/x.cc", "server/node/node.h"),
    ("server/node/x.cc", "server/metrics/metric.h"),
    ("client/cpp/x.cc", "server/node/node.h"),
    ("server/load/x.cc", "nccl.h"),
    ("server/comm/nccl/x.cc", "server/memory/cuda/cuda_lane.h"),
    ("common/base/x.cc", "common/plan/plan.h"),
    ("common/layout/x.cc", "common/plan/plan.h"),
    ("common/source/open.cc", "common/source/storage/posix.h"),
    ("common/source/open.cc", "common/source/formats/safetensors/format.h"),
    ("common/source/formats/safetensors/x.cc", "common/source/storage/posix.h"),
    ("common/source/formats/safetensors/x.cc", "common/source/registry.h"),
    ("common/source/storage/x.cc", "common/source/formats/safetensors/format.h"),
    ("server/transfer/x.cc", "common/source/storage/process_memory.h"),
    ("server/load/x.cc", "common/source/safetensors/header.h"),
])
def test_an_include_that_breaks_the_table_is_found(path, header):
    assert violations(path, [header])


def test_no_file_is_longer_than_the_hard_cap():
    sources = tracked("*.h", "*.cc", "*.go", "*.py", "*.proto")
    long = [f"{path}: {count} lines" for path in sources
            if (count := len((ROOT / path).read_text(encoding="utf-8").splitlines())) > HARD_CAP]
    assert not long, "\n".join(long)


def test_every_cpp_test_file_belongs_to_a_declared_test_binary():
    cmake = (ROOT / "tests/CMakeLists.txt").read_text()
    for name, values, body in re.findall(r"foreach\((\w+) IN ITEMS ([^)]*)\)(.*?)endforeach\(\)", cmake, flags=re.S):
        cmake += "".join(body.replace(f"${{{name}}}", value) for value in values.split())
    declared = set(" ".join(re.findall(r"DIRECTORY (.+?) LABEL", cmake, flags=re.S)).split())
    orphans = [path for path in tracked("tests/*_test.cc")
               if str(pathlib.Path(path).parent.relative_to("tests")) not in declared]
    assert not orphans, "\n".join(orphans)
