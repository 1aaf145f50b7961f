"""Cases of the way most users of accelerate and Trainer go: from_pretrained, then accelerate's prepare."""

import contextlib
import os
import pathlib

import ckptd
import ckptd.accelerate
import peft
import torch
import torch.distributed as dist
import transformers
from accelerate.utils import fsdp_utils
from accelerate_cases import OnTheHost, assert_same_model
from fsdp_bench import local
from spread_bench import storage_bytes_of
from transformers_cases import FIVE

# What `accelerate launch` sets for a plugin with cpu_ram_efficient_loading.
LAUNCHED = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2, tied": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
}


def written(bench, name):
    """The model's folder, written by the first rank in bfloat16."""
    folder = pathlib.Path(bench.folder) / f"{bench.case}-{name}"
    if bench.rank == 0 and not folder.exists():
        torch.manual_seed(3)
        made = transformers.AutoModelForCausalLM.from_config(MODELS[name]()).to(torch.bfloat16)
        made.save_pretrained(folder)
    dist.barrier()
    return folder


@contextlib.contextmanager
def launched():
    os.environ.update(LAUNCHED)
    try:
        yield
    finally:
        for name in LAUNCHED:
            del os.environ[name]


def prepared(bench, folder, precision, **options):
    with launched():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
        return fsdp_utils.fsdp2_prepare_model(OnTheHost(bench.rank, precision), model)


def losses(model, steps=5):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    found = []
    for step in range(steps):
        tokens = torch.arange(16).reshape(2, 8) + step
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def a_pretrained_model_is_prepared_and_trains_as_natively(bench):
    for name, precision, dtype in (("llama", "no", "auto"), ("llama", "bf16", torch.bfloat16),
                                   ("qwen2, tied", "bf16", torch.float32), ("mixtral", "bf16", torch.bfloat16)):
        folder = written(bench, name)
        theirs = prepared(bench, folder, precision, dtype=dtype)
        with ckptd.patch(address=bench.address), ckptd.accelerate.patch(address=bench.address):
            mine = prepared(bench, folder, precision, dtype=dtype)
        assert_same_model(mine, theirs)
        assert losses(mine) == losses(theirs), f"{name}: losses differ"
        dist.barrier()
        if bench.rank == 0:
            file = folder / "model.safetensors"
            assert storage_bytes_of(bench, str(file)) <= file.stat().st_size, "it was read more than once"
        dist.barrier()


def with_adapters(folder):
    """Some trained and some frozen parameters, under names that no checkpoint has."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(5)
    wanted = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    return peft.get_peft_model(model, wanted)


def a_model_with_peft_s_adapters_is_prepared_and_trains_as_natively(bench):
    for name in ("llama", "qwen2, tied"):
        folder = written(bench, name)
        with launched():
            theirs, mine = with_adapters(folder), with_adapters(folder)
            fsdp_utils.fsdp2_prepare_model(OnTheHost(bench.rank), theirs)
            ckptd.accelerate.fsdp2_prepare_model(OnTheHost(bench.rank), mine, address=bench.address)
        assert_same_model(mine, theirs)
        assert losses(mine) == losses(theirs), f"{name}: losses differ"
        dist.barrier()


def a_model_on_meta_takes_each_rank_s_part_alone(bench):
    """What documents advise where no rank is to hold the whole model."""
    folder = written(bench, "llama")
    theirs = prepared(bench, folder, "bf16", dtype=torch.bfloat16)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(MODELS["llama"](), dtype=torch.bfloat16)
    # Models of transformers 5 compute their buffers themselves.
    buffers = None if FIVE else compute_frequencies
    mine = ckptd.accelerate.fsdp2_prepare_model(
        OnTheHost(bench.rank, "bf16"), model, source=folder, init_buffers=buffers, address=bench.address)
    assert_same_model(mine, theirs)
    assert losses(mine) == losses(theirs)
    held = sum(local(p).numel() * local(p).element_size() for p in mine.parameters())
    assert held < 0.6 * sum(p.numel() * p.element_size() for p in mine.parameters())


def compute_frequencies(model, names):
    rotary = model.model.rotary_emb
    rotary.inv_freq = type(rotary)(config=model.config).inv_freq


CASES = {2: [
    a_pretrained_model_is_prepared_and_trains_as_natively,
    a_model_with_peft_s_adapters_is_prepared_and_trains_as_natively,
    a_model_on_meta_takes_each_rank_s_part_alone,
]}
