"""A densely connected net: norm, activation, convolution; every layer sees all earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INPUTS = ["float32[2,3,44,44]"]


class DenseLayer(nn.Module):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(width, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu2(self.norm2(self.conv1(self.relu1(self.norm1(x))))))
        return torch.cat([x, out], 1)


class Transition(nn.Sequential):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(width, out, 1, bias=False)
        self.pool = nn.AvgPool2d(2, stride=2, ceil_mode=True)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False))
        self.features.add_module("norm0", nn.BatchNorm2d(16))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
        self.features.add_module("denseblock1", nn.Sequential(DenseLayer(16, 8), DenseLayer(24, 8)))
        self.features.add_module("transition1", Transition(32, 16))
        self.features.add_module("denseblock2", nn.Sequential(DenseLayer(16, 8), DenseLayer(24, 8)))
        self.features.add_module("norm5", nn.BatchNorm2d(32))
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x))
        return self.classifier(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


def build() -> DenseNet:
    return DenseNet()
