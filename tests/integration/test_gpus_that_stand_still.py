"""GPUs on which copies do not end in time: the load ends, and nothing goes from under the copies."""

import json

import pytest
import torch
from cuda_bench import WHY_NOT
from group import save, wait_until

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

RATE = 1_000_000  # bytes a second
PATIENCE = 10  # seconds without the end of a copy


@pytest.mark.parametrize("ranks, daemon", [(1, ()), (1, ("--idle", "release")), (2, ())])
def test_a_load_onto_a_gpu_that_stands_still_ends_and_the_memory_is_free_when_it_goes_on(cuda, tmp_path, ranks, daemon):
    bench = cuda(ranks, daemon=daemon, gpus={"lazy_ms": 0, "link_bytes_per_second": RATE})
    seconds, layout = PATIENCE + 8, f"replicate:{ranks}"
    late = save(tmp_path / "late.safetensors", {"w": torch.randn(seconds * RATE // 4)})
    small = save(tmp_path / "small.safetensors", {"w": torch.randn(1000)})
    answer = bench.group.ctl("load", late, "--layout", layout)
    error = json.loads(answer.stderr.splitlines()[-1])["error"]
    assert error["reason"] == "DEADLINE" and "nothing has ended for 10.0 s" in error["message"], error
    assert any(bench.info(rank)["device_uuid"] in error["message"] for rank in range(ranks)), error
    # It is no shard any more, and still there for the copy.
    assert all(int(bench.info(rank)["used_bytes"]) == 0 for rank in range(ranks))
    assert bench.held() > 0
    answers = []

    def goes_on():
        answers.append(bench.group.ctl("load", small, "--layout", layout))
        return answers[-1].returncode == 0

    wait_until(goes_on, "the GPU to go on", 60)
    loaded = json.loads(answers[-1].stdout)
    name = loaded.get("checkpoint", loaded)["name"]
    for rank in range(ranks):
        assert bench.group.json("verify", name, rank=rank)["mismatched"] == []
    wait_until(lambda: bench.held() == sum(int(bench.info(rank)["used_bytes"]) for rank in range(ranks)),
               "the late copies to end, and their memory with them", 60)
    bench.unload()


# With room for all of the source on its way to the GPU, and without.
@pytest.mark.parametrize("daemon", [(), ("--staging", "8MiB")])
def test_a_daemon_on_a_gpu_that_stands_still_says_so_once_and_ends_when_it_is_told_to(cuda, tmp_path, daemon):
    bench = cuda(1, daemon=daemon, gpus={"lazy_ms": 0, "link_bytes_per_second": RATE // 100})
    late = save(tmp_path / "late.safetensors", {"w": torch.randn(4 * RATE)})
    assert "nothing has ended for 10.0 s" in bench.group.ctl("load", late, "--layout", "replicate:1").stderr
    bench.group.stop()  # looks at its exit code, too
