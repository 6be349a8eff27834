from __future__ import annotations

from mindspore import Tensor, nn, ops


class Block(nn.Cell):
    def __init__(self, width: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width, planes, 1)
        self.squeeze_norm = nn.BatchNorm2d(planes)
        self.spatial = nn.Conv2d(planes, planes, 3, stride=stride, pad_mode="pad", padding=1)
        self.spatial_norm = nn.BatchNorm2d(planes)
        self.expand = nn.Conv2d(planes, 4 * planes, 1)
        self.expand_norm = nn.BatchNorm2d(4 * planes)
        self.act = nn.ReLU()
        self.shortcut = None
        if stride != 1 or width != 4 * planes:
            self.shortcut = nn.SequentialCell(
                [nn.Conv2d(width, 4 * planes, 1, stride=stride), nn.BatchNorm2d(4 * planes)]
            )

    def construct(self, x: Tensor) -> Tensor:
        skipped = x
        if self.shortcut is not None:
            skipped = self.shortcut(x)
        out = self.act(self.squeeze_norm(self.squeeze(x)))
        out = self.act(self.spatial_norm(self.spatial(out)))
        out = self.expand_norm(self.expand(out))
        return self.act(out + skipped)


class ResNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(
            nn.Conv2d(3, 16, 7, stride=2, pad_mode="pad", padding=3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1),
        )
        self.stages = nn.CellList(
            [
                nn.SequentialCell([Block(16, 8), Block(32, 8)]),
                nn.SequentialCell([Block(32, 16, 2), Block(64, 16)]),
                nn.SequentialCell([Block(64, 16, 2)]),
            ]
        )
        self.head = nn.Dense(64, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(ops.mean(x, (2, 3)))


def build() -> ResNet:
    return ResNet()
