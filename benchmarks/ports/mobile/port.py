from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, initializer


class Unit(nn.Cell):
    def __init__(self, i: int, o: int, k: int, stride: int = 1, group: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(i, o, k, stride, pad_mode="pad", padding=k // 2, group=group)
        self.bn = nn.BatchNorm2d(o, eps=1e-3, momentum=0.99)
        self.act = nn.HSwish() if act else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Gate(nn.Cell):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1, has_bias=True)
        self.expand = nn.Conv2d(squeezed, channels, 1, has_bias=True)
        self.hsigmoid = nn.HSigmoid()

    def construct(self, x: Tensor) -> Tensor:
        gate = ops.mean(x, (2, 3), keep_dims=True)
        gate = ops.relu(self.reduce(gate))
        return x * self.hsigmoid(self.expand(gate))


class Residual(nn.Cell):
    def __init__(self, i: int, expanded: int, o: int, k: int, stride: int) -> None:
        super().__init__()
        self.plus = stride == 1 and i == o
        self.widen = Unit(i, expanded, 1)
        self.depthwise = Unit(expanded, expanded, k, stride, group=expanded)
        self.gate = Gate(expanded, expanded // 4)
        self.project = Unit(expanded, o, 1, act=False)

    def construct(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.widen(x))
        y = self.project(self.gate(y))
        if self.plus:
            y = x + y
        return y


class Square(nn.Cell):
    """A dense layer by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer(HeUniform(), (width, width)))
        self.bias = Parameter(initializer("zeros", (width,)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.T) + self.bias


class MobileNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = Unit(3, 16, 3, 2)
        self.residuals = nn.SequentialCell(
            Residual(16, 32, 16, 3, 1), Residual(16, 48, 24, 5, 2), Residual(24, 64, 24, 5, 1)
        )
        self.last = Unit(24, 64, 1)
        self.hidden = Square(64)
        self.hswish = nn.HSwish()
        self.dropout = nn.Dropout(p=0.2)
        self.output = nn.Dense(64, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.last(self.residuals(self.first(x)))
        x = self.hswish(self.hidden(ops.mean(x, (2, 3))))
        return self.output(self.dropout(x))


def build() -> MobileNet:
    return MobileNet()
