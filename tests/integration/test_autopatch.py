"""CKPTD_PATCH: programs that know nothing of ckptd take their weights from the daemons."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
from transformers_cases import Case  # noqa: E402

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "client/python"
CASE = Case("llama", "llama")
TRAINER = """
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
import torch, transformers
print(transformers.modeling_utils.safe_open.__name__, 'ckptd' in sys.modules, len(list(model.parameters())))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package and the metadata that its wheel has (test_package.py), as pip leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "ckptd").symlink_to(CLIENT / "src/ckptd")
    info = folder / "ckptd-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ckptd\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nckptd = ckptd._autopatch:on_torch_import\n")
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return CASE.save(tmp_path_factory.mktemp("models"))


def train(installed, path, **environment):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run([sys.executable, "-c", TRAINER, path], env=env, capture_output=True, text=True, timeout=240)


def test_an_unchanged_program_loads_from_the_daemon(start, installed, path):
    group = start(1)
    done = train(installed, path, CKPTD_PATCH="transformers", CKPTD_ADDRESS=group.address(0))
    assert done.returncode == 0, done.stderr
    assert len(group.json("list")["checkpoints"]) == 1


@pytest.mark.parametrize("value", [None, "0"])
def test_without_it_nothing_changes(installed, path, value, tmp_path):
    asked = {"CKPTD_PATCH": value} if value else {}
    done = train(installed, path, CKPTD_ADDRESS=str(tmp_path / "none.sock"), **asked)
    assert done.returncode == 0, done.stderr


def test_without_a_daemon_the_program_ends_and_says_how_to_start_one(installed, path, tmp_path):
    done = train(installed, path, CKPTD_PATCH="transformers", CKPTD_ADDRESS=str(tmp_path / "none.sock"))
    assert done.returncode != 0 and "start the job's daemons with `ckptd launch" in done.stderr


def test_the_native_way_can_be_allowed_by_the_environment(installed, path, tmp_path):
    done = train(installed, path, CKPTD_PATCH="transformers", CKPTD_PATCH_FALLBACK="native",
                 CKPTD_ADDRESS=str(tmp_path / "none.sock"))
    assert done.returncode == 0 and "fallback='native'" in done.stderr


def test_a_library_that_is_not_patched_is_named(installed, path):
    done = train(installed, path, CKPTD_PATCH="vllm")
    assert done.returncode != 0 and "CKPTD_PATCH='vllm'" in done.stderr
