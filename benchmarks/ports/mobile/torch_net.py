"""Inverted residuals with squeeze-and-excite, hard swish and hard sigmoid."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

INPUTS = ["float32[2,3,48,48]"]


class ConvBNActivation(nn.Sequential):
    def __init__(
        self, i: int, o: int, k: int, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.Hardswish
    ) -> None:
        super().__init__(
            nn.Conv2d(i, o, k, stride, padding=k // 2, groups=groups, bias=False),
            nn.BatchNorm2d(o, eps=1e-3, momentum=0.01),
            act(),
        )


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.relu = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        return F.hardsigmoid(scale) * x


class InvertedResidual(nn.Module):
    def __init__(self, i: int, expanded: int, o: int, k: int, stride: int) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and i == o
        self.block = nn.Sequential(
            ConvBNActivation(i, expanded, 1),
            ConvBNActivation(expanded, expanded, k, stride, groups=expanded),
            SqueezeExcitation(expanded, expanded // 4),
            ConvBNActivation(expanded, o, 1, act=nn.Identity),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        return out + x if self.use_res_connect else out


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvBNActivation(3, 16, 3, 2),
            InvertedResidual(16, 32, 16, 3, 1),
            InvertedResidual(16, 48, 24, 5, 2),
            InvertedResidual(24, 64, 24, 5, 1),
            ConvBNActivation(24, 64, 1),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(64, 64), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def build() -> MobileNet:
    return MobileNet()
