from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, initializer


def conv(i: int, o: int) -> nn.Conv2d:
    return nn.Conv2d(i, o, 3, pad_mode="pad", padding=1, has_bias=True)


class FullyConnected(nn.Cell):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer(HeUniform(), (o, i)))
        self.bias = Parameter(initializer("zeros", (o,)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.swapaxes(0, 1)) + self.bias


class VGG(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.convs_a = nn.SequentialCell(conv(3, 16), nn.ReLU(), conv(16, 16), nn.ReLU(), nn.MaxPool2d(2, 2))
        self.convs_b = nn.SequentialCell(conv(16, 32), nn.ReLU(), conv(32, 32), nn.ReLU(), conv(32, 32), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.mean = nn.AvgPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.dense1 = nn.Dense(32 * 4 * 4, 64, activation="relu")
        self.drop = nn.Dropout(p=0.5)
        self.dense2 = FullyConnected(64, 64)
        self.dense3 = nn.Dense(64, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.convs_b(self.convs_a(x)))
        x = self.flatten(self.mean(x))
        x = self.drop(self.dense1(x))
        x = ops.relu(self.dense2(x))
        return self.dense3(x)


def build() -> VGG:
    return VGG()
