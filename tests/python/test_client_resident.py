"""What is resident: opened where it lies, kept for who waited, and what loads without a layout cost."""

import os

import ckptd
import pytest
from fake_daemon import FakeDaemon, Refusal


def test_open_finds_what_is_resident_of_a_source_and_loads_nothing(client, daemon, source):
    with pytest.raises(ckptd.NotFound, match="holds nothing of it") as error:
        client.open(source[0])
    assert error.value.reason == "CHECKPOINT_NOT_FOUND"
    loaded = client.load(source[0])
    with client.open(source[0]) as shard:
        assert shard.checkpoint == loaded.name
        name, expected = next(iter(source[1].items()))
        assert bytes(shard.tensors[name].buffer) == expected.tobytes()
    assert daemon.calls.count("LoadCheckpoint") == 1


def test_open_refuses_what_was_loaded_from_files_that_have_changed_since(client, source):
    client.load(source[0])
    os.utime(source[0], ns=(1, 1))
    with pytest.raises(ckptd.Aborted, match="load it again") as error:
        client.open(source[0])
    assert error.value.reason == "SOURCE_CHANGED"


def test_a_load_that_filled_not_all_ranks_is_the_error_that_it_says(client, daemon, source):
    real = daemon.LoadCheckpoint

    def lacking_a_rank(request):
        reply = real(request)
        reply.checkpoint.failure.code, reply.checkpoint.failure.rank = 8, 2
        reply.checkpoint.failure.message, reply.checkpoint.failure.reason = "no room", "NO_MEMORY"
        reply.checkpoint.state = 2  # ACTIVE: this rank's shard is whole
        return reply

    daemon.LoadCheckpoint = lacking_a_rank
    with pytest.raises(ckptd.ResourceExhausted, match="no room") as error:
        client.load(source[0])
    assert error.value.facts["rank"] == "2"


def test_the_daemon_is_told_which_load_an_acquire_follows(client, daemon, source):
    real, asked = daemon.AcquireShard, []
    daemon.AcquireShard = lambda request: asked.append(request) or real(request)
    client.acquire(client.load(source[0], wait_memory=2.5)).close()
    client.open(source[0]).close()
    (load,), (acquired, opened) = daemon.requests, asked
    assert acquired.load_request_id == load.request_id != "" and opened.load_request_id == ""
    assert load.spec.wait_memory.ToMilliseconds() == 2500


def test_a_load_without_a_layout_says_what_copies_on_all_ranks_cost(
    tmp_path, source, monkeypatch, caplog
):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with FakeDaemon(str(tmp_path), world_size=4) as daemon, ckptd.connect(daemon.path) as client:
        client.load(source[0])
        assert "each of 4 ranks gets a whole copy" in caplog.text
        caplog.clear()
        client.load(source[0])  # resident
        client.load(source[0], layout="fsdp:4", dtype="F64")
        assert "whole copy" not in caplog.text


def test_a_process_beside_the_group_is_told_how_to_open_what_is_resident(client, daemon, source):
    daemon.fail_next["LoadCheckpoint"] = [Refusal(3, "WRONG_WORLD_SIZE", "this group has 3")] * 2
    with pytest.raises(ckptd.InvalidArgument, match=r"this group has 3 .*client\.open"):
        client.load(source[0])
    with pytest.raises(ckptd.InvalidArgument) as error:
        client.load(source[0], layout="fsdp:2")
    assert "client.open" not in error.value.message
