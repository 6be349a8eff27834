from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, initializer

WIDTH, HEADS, GROUPS, SIZE = 32, 4, 2, 8


class RootMeanSquare(nn.Cell):
    def __init__(self, width: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.scale = Parameter(ops.ones(width))
        self.eps = eps

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + self.eps) * self.scale


class Square(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer(HeUniform(), (width, width)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.T)


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Dense(WIDTH, HEADS * SIZE, has_bias=False)
        self.wk = nn.Dense(WIDTH, GROUPS * SIZE, has_bias=False)
        self.wv = nn.Dense(WIDTH, GROUPS * SIZE, has_bias=False)
        self.wo = Square(WIDTH)
        angles = np.arange(64)[:, None] / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))
        self.cos = Tensor(np.tile(np.cos(angles), 2).astype(np.float32))
        self.sin = Tensor(np.tile(np.sin(angles), 2).astype(np.float32))
        self.mask = Tensor(np.triu(np.full((64, 64), -1e4, np.float32), 1))

    def rotate(self, x: Tensor) -> Tensor:
        length = x.shape[2]
        turned = ops.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), -1)
        return x * self.cos[:length] + turned * self.sin[:length]

    def heads(self, x: Tensor, count: int) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], count, SIZE).swapaxes(1, 2)

    def construct(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        q, k = self.rotate(self.heads(self.wq(x), HEADS)), self.rotate(self.heads(self.wk(x), GROUPS))
        v = self.heads(self.wv(x), GROUPS)
        k, v = k.repeat_interleave(HEADS // GROUPS, 1), v.repeat_interleave(HEADS // GROUPS, 1)
        fit = ops.matmul(q, k.swapaxes(-1, -2)) / SIZE**0.5 + self.mask[:length, :length]
        mixed = ops.matmul(ops.softmax(fit, -1), v)
        return self.wo(mixed.swapaxes(1, 2).reshape(x.shape[0], length, -1))


class FeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Dense(WIDTH, 48, has_bias=False)
        self.w2 = nn.Dense(48, WIDTH, has_bias=False)
        self.w3 = nn.Dense(WIDTH, 48, has_bias=False)
        self.silu = nn.SiLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.w2(self.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = RootMeanSquare(WIDTH)
        self.attention = Attention()
        self.ffn_norm = RootMeanSquare(WIDTH)
        self.feed_forward = FeedForward()

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Decoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(83, WIDTH)
        self.layers = nn.CellList([Layer() for _ in range(3)])
        self.norm_out = RootMeanSquare(WIDTH)
        self.output = nn.Dense(WIDTH, 83, has_bias=False)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm_out(x))


def build() -> Decoder:
    return Decoder()
