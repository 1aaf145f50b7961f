"""The benchmark of from_pretrained: what it compares, shows and holds against its targets."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench" / "load"))
pytest.importorskip("torch")
import main  # noqa: E402
import pretrained  # noqa: E402
import report  # noqa: E402


def pretrained_samples(native, ours, built):
    return {"native": [native] * 3, "ckptd": [ours] * 3, "construction": [built] * 3}


@pytest.mark.parametrize("plan", ["fsdp", "accelerate"])
@pytest.mark.parametrize(
    ("native", "ours", "built", "fine"),
    [(3.0, 0.6, 0.1, [True, True]), (2.9, 0.6, 0.1, [False, True]), (9.0, 0.7, 0.1, [True, False]),
     (0.3, 0.7, 0.1, [False, False])])
def test_from_pretrained_is_to_be_five_times_as_fast_and_half_a_second_beyond_construction(
        plan, native, ours, built, fine):
    table = report.Table()
    report.pretrained(table, {f"{plan} float32": pretrained_samples(native, ours, built)})
    assert [line[2] for line in table.lines] == [">= 5 x", "<= 0.5 s"]
    assert [line[3] for line in table.lines] == fine
    assert table.text().count("MISSED") == fine.count(False)


def test_ways_of_from_pretrained_that_shard_otherwise_have_nothing_to_reach():
    table = report.Table()
    report.pretrained(table, {f"{plan} float32": pretrained_samples(1, 2, 0) for plan in ("plain", "tp")})
    assert table.lines == []


def test_the_whole_run_shows_from_pretrained_and_what_it_misses(capsys):
    samples = {name: pretrained_samples(1.0, 0.8, 0.1) for name in pretrained.FSDP2_NAMES}
    found = {"bytes": 1_646_000_000, "ranks": 4, "rounds": 3, "samples": samples}
    result = {"pretrained": found}
    main.show(argparse.Namespace(), result)
    shown = capsys.readouterr().out
    for name in ("fsdp float32", "fsdp bfloat16", "accelerate float32", "accelerate bfloat16"):
        assert re.search(rf"{name} +1.000 +0.800 +1.2x +0.100 +0.700$", shown, re.MULTILINE)
        assert re.search(rf"from_pretrained, {name}, vs stock +1.25 x +>= 5 x +MISSED$", shown, re.MULTILINE)
    assert len(result["table"]) == 8


def test_the_pretrained_model_has_at_least_the_bytes_that_were_asked_for():
    def bytes_of(sizes):
        hidden, wide = sizes["hidden_size"], sizes["intermediate_size"]
        narrow = hidden * sizes["num_key_value_heads"] // sizes["num_attention_heads"]
        layer = 2 * hidden * hidden + 2 * hidden * narrow + 3 * hidden * wide
        return 4 * (layer * sizes["num_hidden_layers"] + 2 * sizes["vocab_size"] * hidden)

    for asked in (500_000_000, 1_600_000_000):
        sizes = pretrained.sizes_of(asked)
        fewer = {**sizes, "num_hidden_layers": sizes["num_hidden_layers"] - 1}
        assert bytes_of(fewer) < asked <= bytes_of(sizes)
    assert pretrained.sizes_of(1)["num_hidden_layers"] == 1


@pytest.mark.parametrize(("name", "segments"), [("plain float32", 8), ("plain bfloat16", 5), ("tp float32", 3),
                                                ("fsdp bfloat16", 2), ("accelerate float32", 10)])
def test_daemons_have_room_for_the_resident_model_and_what_is_taken_besides(name, segments):
    assert pretrained.arena_for(name, 1_646_000_000, 4) == segments << 28


@pytest.mark.parametrize(("program", "patience", "within"), [("raise SystemExit(3)", 60, 30),
                                                             ("import signal; signal.pause()", 0.1, 30)])
def test_a_rank_that_fails_or_stands_still_is_named_with_its_log(program, patience, within, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "PATIENCE", patience)
    (tmp_path / "log-0").write_text("its last words")
    start = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        with pytest.raises(SystemExit, match="fsdp float32: rank 0 did not finish:\nits last words"):
            pretrained.follow("fsdp float32", [process], tmp_path, print)
        process.kill()
    assert time.monotonic() - start < within


@pytest.fixture
def trainer():
    """The module of pretrained.py's trainers, and one of them that measures nothing."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import pretrained_rank

    class Still(pretrained_rank.Rank):
        found = []  # (seconds, bits) of each sample, stock and ckptd in turn

        def sample(self, check):
            seconds, bits = self.found.pop(0)
            return seconds, bits if check else None

        def construct(self):
            return 0.1

    spec = {"ranks": 4, "rounds": 1, "name": "fsdp float32", "folder": "/nowhere",
            "sizes": {"hidden_size": 64, "num_attention_heads": 4}}
    return pretrained_rank, Still(spec, 1)


def test_samples_of_from_pretrained_leave_the_first_round_out(trainer):
    trainer[1].found = [(9, [1]), (9, [1]), (3, [1]), (2, [1])]
    assert trainer[1].measure() == {"native": [3], "ckptd": [2], "construction": [0.1]}


def test_other_bytes_than_those_of_from_pretrained_end_the_run(trainer):
    trainer[1].found = [(9, [1, 2]), (9, [1, 3])]
    with pytest.raises(SystemExit, match="fsdp float32: other bytes than natively on rank 1"):
        trainer[1].measure()


def test_only_samples_of_accelerate_have_the_environment_of_its_launcher(trainer, monkeypatch):
    module = trainer[0]
    names = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
    monkeypatch.delenv(names[0], raising=False)
    monkeypatch.setenv(names[1], "was")
    with module.launched():
        assert [os.environ[name] for name in names] == ["true", "true"]
    assert [os.environ.get(name) for name in names] == [None, "was"]


def test_from_pretrained_and_accelerate_are_patched_together_and_put_back(trainer):
    import accelerate.utils.fsdp_utils as fsdp_utils
    import transformers.modeling_utils as modeling

    def both():
        return fsdp_utils.fsdp2_prepare_model, modeling.safe_open

    before = both()
    with trainer[0].by_daemons():
        assert not set(both()) & set(before)
    assert both() == before
