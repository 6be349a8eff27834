from __future__ import annotations

from mindspore import Tensor, nn, ops


class Conv(nn.Cell):
    def __init__(
        self, i: int, o: int, k: int | tuple[int, int], padding: int | tuple[int, ...] = 0, stride: int = 1
    ) -> None:
        super().__init__()
        self.filter = nn.Conv2d(i, o, k, stride, pad_mode="pad", padding=padding)
        self.scale = nn.BatchNorm2d(o, eps=0.001)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(self.scale(self.filter(x)))


class Branches(nn.Cell):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.short = Conv(i, 8, 1)
        self.long = nn.CellList([Conv(i, 8, 1), Conv(8, 8, (1, 7), (0, 0, 3, 3)), Conv(8, 8, (7, 1), (3, 3, 0, 0))])
        self.middle = nn.SequentialCell(Conv(i, 8, 1), Conv(8, 8, 3, 1))
        self.pooled = nn.SequentialCell(
            nn.AvgPool2d(3, stride=1, pad_mode="pad", padding=1, count_include_pad=True), Conv(i, 8, 1)
        )

    def construct(self, x: Tensor) -> Tensor:
        a = self.short(x)
        b = self.long[2](self.long[1](self.long[0](x)))
        c = self.middle(x)
        d = self.pooled(x)
        return ops.concat((a, b, c, d), axis=1)


class Reduce(nn.Cell):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.middle = Conv(i, 16, 3, stride=2)
        self.pooled = nn.MaxPool2d(3, stride=2)

    def construct(self, x: Tensor) -> Tensor:
        return ops.concat((self.middle(x), self.pooled(x)), axis=1)


class Inception(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.entry = Conv(3, 16, 3, 0, 2)
        self.halve = nn.MaxPool2d(3, stride=2, pad_mode="pad", ceil_mode=True)
        self.body = nn.SequentialCell([Branches(16), Reduce(32), Branches(48)])
        self.drop = nn.Dropout(p=0.5)
        self.logits = nn.Dense(32, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.body(self.halve(self.entry(x)))
        x = self.drop(ops.mean(x, (2, 3)))
        return self.logits(x)


def build() -> Inception:
    return Inception()
