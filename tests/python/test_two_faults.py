"""The order of checks of a safetensors file: the table of the unit tests, and the library.

Drives the program inspect_tool, found through CKPTD_BUILD_DIR (its bin folder) or
build/bin of the repository.
"""

import os
import pathlib
import sys

import pytest

pytest.importorskip("safetensors")
ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/unit/common/source/safetensors/two_faults.txt"
TOOL = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin/inspect_tool"
sys.path.append(str(ROOT / "tests/fuzz"))
import compare_safetensors  # noqa: E402

# In their order.
CHECKS = [
    "HeaderTooSmall", "HeaderTooLarge", "InvalidHeaderLength", "InvalidHeader",
    "InvalidHeaderDeserialization", "InvalidOffset", "ValidationOverflow", "MisalignedSlice",
    "TensorInvalidInfo", "MetadataIncompleteBuffer",
]  # fmt: skip


def file_of(line):
    """What the table says of a file, and the bytes of that file."""
    name, stated, data, cut, text = line.split(maxsplit=4)
    header = text.encode().replace(b"\\xff", b"\xff")
    length = len(header) if stated == "-" else int(stated)
    whole = length.to_bytes(8, "little") + header + bytes(int(data))
    return name, whole if cut == "-" else whole[: int(cut)]


LINES = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
FILES = [file_of(line) for line in LINES]
PAIRS = list(zip(FILES[::2], FILES[1::2]))


def write_all(folder):
    paths = []
    for number, (_, blob) in enumerate(FILES):
        paths.append(str(folder / f"{number}.safetensors"))
        pathlib.Path(paths[-1]).write_bytes(blob)
    return paths


def test_safetensors_names_what_the_table_says(tmp_path):
    paths = write_all(tmp_path)
    for _ in range(20):  # its maps have another order each time
        found = [compare_safetensors.reference_verdict(path) for path in paths]
        assert found == [name for name, _ in FILES]


def test_a_reader_of_ours_names_what_the_table_says(tmp_path):
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not built")
    found = compare_safetensors.batch_verdicts(str(TOOL), write_all(tmp_path))
    assert found == [name for name, _ in FILES]


def test_the_table_has_each_check_with_the_one_after_it():
    pairs = {(first, second) for (first, _), (second, _) in PAIRS}
    assert set(zip(CHECKS, CHECKS[1:])) <= pairs
