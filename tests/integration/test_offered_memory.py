"""Memory that a trainer offers, read where it is: by every kind of reader, and when the trainer dies."""

import contextlib
import os
import pathlib

import ckptd
import pytest
import warm
from faults import Program, assert_nothing_is_left, client_environment, load_everywhere
from group import Group, save
from holds import HEARTBEATS, LIMIT, held_at

torch = pytest.importorskip("torch")

OFFER = """
import sys
import torch
from ckptd.torch.spread import _staging
size = int(sys.argv[1])
tensors = {"many": torch.arange(size, dtype=torch.int32), "turned": torch.arange(60.0).reshape(6, 10).t()}
offered = _staging.OfferedMemory(_staging._image(tensors))
print(offered.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def offer():
    """offer(elements) -> (path, the process whose memory it is)."""
    environment = {**client_environment(), "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:

        def start(elements):
            program = Program(OFFER, elements, environment=environment, modules=warm.TORCH)
            return stack.enter_context(program).hear(), program.process

        yield start


@pytest.mark.parametrize("reader", ["rank0", "per_node", "all"])
@pytest.mark.parametrize("way", ["auto", "map", "direct"])
def test_every_reader_finds_it_whatever_way_of_reading_is_asked_for(tmp_path, offer, reader, way):
    path, _ = offer(300_001)
    many = torch.arange(300_001, dtype=torch.int32)
    with Group(tmp_path, 2, "--reader", reader, "--read", way) as group:
        loads = load_everywhere(group, path)
        for rank, loading in enumerate(loads):
            with ckptd.connect(group.address(rank)) as client, client.acquire(loading.outcome(60)) as shard:
                assert bytes(shard.tensors["many"].buffer) == many.chunk(2)[rank].numpy().tobytes()
                turned = torch.arange(60.0).reshape(6, 10).t().contiguous().chunk(2)[rank]
                assert bytes(shard.tensors["turned"].buffer) == turned.numpy().tobytes()
        progress = group.json("list")["checkpoints"][0]["progress"]
        assert int(progress["read"]["storage_bytes"]) == 300_001 * 4 + 240 and int(progress["read"]["mapped_bytes"]) == 0


def test_a_trainer_that_is_killed_while_it_is_read_is_an_error_that_names_its_file(tmp_path, offer):
    started = []

    def make(_):
        started.append(offer(64 << 20))
        return started[-1][0]

    with Group(tmp_path, 2, *HEARTBEATS) as group:
        with held_at(group, "TRANSFERRING", tmp_path / "unused", make) as (path, loads, _):
            started[-1][1].kill()
            started[-1][1].wait()
        for loading in loads:
            error = loading.outcome(LIMIT)
            assert isinstance(error, ckptd.Error), error
            # Not found by a thread that was only about to open it.
            assert error.reason in ("SOURCE_CHANGED", "SOURCE_NOT_FOUND", "RANK_LOST")
            assert path in error.message or "rank" in error.message
        group.wait_ready()
        assert_nothing_is_left(group)
        again = save(tmp_path / "after.safetensors", {"w": torch.ones(8)})
        for loading in load_everywhere(group, again):
            assert loading.outcome(60).state == "ACTIVE"


def test_what_is_offered_says_nothing_to_who_does_not_know_it(offer):
    from safetensors import SafetensorError, safe_open

    path, process = offer(100)
    with pytest.raises(SafetensorError, match="(?i)header"):
        safe_open(path, "pt")
    assert path.startswith(f"/proc/{process.pid}/fd/") and not pathlib.Path(os.readlink(path)).exists()
