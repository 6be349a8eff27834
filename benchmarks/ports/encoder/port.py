from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, initializer

WIDTH, HEADS = 32, 2


class Mixing(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Dense(WIDTH, WIDTH)
        self.wk = nn.Dense(WIDTH, WIDTH)
        self.wv = nn.Dense(WIDTH, WIDTH)
        self.normalise = nn.Softmax(axis=-1)
        self.wo = nn.Dense(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], HEADS, -1).swapaxes(1, 2)

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        fit = ops.matmul(q, k.swapaxes(-1, -2)) / (WIDTH // HEADS) ** 0.5
        mixed = ops.matmul(self.normalise(fit), v)
        return self.wo(mixed.swapaxes(1, 2).reshape(x.shape))


class Step(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = Mixing()
        self.norm_a = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.up = nn.Dense(WIDTH, 4 * WIDTH)
        self.gelu = nn.GELU(approximate=False)
        self.down = nn.Dense(4 * WIDTH, WIDTH)
        self.norm_b = nn.LayerNorm((WIDTH,), epsilon=1e-5)

    def construct(self, x: Tensor) -> Tensor:
        x = self.norm_a(x + self.mixing(x))
        hidden = self.gelu(self.up(x))
        return self.norm_b(x + self.down(hidden))


class Pool(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(initializer(HeUniform(), (WIDTH, WIDTH)))
        self.bias = Parameter(initializer("zeros", (WIDTH,)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.T) + self.bias


class Encoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(97, WIDTH)
        self.places = nn.Embedding(16, WIDTH)
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-3)
        self.drop = nn.Dropout(p=0.1)
        self.steps = nn.CellList([Step() for _ in range(3)])
        self.pool = Pool()
        self.relu = nn.ReLU()
        self.verdict = nn.Dense(WIDTH, 5)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(ops.arange(tokens.shape[1]))
        x = self.drop(self.norm(x))
        for step in self.steps:
            x = step(x)
        return self.verdict(self.relu(self.pool(x[:, 0])))


def build() -> Encoder:
    return Encoder()
