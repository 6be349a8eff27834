from __future__ import annotations

from mindspore import Tensor, nn, ops


class Layer(nn.Cell):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.bn_in = nn.BatchNorm2d(width)
        self.conv_in = nn.Conv2d(width, 2 * growth, 1)
        self.bn_out = nn.BatchNorm2d(2 * growth)
        self.conv_out = nn.Conv2d(2 * growth, growth, 3, pad_mode="pad", padding=1)

    def construct(self, x: Tensor) -> Tensor:
        new = self.conv_in(ops.relu(self.bn_in(x)))
        new = self.conv_out(ops.relu(self.bn_out(new)))
        return ops.cat((x, new), 1)


class Shrink(nn.Cell):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(width, out, 1)
        self.pool = nn.AvgPool2d(2, stride=2, ceil_mode=True, pad_mode="pad")

    def construct(self, x: Tensor) -> Tensor:
        return self.pool(self.conv(self.relu(self.bn(x))))


class DenseNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.root = nn.Conv2d(3, 16, 3, stride=2, pad_mode="pad", padding=1)
        self.root_bn = nn.BatchNorm2d(16)
        self.root_relu = nn.ReLU()
        self.root_pool = nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1)
        self.blocks = nn.CellList(
            [
                nn.SequentialCell([Layer(16, 8), Layer(24, 8)]),
                Shrink(32, 16),
                nn.SequentialCell([Layer(16, 8), Layer(24, 8)]),
            ]
        )
        self.top_bn = nn.BatchNorm2d(32)
        self.top_relu = nn.ReLU()
        self.fc = nn.Dense(32, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.root_relu(self.root_bn(self.root(x)))
        x = self.root_pool(x)
        for block in self.blocks:
            x = block(x)
        x = self.top_relu(self.top_bn(x))
        return self.fc(x.mean((2, 3)))


def build() -> DenseNet:
    return DenseNet()
