from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops

WIDTH, HEADS = 32, 4


class MultiHead(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Dense(WIDTH, 3 * WIDTH)
        self.softmax = nn.Softmax(axis=-1)
        self.to_out = nn.Dense(WIDTH, WIDTH)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        qkv = self.to_qkv(x).reshape(n, length, 3, HEADS, width // HEADS).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        fit = ops.matmul(q, k.swapaxes(-1, -2)) * (width // HEADS) ** -0.5
        mixed = ops.matmul(self.softmax(fit), v).swapaxes(1, 2)
        return self.drop(self.to_out(mixed.reshape(n, length, width)))


class Step(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.ln_attention = nn.LayerNorm((WIDTH,), epsilon=1e-6)
        self.attention = MultiHead()
        self.ln_ffn = nn.LayerNorm((WIDTH,), epsilon=1e-6)
        self.ffn = nn.SequentialCell(nn.Dense(WIDTH, 2 * WIDTH), nn.GELU(approximate=False), nn.Dense(2 * WIDTH, WIDTH))

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_attention(x))
        return x + self.ffn(self.ln_ffn(x))


class VisionTransformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8, pad_mode="valid", has_bias=True)
        self.class_embedding = Parameter(ops.zeros((1, 1, WIDTH)))
        self.positions = Parameter(ops.zeros((1, 17, WIDTH)))
        self.trunk = nn.CellList([Step() for _ in range(3)])
        self.ln = nn.LayerNorm((WIDTH,), epsilon=1e-6)
        self.fc = nn.Dense(WIDTH, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x.reshape(x.shape[0], WIDTH, -1).swapaxes(1, 2)
        token = self.class_embedding.broadcast_to((x.shape[0], 1, WIDTH))
        x = ops.cat((token, x), 1) + self.positions
        for step in self.trunk:
            x = step(x)
        return self.fc(self.ln(x)[:, 0])


def build() -> VisionTransformer:
    return VisionTransformer()
