"""Parallel branches: factorised convolutions, and average pooling that counts the padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INPUTS = ["float32[2,3,38,38]"]


class BasicConv2d(nn.Module):
    def __init__(self, i: int, o: int, **kwargs: object) -> None:
        super().__init__()
        self.conv = nn.Conv2d(i, o, bias=False, **kwargs)
        self.bn = nn.BatchNorm2d(o, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Mixed(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(i, 8, kernel_size=1)
        self.branch7x7_1 = BasicConv2d(i, 8, kernel_size=1)
        self.branch7x7_2 = BasicConv2d(8, 8, kernel_size=(1, 7), padding=(0, 3))
        self.branch7x7_3 = BasicConv2d(8, 8, kernel_size=(7, 1), padding=(3, 0))
        self.branch3x3_1 = BasicConv2d(i, 8, kernel_size=1)
        self.branch3x3_2 = BasicConv2d(8, 8, kernel_size=3, padding=1)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1)
        self.branch_pool = BasicConv2d(i, 8, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        branch7x7 = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        branch3x3 = self.branch3x3_2(self.branch3x3_1(x))
        return torch.cat([self.branch1x1(x), branch7x7, branch3x3, self.branch_pool(self.pool(x))], 1)


class Reduction(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.branch3x3 = BasicConv2d(i, 16, kernel_size=3, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch3x3(x), self.pool(x)], 1)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a = BasicConv2d(3, 16, kernel_size=3, stride=2)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.Mixed_5b = Mixed(16)
        self.Mixed_6a = Reduction(32)
        self.Mixed_6b = Mixed(48)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool1(self.Conv2d_1a(x))
        x = self.Mixed_6b(self.Mixed_6a(self.Mixed_5b(x)))
        return self.fc(self.dropout(self.avgpool(x)).flatten(1))


def build() -> Inception:
    return Inception()
