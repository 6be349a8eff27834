"""An hourglass with skips: group norms, transposed convolutions, and a bilinear step at the end."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INPUTS = ["float32[2,3,32,32]"]


class DoubleConv(nn.Sequential):
    def __init__(self, i: int, o: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(i, o, 3, stride=stride, padding=1),
            nn.GroupNorm(4, o),
            nn.LeakyReLU(0.2),
            nn.Conv2d(o, o, 3, padding=1),
            nn.GroupNorm(4, o),
            nn.LeakyReLU(0.2),
        )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inc = DoubleConv(3, 8)
        self.down1 = DoubleConv(8, 16, stride=2)
        self.maxpool = nn.MaxPool2d(2)
        self.down2 = DoubleConv(16, 32)
        self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.conv1 = DoubleConv(32, 16)
        self.up2 = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.conv2 = DoubleConv(16, 8)
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.outc = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(self.maxpool(x2))
        x = self.conv1(torch.cat([x2, F.relu(self.up1(x3))], 1))
        x = self.conv2(torch.cat([x1, F.relu(self.up2(x))], 1))
        return self.outc(self.upsample(x))


def build() -> UNet:
    return UNet()
