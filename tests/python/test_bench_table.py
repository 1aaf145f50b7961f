"""The benchmark's table of what loads are to reach."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench" / "load"))
pytest.importorskip("torch")  # the contenders' module, which the table's names come from
import contenders  # noqa: E402
import report  # noqa: E402
import resuming  # noqa: E402


def sample_of(trainers, daemons, added=0):
    """A sample of one trainer per figure of shared memory, each with so many bytes of its own."""
    ranks = [{"shmem": [0, shared], "anon": [100, 100 + added]} for shared in trainers]
    return {"memory": ranks, "daemons": daemons and {"shmem": daemons, "anon": 0, "rss": 0}}


def test_shared_memory_is_that_of_daemons_and_trainers_together():
    table = report.Table()
    report.memory(table, [sample_of([200, 300], 600, 5_000_000)] * 3, 1000)
    assert table.lines[0][1:] == ("1.1 S", "<= 1.05 S", False)
    assert table.lines[1][1] == "5 MB"
    table = report.Table()
    report.memory(table, [sample_of([200, 300], 500)] * 3, 1000)
    assert table.lines[0][3] is True


def test_shared_memory_that_cannot_be_seen_is_not_judged():
    table = report.Table()
    report.memory(table, [sample_of([200, 300], None)] * 3, 1000)
    assert table.lines == [("memory of daemons and trainers", "hidden", "", None)]


def samples_of(seconds):
    return [{"seconds": seconds, "daemons": None}] * 3


def all_reached():
    """Samples of every contender by which each line of the loads is reached."""
    seconds = {name: 1.0 for name in contenders.OURS}
    seconds.update({name: 100.0 for name in (*contenders.RIVALS, report.WARM_FLOOR)})
    return {name: samples_of(value) for name, value in seconds.items()}


def missed(found):
    table = report.Table()
    report.warm(table, found, 1000, 4)
    return [line.split("  ")[1] for line in table.text().splitlines() if line.endswith("MISSED")]


ORIGINALS = [
    ("ckptd fsdp2_load_full_state_dict", "accelerate fsdp2_load_full_state_dict", 15),
    ("ckptd fsdp2_load_full_state_dict, digests on", "accelerate fsdp2_load_full_state_dict", 15),
    ("ckptd set_model_state_dict", "torch set_model_state_dict, broadcast", 15),
    ("ckptd DistModule", "accelerate fsdp2_load_full_state_dict", 15),
    ("ckptd load_checkpoint_in_model", "accelerate load_checkpoint_in_model", 15),
    ("ckptd, state dict in memory", "accelerate, state dict in memory", 4),
    ("ckptd, state dict in memory, used arena", "accelerate, state dict in memory", 4),
    ("ckptd set_model_state_dict, in memory", "torch set_model_state_dict, in memory", 4),
]


@pytest.mark.parametrize(("ours", "original", "times"), ORIGINALS, ids=lambda value: str(value))
def test_each_loading_function_is_held_against_its_original(ours, original, times):
    found = all_reached()
    assert missed(found) == []
    line = f"{ours}, vs {original.split()[0].rstrip(',')}'s"
    found[ours] = samples_of(100 / (times - 0.1))
    assert missed(found) == [line]
    found[ours] = samples_of(100 / (times + 0.1))
    assert missed(found) == []


@pytest.mark.parametrize("name", contenders.SOURCES)
def test_other_formats_are_to_take_hardly_longer_than_safetensors(name):
    found = all_reached()
    found[name] = samples_of(1.16)
    assert missed(found) == [f"{name}, beside safetensors"]
    found[contenders.SAFETENSORS] = samples_of(1.02)
    assert missed(found) == []


def test_what_small_tensors_cost_is_shown_and_not_judged():
    table = report.Table()
    report.small(table, {"safetensors": samples_of(0.2), "DCP": samples_of(0.5)}, 10_000)
    assert table.lines == [("10,000 tensors of 4 KB, safetensors", "200 ms", "", None),
                           ("10,000 tensors of 4 KB, DCP", "500 ms, 2.50 x", "", None)]


def test_tools_on_files_that_are_too_slow_are_shown_as_missed():
    import tools

    found = {"bytes": 1_600_000_000, "ranks": 4, "rounds": 3, "samples": {
        "fast": {"ours": [1.0] * 3, "other": [0.8] * 3, "least": tools.COPY},
        "slow": {"ours": [1.0] * 3, "other": [2.9] * 3, "least": tools.FOREIGN}}}
    fast, slow = tools.text(found).splitlines()[-2:]
    assert fast.split() == ["fast", "1.00", "0.80", "0.80x", "0.8x"]
    assert slow.split() == ["slow", "1.00", "2.90", "2.90x", "3.0x", "MISSED"]


def test_what_starts_from_memory_has_its_state_dict_before_the_clock():
    in_memory = {name for pair in ORIGINALS if pair[2] == 4 for name in pair[:2]}
    # What they fill is there before it, too.
    readers = {name for pair in report.READERS for name in pair[:2]} | {"torch_checkpointing"}
    assert set(contenders.PREPARE) == in_memory | readers | set(resuming.CONTENDERS)
    # One that is measured with memory of its own, and one with memory that was lent before.
    assert {"ckptd set_model_state_dict, in memory", "ckptd, state dict in memory"} == set(contenders.APART)
