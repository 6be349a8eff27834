"""Convolutions with biases, max pooling, and dense layers over everything."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

INPUTS = ["float32[2,3,32,32]"]


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1_1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv1_2 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2_1 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv2_2 = nn.Conv2d(32, 32, 3, padding=1)
        self.conv2_3 = nn.Conv2d(32, 32, 3, padding=1)
        self.pool1 = nn.MaxPool2d(2, 2)
        self.pool2 = nn.MaxPool2d(3, 2, padding=1)
        self.pool3 = nn.AvgPool2d(2)
        self.classifier = nn.Sequential(
            nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(F.relu(self.conv1_2(F.relu(self.conv1_1(x)))))
        x = F.relu(self.conv2_1(x))
        x = F.relu(self.conv2_2(x))
        x = self.pool2(F.relu(self.conv2_3(x)))
        return self.classifier(self.pool3(x).flatten(1))


def build() -> VGG:
    return VGG()
