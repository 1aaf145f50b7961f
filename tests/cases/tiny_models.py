"""Small models of many architectures of transformers."""

import torch
import transformers

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
OLD = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

# model_type -> (auto class, arguments of its configuration)
LANGUAGE = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "phi3", "stablelm", "starcoder2", "olmo", "olmo2", "cohere", "granite",
                     "smollm3", "ernie4_5", "nemotron", "persimmon", "phi", "arcee", "seed_oss"), GROUPED),
    **dict.fromkeys(("qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "helium", "exaone4"), HEADS),
    **dict.fromkeys(("gpt2", "gptj", "codegen"), OLD),
    "gpt_neox": SIZES, "gpt_neo": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                                   "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2},
    "opt": {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "mixtral": {**GROUPED, "num_local_experts": 4}, "phimoe": {**GROUPED, "num_local_experts": 4},
    "qwen2_moe": {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 16}, "qwen3_moe": {**HEADS, **EXPERTS},
    "olmoe": {**GROUPED, **EXPERTS}, "granitemoe": {**GROUPED, "num_local_experts": 4},
    "mamba": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
}
BERTS = ("bert", "roberta", "electra")
MASKED = {**dict.fromkeys(BERTS, SIZES), "albert": {**SIZES, "embedding_size": 16},
          "distilbert": {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}}
SEQ2SEQ = {"t5": {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4},
           "bart": {"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64}}
TABLE = {name: (auto, options) for auto, kinds in (
    ("AutoModelForCausalLM", LANGUAGE), ("AutoModelForMaskedLM", MASKED), ("AutoModelForSeq2SeqLM", SEQ2SEQ))
    for name, options in kinds.items()}


def config(kind):
    return transformers.AutoConfig.for_model(kind, **TABLE[kind][1])


def auto(kind):
    return getattr(transformers, TABLE[kind][0])


def made(kind):
    torch.manual_seed(4)
    return auto(kind).from_config(config(kind))
