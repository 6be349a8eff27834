from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, initializer


class Projection(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer(HeUniform(), (width, width)))
        self.bias = Parameter(initializer("zeros", (width,)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.swapaxes(0, 1)) + self.bias


class Focus(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.turn = Projection(width)
        self.sigmoid = nn.Sigmoid()
        self.weigh = nn.Dense(width, 1, has_bias=False)
        self.share = nn.Softmax(axis=1)

    def construct(self, x: Tensor) -> Tensor:
        shares = self.share(self.weigh(self.sigmoid(self.turn(x))))
        return (shares * x).sum(1)


class TextNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.lookup = nn.Embedding(89, 24)
        self.ln = nn.LayerNorm((24,), epsilon=1e-3)
        self.rnn1 = nn.LSTM(24, 16, batch_first=True, bidirectional=True)
        self.rnn2 = nn.GRU(32, 32, batch_first=True)
        self.focus = Focus(32)
        self.dense1 = nn.Dense(32, 32)
        self.leaky = nn.LeakyReLU(0.01)
        self.drop = nn.Dropout(p=0.3)
        self.dense2 = nn.Dense(32, 32)
        self.gelu = nn.GELU(approximate=False)
        self.dense3 = nn.Dense(64, 6)

    def construct(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[0]
        x = self.ln(self.lookup(tokens))
        zeros = ops.zeros((2, n, 16), ms.float32)
        x, _ = self.rnn1(x, (zeros, zeros))
        x, last = self.rnn2(x, ops.zeros((1, n, 32), ms.float32))
        x = self.dense1(self.focus(x))
        x = self.drop(self.leaky(x))
        x = self.gelu(self.dense2(x))
        return self.dense3(ops.cat((x, last[0]), -1))


def build() -> TextNet:
    return TextNet()
