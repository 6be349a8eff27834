"""A plain convolutional net: batch norm, leaky ReLU, max pooling that rounds up."""

from __future__ import annotations

from torch import Tensor, nn

INPUTS = ["float32[2,3,32,32]"]


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16, eps=1e-3),
            nn.LeakyReLU(0.1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32, eps=1e-3),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x)).flatten(1)
        return self.fc(self.dropout(x))


def build() -> ConvNet:
    return ConvNet()
