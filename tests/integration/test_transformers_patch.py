"""What patch() does beside giving the right weights."""

import logging
import os
import subprocess
import sys

import ckptd
import pytest
import torch

transformers = pytest.importorskip("transformers")
from ckptd import _fallback  # noqa: E402
from transformers_cases import FIVE, Case, difference, facts_of  # noqa: E402

CASE = Case("llama", "llama")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return CASE.save(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def nothing_stays_patched():
    yield
    ckptd.unpatch()


def mapping_of(address):
    """The line of /proc/self/maps that holds `address`."""
    for line in open("/proc/self/maps"):
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return line
    raise AssertionError(f"nothing is mapped at {address:x}")


def listed(group):
    return group.json("list")["checkpoints"]


def test_after_the_block_transformers_is_as_it_was(start, path):
    modeling = transformers.modeling_utils
    before = dict(vars(modeling))
    with ckptd.patch(address=start(1).address(0)) as patched:
        assert patched.active and modeling.safe_open is not before["safe_open"]
    assert not patched.active and {n: v for n, v in vars(modeling).items() if n in before} == before


def test_a_block_inside_of_another_has_its_own_daemon_and_the_outer_one_s_comes_back(start, path):
    groups = [start(1), start(1)]
    ckptd.patch(address=groups[0].address(0))
    with ckptd.patch(address=groups[1].address(0)):
        CASE.load(path, 1)
    assert [len(listed(group)) for group in groups] == [0, 1]
    CASE.load(path, 1)
    assert [len(listed(group)) for group in groups] == [1, 1]


def test_weights_are_the_daemon_s_memory_and_stay_when_it_is_gone(start, path):
    group = start(1)
    with ckptd.patch(address=group.address(0)):
        model, _ = CASE.load(path, 1)
    weight = model.model.layers[1].mlp.up_proj.weight
    assert "memfd" in mapping_of(weight.data_ptr())
    group.stop()
    with torch.no_grad():
        weight += 1
    assert torch.isfinite(weight).all()


def test_training_leaves_the_daemon_s_weights_as_they_are(start, path):
    address = start(1).address(0)
    with ckptd.patch(address=address):
        first, _ = CASE.load(path, 1)
        with torch.no_grad():
            for parameter in first.parameters():
                parameter.zero_()
        again, _ = CASE.load(path, 1)
    native, _ = CASE.load(path, 1)
    assert difference(facts_of(native), facts_of(again)) is None


def test_files_of_one_checkpoint_are_one_load(start, tmp_path):
    if not FIVE:
        pytest.skip("transformers 4 goes from file to file, each a load of its own")
    group, case = start(1), Case("sharded", "llama", shards="100KB")
    with ckptd.patch(address=group.address(0)):
        case.load(case.save(tmp_path), 1)
    loads = listed(group)
    assert len(loads) == 1 and loads[0]["source"].endswith("model.safetensors.index.json")


def test_what_an_operator_loaded_is_found(start, path):
    group = start(1)
    group.json("load", path / "model.safetensors", "--layout", "replicate:1")
    with ckptd.patch(address=group.address(0)):
        CASE.load(path, 1)
    assert len(listed(group)) == 1


def test_without_a_daemon_the_error_says_how_to_start_one(path, tmp_path):
    with ckptd.patch(address=str(tmp_path / "none.sock"), timeout=0.2):
        with pytest.raises(ckptd.Unavailable, match="start the job's daemons with `ckptd launch"):
            CASE.load(path, 1)


def test_the_native_way_is_taken_only_if_allowed_and_said_once(path, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(_fallback, "_said", set())  # by this test, not by others of this process
    native, _ = CASE.load(path, 1)
    with caplog.at_level(logging.WARNING, "ckptd"):
        with ckptd.patch(address=str(tmp_path / "none.sock"), timeout=0.2, fallback="native"):
            first, _ = CASE.load(path, 1)
            CASE.load(path, 1)
    assert difference(facts_of(native), facts_of(first)) is None
    assert len([r for r in caplog.records if r.name == "ckptd"]) == 1


@pytest.mark.parametrize("fallback", [None, "native"])
def test_a_load_that_fails_ends_from_pretrained_or_goes_on_natively_if_allowed(start, path, fallback):
    group = start(1, "--memory-budget", "2MiB")
    big = transformers.LlamaConfig(vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                                   num_attention_heads=4)
    folder = group.run_dir / "big"
    made = transformers.AutoModelForCausalLM.from_config(big)
    made.save_pretrained(folder)
    with ckptd.patch(address=group.address(0), timeout=60, fallback=fallback):
        if fallback is None:
            with pytest.raises(ckptd.ResourceExhausted):
                transformers.AutoModelForCausalLM.from_pretrained(folder)
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            assert difference(facts_of(made.eval()), facts_of(model)) is None


class Runs:
    def __reduce__(self):
        return os.system, ("true",)


def test_a_pickle_that_would_run_something_is_refused(start, path, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    torch.save({"model.norm.weight": Runs()}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text((path / "config.json").read_text())
    with ckptd.patch(address=start(1).address(0)):
        with pytest.raises(ckptd.Error, match="system"):
            CASE.load(folder, 1)


def test_a_file_of_torch_is_read_once_by_the_daemon(start, tmp_path):
    group, case = start(1), Case("pickled", "llama", pickled=True)
    saved = case.save(tmp_path)
    with ckptd.patch(address=group.address(0)):
        model, _ = case.load(saved, 1)
    assert "memfd" in mapping_of(model.model.layers[1].mlp.up_proj.weight.data_ptr())
    loads = listed(group)
    assert len(loads) == 1 and loads[0]["source"].endswith("pytorch_model.bin")


def test_without_a_daemon_a_file_of_torch_is_read_natively_if_allowed(tmp_path):
    case = Case("pickled", "llama", pickled=True)
    saved = case.save(tmp_path)
    native, _ = case.load(saved, 1)
    with ckptd.patch(address=str(tmp_path / "none.sock"), timeout=0.2, fallback="native"):
        first, _ = case.load(saved, 1)
    assert difference(facts_of(native), facts_of(first)) is None


def test_the_kill_switch_leaves_transformers_alone(monkeypatch, path, tmp_path, caplog):
    monkeypatch.setenv("CKPTD_PATCH", "0")
    with ckptd.patch(address=str(tmp_path / "none.sock")) as patched:
        assert not patched.active
        CASE.load(path, 1)
    assert "CKPTD_PATCH=0" in caplog.text


def test_an_unknown_transformers_is_refused(monkeypatch):
    monkeypatch.setattr("transformers.__version__", "6.0.0")
    with pytest.raises(ckptd.FailedPrecondition, match="transformers 6.0.0: it is another major version"):
        ckptd.patch()


def test_importing_loads_no_transformers():
    program = "import sys, ckptd.transformers; print('transformers' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                          env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stdout.split() == ["False", "False"], done.stderr
