"""A transformer encoder of text: learned positions, the norm after the sum, a pooler on the first token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUTS = ["int64[2,16]<97"]
WIDTH, HEADS = 32, 2


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(97, WIDTH)
        self.position_embeddings = nn.Embedding(16, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-3)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.word_embeddings(tokens) + self.position_embeddings(torch.arange(tokens.shape[1]))
        return self.dropout(self.LayerNorm(x))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(dim=-1)
        self.dense = nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = self.softmax(q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5)
        return self.dense((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.intermediate = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.output = nn.Linear(4 * WIDTH, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.output_norm(x + self.output(self.act(self.intermediate(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleList(Layer() for _ in range(3))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.pooler_act = nn.ReLU()
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        for layer in self.encoder:
            x = layer(x)
        return self.classifier(self.pooler_act(self.pooler(x[:, 0])))


def build() -> Encoder:
    return Encoder()
