"""Files that mean harm (tests/cases/hostile_files.py): each is refused at once, with nothing run."""

import json
import os
import pathlib
import subprocess

import hostile_files
import pytest
from process_cost import MEBIBYTE, cost_of

ROOT = pathlib.Path(__file__).resolve().parents[2]


class HashTool:
    """One process that opens all of them, so that none may leave anything behind."""

    def __init__(self):
        path = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin" / "hash_tool"
        if not path.exists():
            pytest.skip(f"{path} is not built")
        self._process = subprocess.Popen([str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0

    def open(self, source):
        self._process.stdin.write(f"{source}\n".encode())
        self._process.stdin.flush()
        length = self._process.stdout.readline()
        assert length, "hash_tool ended"
        answer = json.loads(self._process.stdout.read(int(length)))
        self._process.stdout.read(sum(tensor["bytes"] for tensor in answer.get("tensors", [])))
        return answer


@pytest.fixture(scope="module")
def tool():
    running = HashTool()
    yield running
    running.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory, tool):
    written = hostile_files.write_all(tmp_path_factory.mktemp("hostile"))
    tool.open(ROOT)  # what happens once
    return written


@pytest.mark.parametrize("name", hostile_files.HOSTILE)
def test_it_is_refused_within_a_second_and_in_little_memory(name, files, tool):
    source, reason = files[name]
    with cost_of(tool.pid) as cost:
        answer = tool.open(source)
    assert "error" in answer, f"it was read: {answer}"
    assert answer["reason"] == reason, answer["error"]
    assert str(source) in answer["error"] and "\n" not in answer["error"], answer["error"]
    assert len(answer["error"]) < 1500
    assert cost.seconds < 1, answer["error"]
    assert cost.growth < 50 * MEBIBYTE, answer["error"]
