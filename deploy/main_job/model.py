"""A Llama-shaped model, small enough to read, in plain PyTorch."""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a model. Parameters are bf16: two bytes each."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int

    @staticmethod
    def of_bytes(total: int) -> "Shape":
        """A shape whose checkpoint has about `total` bytes."""
        hidden, heads = (2048, 16) if total >= 1_000_000_000 else (1024, 8) if total >= 64_000_000 else (128, 4)
        # An odd vocabulary and intermediate size: shards are uneven, as in real models.
        vocabulary = 32_001 if hidden >= 1024 else 1_001
        intermediate = hidden * 11 // 4 + 3
        layer = 2 * (4 * hidden * hidden + 3 * hidden * intermediate + 2 * hidden)
        layers = max(1, round((total - 2 * vocabulary * hidden) / layer))
        return Shape(hidden, layers, heads, intermediate, vocabulary)

    def tensors(self):
        """(name, shape) of every tensor that a checkpoint holds."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for i in range(self.layers):
            stem = f"model.layers.{i}"
            for projection in "qkvo":
                yield f"{stem}.self_attn.{projection}_proj.weight", (self.hidden, self.hidden)
            yield f"{stem}.mlp.gate_proj.weight", (self.intermediate, self.hidden)
            yield f"{stem}.mlp.up_proj.weight", (self.intermediate, self.hidden)
            yield f"{stem}.mlp.down_proj.weight", (self.hidden, self.intermediate)
            yield f"{stem}.input_layernorm.weight", (self.hidden,)
            yield f"{stem}.post_attention_layernorm.weight", (self.hidden,)
        yield "model.norm.weight", (self.hidden,)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        for name in "qkvo":
            setattr(self, f"{name}_proj", nn.Linear(shape.hidden, shape.hidden, bias=False))

    def forward(self, x, rotary):
        batch, length, hidden = x.shape
        q, k, v = (p(x).view(batch, length, self.heads, -1).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Mlp(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden)

    def forward(self, x, rotary):
        x = x + self.self_attn(self.input_layernorm(x), rotary)
        return x + self.mlp(self.post_attention_layernorm(x))


def inverse_frequencies(head_size: int) -> torch.Tensor:
    return 1.0 / (10_000 ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))


class Rotary(nn.Module):
    """Its frequencies are a buffer that no checkpoint holds."""

    def __init__(self, head_size: int):
        super().__init__()
        self.head_size = head_size
        self.register_buffer("inv_freq", inverse_frequencies(head_size), persistent=False)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32, device=x.device), self.inv_freq)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Decoder(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.rotary_emb = Rotary(shape.hidden // shape.heads)

    def forward(self, tokens):
        x = self.embed_tokens(tokens) * math.sqrt(self.norm.weight.shape[0])
        for layer in self.layers:
            x = layer(x, self.rotary_emb)
        return self.norm(x)


class CausalLm(nn.Module):
    """Decoder and a head that shares the embedding's weight."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


def remake_buffers(model: CausalLm, names) -> None:
    """What load_into calls for buffers that the checkpoint does not hold."""
    rotary = model.model.rotary_emb
    assert list(names) == ["model.rotary_emb.inv_freq"], names
    rotary.inv_freq = inverse_frequencies(rotary.head_size).to(model.model.norm.weight.device)
