"""Flat parameters by every way that bytes take to a rank: other readers, fake GPUs, the fake NCCL."""

import json
import pathlib

import fake_cuda
import fake_nccl
import pytest
from fsdp1_cases import ANY_WAY
from group import Group
from ranks import run_workers

HERE = pathlib.Path(__file__).resolve().parent
WORLD = 2
WAYS = {
    "per_node": ("--reader", "per_node"),
    "all": ("--reader", "all"),
    "cuda": ("--memory", "cuda"),
    "nccl": ("--memory", "cuda", "--comm", "nccl"),
    "nccl_all": ("--memory", "cuda", "--comm", "nccl", "--reader", "all"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """way -> rank -> {case: failure or None, "stderr": text}, each way run once."""
    known = {}

    def get(way):
        if way not in known:
            folder, own, fakes = tmp_path_factory.mktemp("w"), {}, []
            if "cuda" in WAYS[way]:
                fakes.append(fake_cuda.FakeCuda(folder, gpus=WORLD))
                own = {**fakes[0].environment(), "CKPTD_TEST_HOST_VIEW": str(HERE.parent / "testing")}
            if "nccl" in WAYS[way]:
                fakes.append(fake_nccl.FakeNccl(fakes[0]))
                own |= fakes[1].environment()
            with Group(tmp_path_factory.mktemp("m"), WORLD, *WAYS[way], environment=own) as group:
                run_workers(folder, group, WORLD, [case.__name__ for case in ANY_WAY], "fsdp1_cases")
            assert [fake.violations() for fake in fakes] == [[] for _ in fakes]
            assert way not in ("nccl", "nccl_all") or fakes[1].trace('"ncclSend"'), "nothing travelled by NCCL"
            known[way] = {}
            for rank in range(WORLD):
                file = folder / f"rank-{rank}.json"
                found = json.loads(file.read_text()) if file.exists() else {}
                known[way][rank] = {**found, "stderr": (folder / f"stderr-{rank}").read_text()[-3000:]}
        return known[way]

    return get


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", [case.__name__ for case in ANY_WAY])
def test_a_flat_parameter_is_the_same_by_every_way(outcomes, way, case):
    if "cuda" in WAYS[way] and (fake_cuda.why_not() or fake_nccl.why_not()):
        pytest.skip(str(fake_cuda.why_not() or fake_nccl.why_not()))
    for rank, failure in outcomes(way).items():
        assert failure.get(case, failure) is None, f"rank {rank}:\n{failure}"
