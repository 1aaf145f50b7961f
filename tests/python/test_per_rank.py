"""Files of ranks that torch itself wrote, put together by hash_tool and compared with the whole tensors."""

import hashlib
import json
import math
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")

from per_rank_cases import CASES  # noqa: E402
from worker_group import run_group  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
WORLD = 4
PATIENCE = 120


def opened(path):
    """The tensors of a source: name -> (dtype, shape, bytes)."""
    tool = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin/hash_tool"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    answer = subprocess.run([tool], input=f"{path}\n".encode(), stdout=subprocess.PIPE, check=True,
                            timeout=PATIENCE).stdout
    length, answer = answer.split(b"\n", 1)
    described, data = json.loads(answer[:int(length)]), answer[int(length):]
    assert "error" not in described, described["error"]
    tensors = {}
    for tensor in described["tensors"]:
        tensors[tensor["name"]] = tensor["dtype"], tensor["shape"], data[:tensor["bytes"]]
        data = data[tensor["bytes"]:]
    return tensors


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("per_rank")
    return folder / "files", run_group(folder, WORLD, module="per_rank_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in CASES[WORLD]])
def test_what_the_ranks_saved_is_the_whole_again(case, saved):
    folder, outcome = saved
    for rank in range(WORLD):
        failure = outcome.get(case, {}).get(rank, f"rank {rank} did not finish:\n{outcome['stderr'].get(rank)}")
        assert failure is None, f"rank {rank}:\n{failure}"
    whole = torch.load(folder / f"{case}.whole.pt")
    found = opened(folder / case)
    assert sorted(found) == sorted(whole)
    dtypes = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    for name, tensor in whole.items():
        dtype, shape, data = found[name]
        assert (dtype, shape) == (dtypes[tensor.dtype], list(tensor.shape)), name
        assert data == bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()), name


def hashes(case):
    """Hashes and sizes of the model's tensors in a fixture: name -> (SHA-256, bytes)."""
    whole = json.loads((FIXTURES / case / "expected.json").read_text())["tensors"]
    return {name.removeprefix("model."): (one["sha256"], 4 * math.prod(one["shape"]))
            for name, one in whole.items() if name.startswith("model.")}


def test_runs_of_flat_parameters_are_joined_under_their_own_names():
    found = opened(FIXTURES / "accelerate_fsdp1_local_orig")
    for name, (digest, size) in hashes("accelerate_fsdp1_local_orig").items():
        dtype, shape, data = found[name]
        assert (dtype, shape, hashlib.sha256(data).hexdigest()) == ("F32", [size // 4], digest), name


def test_flat_parameters_have_their_members_one_behind_the_other():
    found = opened(FIXTURES / "accelerate_fsdp1_local_flat")
    wanted = hashes("accelerate_fsdp1_local_flat")
    for flat in (name for name in found if name.endswith("_flat_param")):
        prefix = flat.removesuffix("_flat_param")
        members = [name for name in wanted if name.startswith(prefix) and name != "scale"]
        if not prefix:
            members = [name for name in members if not name.startswith("layers.")]
        data = found[flat][2]
        for name in members:
            digest, size = wanted[name]
            assert hashlib.sha256(data[:size]).hexdigest() == digest, (flat, name)
            data = data[size:]
        assert not data
