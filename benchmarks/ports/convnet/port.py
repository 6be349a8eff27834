from __future__ import annotations

from mindspore import Tensor, nn, ops


class ConvNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, pad_mode="pad", padding=1)
        self.norm1 = nn.BatchNorm2d(16, eps=1e-3)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, pad_mode="pad", padding=1)
        self.norm2 = nn.BatchNorm2d(32, eps=1e-3)
        self.bend = nn.LeakyReLU(0.1)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", ceil_mode=True)
        self.conv3 = nn.Conv2d(32, 32, 3, pad_mode="pad", padding=1, has_bias=True)
        self.conv4 = nn.Conv2d(32, 32, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm4 = nn.BatchNorm2d(32)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(p=0.2)
        self.classifier = nn.Dense(32, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.bend(self.norm1(self.conv1(x)))
        x = self.bend(self.norm2(self.conv2(x)))
        x = self.pool(x)
        x = self.relu(self.conv3(x))
        x = self.norm4(self.conv4(x))
        x = self.relu(x)
        x = ops.mean(x, (2, 3))
        return self.classifier(self.drop(x))


def build() -> ConvNet:
    return ConvNet()
