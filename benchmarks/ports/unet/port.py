from __future__ import annotations

from mindspore import Tensor, nn, ops


class Twice(nn.Cell):
    def __init__(self, i: int, o: int, stride: int = 1) -> None:
        super().__init__()
        self.conv_a = nn.Conv2d(i, o, 3, stride, pad_mode="pad", padding=1, has_bias=True)
        self.gn_a = nn.GroupNorm(4, o, eps=1e-5)
        self.act_a = nn.LeakyReLU()
        self.conv_b = nn.Conv2d(o, o, 3, pad_mode="pad", padding=1, has_bias=True)
        self.gn_b = nn.GroupNorm(4, o)
        self.act_b = nn.LeakyReLU(alpha=0.2)

    def construct(self, x: Tensor) -> Tensor:
        x = self.act_a(self.gn_a(self.conv_a(x)))
        return self.act_b(self.gn_b(self.conv_b(x)))


class Hourglass(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.CellList([Twice(3, 8), Twice(8, 16, stride=2), Twice(16, 32)])
        self.shrink = nn.MaxPool2d(2, 2)
        self.grow_a = nn.Conv2dTranspose(32, 16, 2, stride=2, pad_mode="valid", has_bias=True)
        self.grow_b = nn.Conv2dTranspose(16, 8, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.decoder = nn.CellList([Twice(32, 16), Twice(16, 8)])
        self.resize = nn.Upsample(size=(64, 64), mode="bilinear", align_corners=True)
        self.mask = nn.Conv2d(8, 4, 1, has_bias=True)

    def construct(self, x: Tensor) -> Tensor:
        high = self.encoder[0](x)
        mid = self.encoder[1](high)
        low = self.encoder[2](self.shrink(mid))
        grown = ops.relu(self.grow_a(low))
        x = self.decoder[0](ops.cat((mid, grown), 1))
        grown = ops.relu(self.grow_b(x))
        x = self.decoder[1](ops.cat((high, grown), 1))
        return self.mask(self.resize(x))


def build() -> Hourglass:
    return Hourglass()
