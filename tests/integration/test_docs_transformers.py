"""The code of client/python/docs/transformers.md, run as it stands."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
from ranks import PATHS  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers_cases import FIVE, Case  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python/docs/transformers.md"
BLOCKS = re.findall(r"^```python( tp)?\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
[PRELOAD] = re.findall(r"^```bash\nckptctl (.*?)\n```$", PAGE.read_text(), re.M)
GROUP = """
import os, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
"""


def test_the_page_has_code():
    assert len(BLOCKS) == 4


def run(group, ranks, program):
    env = {**group.environment, "CKPTD_ADDRESS": group.address("{rank}"), "HF_HUB_OFFLINE": "1",
           "STORE": str(group.run_dir / "store"), "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    running = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True,
                                env={**env, "RANK": str(rank), "WORLD_SIZE": str(ranks)}) for rank in range(ranks)]
    try:
        said = [process.communicate(timeout=240)[1] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * ranks, "\n".join(said)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("own_type", [False, True])
def test_what_the_page_loads_before_is_what_from_pretrained_finds(start, tmp_path, ranks, in_files, own_type):
    if in_files and not FIVE:
        pytest.skip("transformers 4 asks for each file by itself")
    model, group = Case("llama", "llama", shards="100KB" if in_files else None).save(tmp_path), start(ranks)
    if own_type:
        for path in model.glob("*.safetensors"):
            save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path, {"format": "pt"})
    command = PRELOAD.replace("MODEL", str(model)).replace("replicate:8", f"replicate:{ranks}")
    if in_files:
        command = command.replace("model.safetensors ", "model.safetensors.index.json ")
    if own_type:
        command = command.replace("--dtype BF16", "")
    group.json(*command.split())
    run(group, ranks, f"MODEL = {str(model)!r}\n" + next(code for tp, code in BLOCKS if "ckptd.patch" in code))
    assert len(group.json("list")["checkpoints"]) == 1


@pytest.mark.parametrize("ranks,code", [(2 if tp else 1, code) for tp, code in BLOCKS])
def test_the_code_of_the_page_runs(start, tmp_path, ranks, code):
    if ranks > 1 and not FIVE:
        pytest.skip("distributed_config is of transformers 5")
    model, group = Case("llama", "llama").save(tmp_path), start(ranks)
    program = (GROUP if ranks > 1 else "") + f"MODEL = {str(model)!r}\n" + code
    run(group, ranks, program)
    assert len(group.json("list")["checkpoints"]) == ("ckptd" in code)
