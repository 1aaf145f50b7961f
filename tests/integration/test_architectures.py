"""Small models of many architectures of transformers: values of the native way, or the sentence that says what has them."""

import os

import pytest
from group import Group

transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith("5."):
    pytest.skip("transformers 4 loads otherwise", allow_module_level=True)
import tiny_models  # noqa: E402
import warm  # noqa: E402
from ranks import HERE, assert_passed, found_by_case, run_ranks, said  # noqa: E402

# Whose tensors transformers stacks, fuses or renames.
CONVERTED = ("mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_neox")
SOME = ("llama", "gpt_neox", "mixtral", "t5")
# CKPTD_ARCHITECTURES=all: all of them, which takes minutes.
KINDS = tuple(tiny_models.TABLE) if os.environ.get("CKPTD_ARCHITECTURES") == "all" else SOME
WAYS = ("load_into", "fsdp", "tp")
# Of which transformers has no plan for tensor parallelism.
NO_PLAN = ("gpt2", "falcon", "bert", "t5", "stablelm", "persimmon", "gptj", "codegen", "gpt_neo", "opt", "bloom", "mamba",
           "roberta", "electra", "albert", "distilbert", "bart")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """case -> {rank: None or what differs}."""
    folder = tmp_path_factory.mktemp("w")
    with Group(tmp_path_factory.mktemp("m"), 2) as group:
        run_ranks(group, folder, 2, HERE.parent / "cases/architectures_worker.py", KINDS, {"HF_HUB_OFFLINE": "1"}, 1800, warm.TRANSFORMERS)
        log = group.log()
    return {**found_by_case(folder, 2), "log": log, "stderr": said(folder, 2)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_architecture_is_loaded_as_natively_or_the_error_says_what_does(outcome, kind, way):
    if way == "load_into" and kind in CONVERTED:
        assert outcome.get(f"{kind}, {way}") == dict.fromkeys((0, 1), "from_pretrained does it")
    elif way == "tp" and kind in NO_PLAN:
        assert outcome.get(f"{kind}, {way}") == dict.fromkeys((0, 1), "ValueError natively")
    else:
        assert_passed(outcome, f"{kind}, {way}", 2)
