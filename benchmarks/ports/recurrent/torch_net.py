"""A text net: embedding, recurrence in both directions, attention over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUTS = ["int64[2,12]<89"]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.act = nn.Sigmoid()
        self.score = nn.Linear(width, 1, bias=False)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.softmax(self.score(self.act(self.proj(x))))
        return (weights * x).sum(1)


class TextNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(89, 24)
        self.norm = nn.LayerNorm(24, eps=1e-3)
        self.lstm = nn.LSTM(24, 16, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.attention = Attention(32)
        self.bottleneck = nn.Linear(32, 32)
        self.act = nn.LeakyReLU()
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(32, 32)
        self.gelu = nn.GELU()
        self.out = nn.Linear(64, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens))
        x, _ = self.lstm(x)
        x, last = self.gru(x)
        x = self.dropout(self.act(self.bottleneck(self.attention(x))))
        x = self.gelu(self.hidden(x))
        return self.out(torch.cat((x, last[0]), -1))


def build() -> TextNet:
    return TextNet()
