"""Small models with random weights, the ways to load them, and what can be compared of one."""

import importlib.util

import torch
import transformers
from safetensors.torch import load_file

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2}
FIVE = transformers.__version__.startswith("5.")


def _qwen_moe():
    return transformers.Qwen3MoeConfig(**GROUPED, head_dim=16, num_experts=4, num_experts_per_tok=2,
                                       moe_intermediate_size=32, decoder_sparse_step=1)


CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "llama-odd": lambda: transformers.LlamaConfig(**{**GROUPED, "vocab_size": 251}),
    "mixtral": lambda: transformers.MixtralConfig(**GROUPED, num_local_experts=4),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3-moe": _qwen_moe,
    "bert": lambda: transformers.BertConfig(**SIZES),
    "t5": lambda: transformers.T5Config(vocab_size=256, d_model=64, d_ff=128, d_kv=16, num_layers=2, num_heads=4),
}
MAKERS = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}


class Case:
    """One way to load one model. options: of from_pretrained; parallel: one of parallel_options.

    pickled: from files of torch. adapted: from an adapter of PEFT, which names the model's folder.
    """

    def __init__(self, name, model, parallel=None, maker=None, shards=None, pickled=False, adapted=False, **options):
        self.name, self.model, self.parallel, self.shards, self.options = name, model, parallel, shards, options
        self.maker, self.pickled, self.adapted = maker or MAKERS.get(model, "AutoModelForCausalLM"), pickled, adapted

    def path(self, folder):
        kinds = (self.shards, "bin" if self.pickled else None, "adapter" if self.adapted else None)
        return folder / "-".join(filter(None, (self.model, *kinds)))

    def save(self, folder):
        """Writes the checkpoint, unless it is there; its folder."""
        path = self.path(folder)
        if self.adapted and not path.exists():
            save_adapter(path, Case("", self.model, pickled=self.pickled).save(folder), self.pickled)
        elif not path.exists():
            torch.manual_seed(11)
            made = getattr(transformers, MAKERS.get(self.model, "AutoModelForCausalLM"))
            named = {"max_shard_size": self.shards} if self.shards else {}
            model = made.from_config(CONFIGS[self.model]())
            model.save_pretrained(path, **named)
            if self.pickled:
                pickle_files(path, model)
        return path

    def load(self, path, world):
        """(model, loading info)."""
        options = dict(self.options)
        if "num_labels" not in options and self.parallel:
            options.update(parallel_options(self.parallel, world))
        torch.manual_seed(5)  # for what a checkpoint lacks
        maker = getattr(transformers, self.maker)
        return maker.from_pretrained(str(path), output_loading_info=True, **options)


def save_adapter(path, base, pickled):
    import peft

    torch.manual_seed(12)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    how = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft.get_peft_model(model, how).save_pretrained(path, safe_serialization=not pickled)


def pickle_files(path, model):
    """Writes what save_pretrained has written as files of torch in its place, a single one with its ties."""
    files = sorted(path.glob("*.safetensors"))
    for file in files:
        state = model.state_dict() if len(files) == 1 else load_file(file)
        torch.save(state, path / file.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin"))
        file.unlink()
    index = path / "model.safetensors.index.json"
    if index.exists():
        text = index.read_text().replace('"model-', '"pytorch_model-').replace(".safetensors", ".bin")
        (path / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()


def parallel_options(parallel, world):
    if not FIVE:
        return {"tp_plan": "auto"}
    from transformers.distributed import DistributedConfig

    half = world // 2
    sizes = {"tp": {"tp_size": world}, "fsdp": {"fsdp_size": world}, "pp": {"pp_size": world},
             "ep": {"fsdp_size": world, "ep_size": 2}, "hsdp": {"dp_replicate_size": 2, "fsdp_size": half},
             "fsdp and tp": {"fsdp_size": half, "tp_size": 2}}
    return {"distributed_config": DistributedConfig(**sizes[parallel])}


BF16, F16 = torch.bfloat16, torch.float16
PLAIN = [
    Case("llama", "llama"),
    Case("llama as bfloat16", "llama", dtype=BF16),
    Case("llama in the file's dtype", "llama", dtype="auto"),
    Case("llama in several files", "llama", shards="100KB", dtype=BF16),
    Case("llama without its head", "llama", maker="AutoModel"),
    Case("llama with a new head", "llama", maker="AutoModelForSequenceClassification", num_labels=3),
    Case("llama of another vocabulary", "llama", vocab_size=100, ignore_mismatched_sizes=True),
    Case("mixtral", "mixtral"),
    Case("mixtral in several files", "mixtral", shards="100KB", dtype=BF16),
    Case("gpt2, tied", "gpt2"),
    Case("qwen2, tied", "qwen2", dtype=BF16),
    Case("qwen3 with experts", "qwen3-moe"),
    Case("bert", "bert"),
    Case("bert's encoder", "bert", maker="AutoModel", dtype=F16),
    Case("t5, some kept in float32", "t5", dtype=F16),
    Case("llama, pickled", "llama", pickled=True, dtype="auto"),
    Case("llama in several pickled files", "llama", shards="100KB", pickled=True, dtype=BF16),
    Case("mixtral, pickled", "mixtral", pickled=True, dtype=F16),
    Case("gpt2, tied and pickled", "gpt2", pickled=True),
    Case("bert's encoder, pickled", "bert", maker="AutoModel", pickled=True),
]
TP = [
    Case("tp llama", "llama", "tp"),
    Case("tp llama as bfloat16", "llama", "tp", dtype=BF16),
    Case("tp llama in several files", "llama", "tp", shards="100KB"),
    Case("tp qwen2, tied", "qwen2", "tp"),
    Case("tp mixtral", "mixtral", "tp"),
    Case("tp qwen3 with experts", "qwen3-moe", "tp", dtype=BF16),
]
FSDP = [
    Case("fsdp llama", "llama", "fsdp"),
    Case("fsdp llama of an odd vocabulary", "llama-odd", "fsdp", dtype=BF16),
    Case("fsdp mixtral", "mixtral", "fsdp"),
    Case("fsdp qwen2, tied", "qwen2", "fsdp"),
]
STAGES = [
    Case("pp llama", "llama", "pp"),
    Case("pp qwen2, tied", "qwen2", "pp"),
    Case("ep qwen3 with experts", "qwen3-moe", "ep"),
    Case("ep mixtral", "mixtral", "ep", dtype=BF16),
]
FOUR = [
    Case("hsdp llama", "llama", "hsdp"),
    Case("hsdp mixtral in several files", "mixtral", "hsdp", shards="100KB", dtype=BF16),
    Case("fsdp and tp llama", "llama", "fsdp and tp"),
    Case("fsdp and tp qwen2, tied", "qwen2", "fsdp and tp", dtype=BF16),
    Case("fsdp of four llama of an odd vocabulary", "llama-odd", "fsdp"),
    Case("ep of four qwen3 with experts", "qwen3-moe", "ep"),
]
PICKLED = [
    Case("tp llama in several pickled files", "llama", "tp", shards="100KB", pickled=True),
    Case("tp qwen2, tied and pickled", "qwen2", "tp", pickled=True),
    Case("fsdp mixtral, pickled", "mixtral", "fsdp", pickled=True, dtype=BF16),
]
if FIVE and importlib.util.find_spec("peft"):
    PLAIN += [
        Case("llama with an adapter", "llama", adapted=True),
        # transformers takes the other file for granted when it is given a folder.
        Case("llama with a pickled adapter", "llama", adapted=True, pickled=True, use_safetensors=False),
    ]
CASES = {1: PLAIN, 2: TP + FSDP + STAGES + PICKLED, 4: FOUR} if FIVE else {1: PLAIN, 2: TP}


def _bits(tensor):
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    data = local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    placed = str(getattr(tensor, "placements", ""))
    return (tensor.dtype, tuple(tensor.shape), tensor.stride(), tuple(local.shape), local.stride(), placed,
            tensor.requires_grad, type(tensor).__name__, tensor.device.type, data)


def facts_of(model):
    """name -> all that can be told of a parameter or buffer, and which names are one tensor."""
    held = dict(model.named_parameters(remove_duplicate=False))
    held.update(model.named_buffers(remove_duplicate=False))
    facts = {name: _bits(tensor) for name, tensor in held.items()}
    first = {}
    facts["tied"] = {name: first.setdefault(id(tensor), name) for name, tensor in held.items()}
    facts["training"] = model.training
    return facts


def behaviour_of(model, alone=False, steps=5):
    """What forwards give, and what so many steps of training do, to the last bit.

    alone: of a stage without the others. Those that transformers makes send nothing back,
    so none learns from the loss of the last one: each is trained on an input of its own.
    """
    torch.manual_seed(2)
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = 0
    words = torch.arange(24).reshape(2, 12) % 97
    named = {"decoder_input_ids": words} if model.config.is_encoder_decoder else {}
    if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
        named["labels"] = words
    named.update(input_ids=words, attention_mask=torch.ones_like(words))
    found = {}
    if alone:
        with torch.no_grad():
            found["out"] = _values(model(**named))
    learning = [p for p in model.parameters() if p.requires_grad]
    if not learning:  # an adapter is loaded to be used
        return {"out": _values(model(**named))}
    # One by one: models that are sharded by tensors have parameters of two kinds.
    optimizer = torch.optim.SGD(learning, lr=0.1, momentum=0.9, foreach=False)
    for step in range(steps):
        out = _of_stage(model, words) if alone else model(**named)
        loss = out[0].float().mean()
        loss.backward()
        gradients = {n: _bits(p.grad)[-1] for n, p in model.named_parameters() if p.grad is not None}
        found[step] = {"out": _values(out), "loss": _bits(loss)[-1], "gradients": gradients}
        optimizer.step()
        optimizer.zero_grad()
    found["trained"] = {name: _bits(p)[-1] for name, p in model.named_parameters()}
    return found


def _values(out):
    values = [v for v in (getattr(out, "loss", None), out[0], getattr(out, "logits", None)) if v is not None]
    return [_bits(value)[:2] + (_bits(value)[-1],) for value in values]


def _of_stage(model, words):
    base = model.base_model
    first = isinstance(base.embed_tokens, torch.nn.Embedding)
    given = {"input_ids": words} if first else {"inputs_embeds": torch.ones(2, 12, model.config.hidden_size)}
    return (model.lm_head(base(**given).last_hidden_state).square(),)


def generated_by(model, words=6):
    asked = torch.arange(5).reshape(1, 5)
    return model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=words, do_sample=False,
                          pad_token_id=0).tolist()


def difference(native, ours, path=""):
    """The first thing in which two such values differ, in words; None for none."""
    if isinstance(native, dict) and isinstance(ours, dict):
        if native.keys() != ours.keys():
            return f"{path}: {sorted(map(str, native.keys() ^ ours.keys()))} in one only"
        found = (difference(native[key], ours[key], f"{path}/{key}") for key in native)
        return next(filter(None, found), None)
    if isinstance(native, (list, tuple)) and isinstance(ours, (list, tuple)) and len(native) == len(ours):
        found = (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(native, ours)))
        return next(filter(None, found), None)
    same = native == ours
    return None if same else f"{path}: {str(native)[:80]} natively, {str(ours)[:80]} here"
