"""The reference model: a small decoder in the manner of Llama, and its loss.

RMSNorm before each branch, rotary positions, grouped-query attention, SwiGLU, dropout on the
residual branches. It has no buffers: everything that training changes is a parameter.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from replica.rng import derive_seed
from train.config import ModelSection

_INIT_STD = 0.02
NORM_EPS = 1e-5


class Decoder(nn.Module):
    """Token ids in, logits of the next token out.

    ``blocks`` is a ModuleList, so that each block can be sharded on its own.
    """

    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.rope_theta = config.rope_theta
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=NORM_EPS)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 tokens of shape (B, T) to logits of shape (B, T, vocab)."""
        rope = rope_table(tokens.shape[1], self.head_dim, self.rope_theta, tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rope)
        logits: Tensor = self.output(self.norm(x))
        return logits


class Block(nn.Module):
    """One layer: attention, then the feed-forward branch, each added to the residual stream."""

    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=NORM_EPS)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=NORM_EPS)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """Map (B, T, dim) to (B, T, dim)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rope))
        branch: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x + branch


class Attention(nn.Module):
    """Causal self-attention in which several query heads share a key and value head."""

    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.grouped = config.kv_heads != config.heads
        self.query = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """Map (B, T, dim) to (B, T, dim)."""
        query = rotated(self._heads(self.query(x)), rope)
        key = rotated(self._heads(self.key(x)), rope)
        value = self._heads(self.value(x))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.grouped
        )
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, heads * head_dim) to (B, heads, T, head_dim)."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU: a gated hidden layer."""

    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn, bias=False)
        self.up = nn.Linear(config.dim, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, dim) to (B, T, dim)."""
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


def rope_table(length: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Return cosines and sines of the rotary positions, float32 of shape (2, length, head_dim / 2)."""
    # Made anew in each forward: it is small, and so no buffer has to be kept, sharded or healed.
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, theta**-exponents)
    return torch.stack((angles.cos(), angles.sin()))


def rotated(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of x, of shape (B, heads, T, head_dim), by position."""
    cos, sin = rope.to(x.dtype).unbind()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per token, computed in float32.

    ``logits`` is (B, T, vocab), ``targets`` is int64 (B, T).
    """
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build_model(config: ModelSection, seed: int) -> Decoder:
    """Build the decoder on the CPU with weights that depend on the configuration and seed alone.

    Neither reads nor changes any global random state.
    """
    with torch.device("meta"):  # so that the layers' own initialisation draws no numbers
        model = Decoder(config)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(derive_seed("weights", seed))
    # The branches' last layers start smaller, so that the residual stream does not grow with depth.
    branch_std = _INIT_STD / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                ends_branch = name.endswith(("attention.output.weight", "down.weight"))
                std = branch_std if ends_branch else _INIT_STD
                parameter.normal_(0.0, std, generator=generator)
    return model
