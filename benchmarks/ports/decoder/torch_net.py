"""A causal decoder: norms of the root mean square, rotated positions, shared keys, a gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUTS = ["int64[2,12]<83"]
WIDTH, HEADS, GROUPS, SIZE = 32, 4, 2, 8


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotated(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[-2])[:, None] / 100 ** (torch.arange(SIZE // 2) / (SIZE // 2))
    cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((angles.sin(),) * 2, -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.v_proj = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = rotated(self.q_proj(x).view(n, length, HEADS, SIZE).transpose(1, 2))
        k = rotated(self.k_proj(x).view(n, length, GROUPS, SIZE).transpose(1, 2))
        v = self.v_proj(x).view(n, length, GROUPS, SIZE).transpose(1, 2)
        k, v = k.repeat_interleave(HEADS // GROUPS, 1), v.repeat_interleave(HEADS // GROUPS, 1)
        scores = q @ k.transpose(-1, -2) / SIZE**0.5
        scores = scores + torch.full((length, length), -1e4).triu(1)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, -1))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 48, bias=False)
        self.up_proj = nn.Linear(WIDTH, 48, bias=False)
        self.down_proj = nn.Linear(48, WIDTH, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = MLP()
        self.input_layernorm = RMSNorm(WIDTH)
        self.post_attention_layernorm = RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(83, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, 83, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def build() -> Decoder:
    return Decoder()
