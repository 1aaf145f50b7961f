"""CKPTD_PATCH: programs that know nothing of ckptd take their weights from the daemons."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import torch  # noqa: E402
from group import Group  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
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

# Torch is first imported in the middle of the first line, of whichever library that is.
OFFLOADER = """
import sys
{imports}
with accelerate.init_empty_weights():
    model = torch.nn.Linear(3, 2, bias=False)
accelerate.load_checkpoint_in_model(model, sys.argv[1], device_map={{"": "cpu"}})
print(model.weight.tolist())
"""
ORDERS = ["import accelerate, torch", "import torch, accelerate", "import torch\nfrom accelerate.utils import offload\nimport accelerate",
          "import transformers.modeling_utils, accelerate, torch",
          "import torch, importlib.util\nimportlib.util.find_spec('accelerate')\nimport accelerate"]
RETRIED = """
import sys, torch
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "accelerate.big_modeling" and self in sys.meta_path:
            sys.meta_path.remove(self)
            raise ImportError("half of it is missing")
sys.meta_path.insert(0, Broken())
try:
    import accelerate
except ImportError as error:
    print(error)
for name in [name for name in sys.modules if name.startswith("accelerate")]:
    del sys.modules[name]
import accelerate
print(accelerate.load_checkpoint_in_model.__module__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package and the metadata that its wheel has (test_package.py), as pip leaves it."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("ckptd", "ckptd_autoload.py"):
        (folder / name).symlink_to(CLIENT / "src" / name)
    info = folder / "ckptd-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ckptd\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nckptd = ckptd_autoload:on_torch_import\n")
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return CASE.save(tmp_path_factory.mktemp("models"))


def train(installed, path, program=TRAINER, **environment):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run([sys.executable, "-c", program, path], env=env, capture_output=True, text=True, timeout=600)


def test_an_unchanged_program_loads_from_the_daemon(start, installed, path):
    group = start(1)
    done = train(installed, path, CKPTD_PATCH="transformers", CKPTD_ADDRESS=group.address(0))
    assert done.returncode == 0, done.stderr
    assert len(group.json("list")["checkpoints"]) == 1


def test_without_it_nothing_changes(installed, matrix, tmp_path):
    program = OFFLOADER.format(imports=ORDERS[0])
    for asked in ({}, {"CKPTD_PATCH": "0"}):
        done = train(installed, matrix, program, CKPTD_ADDRESS=str(tmp_path / "none.sock"), **asked)
        assert done.returncode == 0 and done.stdout.startswith("[[0.0"), done.stderr


def test_without_a_daemon_the_program_ends_and_says_how_to_start_one(installed, matrix, tmp_path):
    program = OFFLOADER.format(imports=ORDERS[0])
    done = train(installed, matrix, program, CKPTD_PATCH="accelerate", CKPTD_ADDRESS=str(tmp_path / "none.sock"))
    assert done.returncode != 0 and "start the job's daemons with `ckptd launch" in done.stderr


def test_the_native_way_can_be_allowed_by_the_environment(installed, path, tmp_path):
    done = train(installed, path, CKPTD_PATCH="transformers", CKPTD_PATCH_FALLBACK="native",
                 CKPTD_ADDRESS=str(tmp_path / "none.sock"))
    assert done.returncode == 0 and "fallback='native'" in done.stderr


@pytest.mark.parametrize("value", ["vllm", "accelerate,vllm", "accelerate,"])
def test_a_library_that_is_not_patched_is_named(installed, matrix, value):
    done = train(installed, matrix, "import torch", CKPTD_PATCH=value)
    assert done.returncode == 1 and f"CKPTD_PATCH='{value}'" in done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("a"), 1) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    file = tmp_path_factory.mktemp("matrix") / "model.safetensors"
    save_file({"weight": torch.arange(6.0).reshape(2, 3)}, file)
    return file


@pytest.mark.parametrize("imports,value", [*((order, "accelerate") for order in ORDERS), (ORDERS[0], "transformers, accelerate")])
def test_unchanged_code_of_accelerate_loads_from_the_daemon(group, installed, matrix, value, imports, tmp_path):
    own = shutil.copy(matrix, tmp_path)
    done = train(installed, own, OFFLOADER.format(imports=imports), CKPTD_PATCH=value, CKPTD_ADDRESS=group.address(0))
    assert done.stdout.strip() == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]", done.stderr
    assert [load["source"] for load in group.json("list")["checkpoints"]].count(own) == 1


def test_an_import_that_fails_and_is_tried_again_is_patched_the_second_time(installed, matrix):
    done = train(installed, matrix, RETRIED, CKPTD_PATCH="accelerate")
    assert done.stdout.split("\n")[:2] == ["half of it is missing", "ckptd.accelerate._checkpoint"], done.stderr


def test_two_libraries_are_patched_in_one_program(start, installed, path):
    group = start(1)
    done = train(installed, path, CKPTD_PATCH="accelerate,transformers", CKPTD_ADDRESS=group.address(0))
    assert done.returncode == 0, done.stderr
    assert len(group.json("list")["checkpoints"]) == 1


@pytest.mark.parametrize("imports", ["import accelerate, ckptd.accelerate", "import ckptd.accelerate"])
def test_a_block_in_a_program_ends_and_the_patch_of_the_environment_goes_on(installed, matrix, imports):
    program = f"{imports}\nwith ckptd.accelerate.patch():\n    pass\nimport accelerate\n"
    program += "print(accelerate.load_checkpoint_in_model.__module__)"
    done = train(installed, matrix, program, CKPTD_PATCH="accelerate")
    assert done.stdout.strip() == "ckptd.accelerate._checkpoint", done.stderr


def test_the_block_of_the_documents_runs_under_the_patch_of_the_environment(start, installed, path):
    groups = [start(1), start(1)]
    program = "import ckptd, sys\nfrom transformers import AutoModelForCausalLM\n"
    program += f"with ckptd.patch(address='{groups[0].address(0)}'):\n    AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
    program += "AutoModelForCausalLM.from_pretrained(sys.argv[1])"
    done = train(installed, path, program, CKPTD_PATCH="transformers", CKPTD_ADDRESS=groups[1].address(0))
    assert done.returncode == 0, done.stderr
    assert [len(group.json("list")["checkpoints"]) for group in groups] == [1, 1]


def test_an_import_that_fails_says_why_and_no_more(installed, matrix, tmp_path):
    """A library that ends in the middle of its import is not patched."""
    broken = tmp_path / "accelerate"
    broken.mkdir()
    (broken / "__init__.py").write_text("import torch\nraise ImportError('half of it is missing')\n")
    program = "import sys\nsys.path.insert(0, %r)\ntry:\n    import accelerate\nexcept ImportError as e:\n    print(e)" % str(tmp_path)
    done = train(installed, matrix, program, CKPTD_PATCH="accelerate")
    assert done.stdout.strip() == "half of it is missing", done.stderr
