"""The code of client/python/docs/transformers.md, run as it stands: after is what was before, to the last bit."""

import json
import os
import pathlib
import re

import pytest

pytest.importorskip("transformers")
import warm  # noqa: E402
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
# What a program was left with, on this rank: all that a model has, or what it took from a file.
REPORT = """
import hashlib, json, os, torch
def told(value):
    if not isinstance(value, torch.Tensor):
        return value
    local = value.to_local() if hasattr(value, "to_local") else value
    data = hashlib.sha256(local.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
    return [str(value.dtype), list(value.shape), list(local.shape), str(getattr(value, "placements", "")),
            value.requires_grad, data]
found = {name: globals()[name] for name in ("names", "weight", "rows") if name in globals()}
if "model" in globals():
    held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    found = dict(held, tied=[[a for a, y in held if y is x] for _, x in held], training=model.training)
with open(os.path.join(os.environ["FOUND"], f"found-{os.environ['RANK']}.json"), "w") as file:
    json.dump({name: told(value) for name, value in found.items()}, file)
"""


def without_ckptd(code):
    """The same, of the libraries alone."""
    code = code.replace("import ckptd\n", "import contextlib, safetensors\n")
    return code.replace("ckptd.patch()", "contextlib.nullcontext()").replace("ckptd.", "safetensors.")


def test_the_page_has_code():
    assert len(BLOCKS) == 4 and [bool(tp) for tp, _ in BLOCKS] == [False, False, True, False]


BEFORE, AFTER, SHARDED, OPENED = [code for _, code in BLOCKS]
OPTION = "distributed_config=DistributedConfig(tp_size=2)"
PAIRS = {
    "plain": (1, BEFORE, AFTER),
    "sharded": (2, without_ckptd(SHARDED), SHARDED),
    "safe_open": (1, without_ckptd(OPENED), OPENED),
}
# "The same with", says the page.
for wanted in ('tp_plan="auto"', 'distributed_config=DistributedConfig(tp_plan="auto")',
               "distributed_config=DistributedConfig(fsdp_size=2)"):
    changed = SHARDED.replace(OPTION, wanted)
    PAIRS[wanted] = (2, without_ckptd(changed), changed)


def run(group, ranks, program):
    """Runs the program on each rank."""
    store = group.run_dir / "store"
    store.unlink(missing_ok=True)
    env = {**group.environment, "CKPTD_ADDRESS": group.address("{rank}"), "HF_HUB_OFFLINE": "1",
           "STORE": str(store), "FOUND": str(group.run_dir), "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
           "OMP_NUM_THREADS": "1"}

    def start(rank):
        own = {**env, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        return warm.spawn(["-c", program], own, warm.TRANSFORMERS, stderr=warm.PIPE)

    running = [start(rank) for rank in range(ranks)]
    try:
        said = [process.communicate(timeout=600)[1] for process in running]
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


def outcome(group, ranks, model, code):
    """What each rank has when `code` has run."""
    program = (GROUP if ranks > 1 else "") + f"MODEL = {str(model)!r}\n" + code + REPORT
    run(group, ranks, program)
    return [json.loads((group.run_dir / f"found-{rank}.json").read_text()) for rank in range(ranks)]


def tensors_of(found):
    return [value for name, value in found.items() if name not in ("names", "tied", "training")]


@pytest.mark.parametrize("kind", PAIRS)
def test_after_is_what_was_before(start, tmp_path, kind):
    ranks, before, after = PAIRS[kind]
    if ranks > 1 and not FIVE:
        pytest.skip("distributed_config is of transformers 5")
    assert "ckptd" in after and "ckptd" not in before
    model, group = Case("llama", "llama").save(tmp_path), start(ranks)
    theirs = outcome(group, ranks, model, before)
    assert group.json("list")["checkpoints"] == []
    mine = outcome(group, ranks, model, after)
    assert len(group.json("list")["checkpoints"]) == 1
    assert mine == theirs
    assert any(shape != local for _, shape, local, *_ in tensors_of(mine[0])) == (ranks > 1)
