"""The facts of :mod:`automap.layer_table`: every layer of ``torch.nn`` with parameters, and its counterparts."""

from __future__ import annotations

from dataclasses import replace

from automap.layer_rows_sequences import ATTENTION_ROWS, RECURRENT_ROWS
from automap.layer_table import (
    BIAS,
    Counterpart,
    Default,
    Other,
    Parameter,
    Proven,
    Reparametrization,
    Row,
    lacking,
    same,
)

# -- what many layers share --------------------------------------------------------------------------------------------


_FEATURES = (("in_features", "in_channels"), ("out_features", "out_channels"))
_NO_BIAS = Default("bias=True", "has_bias=False", "has_bias=True", "the bias has no home")

# -- dense layers ------------------------------------------------------------------------------------------------------

_LINEAR = (Parameter("weight", "out, in"), Parameter("bias", "out", "bias"))
_BILINEAR = (Parameter("weight", "out, in1, in2"), Parameter("bias", "out", "bias"))

_DENSE = (
    Row(
        "Linear",
        _LINEAR,
        (
            Counterpart("nn", "Dense", parameters=same(_LINEAR), called=(*_FEATURES, BIAS), proven="running"),
            Counterpart("mint.nn", "Linear", parameters=same(_LINEAR), proven="running"),
        ),
        also=("LazyLinear",),
    ),
    Row(
        "Bilinear",
        _BILINEAR,
        (
            Counterpart(
                "nn",
                "BiDense",
                parameters=same(_BILINEAR),
                called=(
                    ("in1_features", "in1_channels"),
                    ("in2_features", "in2_channels"),
                    ("out_features", "out_channels"),
                    BIAS,
                ),
                proven="running",
            ),
            lacking("mint.nn", "nn.BiDense"),
        ),
    ),
)

# -- convolutions ------------------------------------------------------------------------------------------------------

_KERNEL = {1: "k", 2: "kh, kw", 3: "kd, kh, kw"}
_PADS = {
    1: "one number for both ends",
    2: "one number, or four: top, bottom, left, right",
    3: "one number, or six: head, tail, top, bottom, left, right",
}


def _convolution(n: int) -> Row:
    parameters = (Parameter("weight", f"out, in/groups, {_KERNEL[n]}"), Parameter("bias", "out", "bias"))
    mint = Counterpart("mint.nn", f"Conv{n}d", parameters=same(parameters), proven="stand-in")
    return Row(f"Conv{n}d", parameters, (_nn_convolution(f"Conv{n}d", n, parameters), mint), also=(f"LazyConv{n}d",))


def _transposed(n: int) -> Row:
    parameters = (Parameter("weight", f"in, out/groups, {_KERNEL[n]}"), Parameter("bias", "out", "bias"))
    of_nn = _nn_convolution(f"Conv{n}dTranspose", n, parameters)
    if n == 1:
        of_nn = replace(of_nn, lacks=("output_padding", *of_nn.lacks))
    else:
        zeros = "output_padding adds rows of zeros at the end, where PyTorch computes them"
        of_nn = replace(of_nn, remarks=(*of_nn.remarks, zeros))
    if n == 2:
        mint = Counterpart("mint.nn", "ConvTranspose2d", parameters=same(parameters), proven="stand-in")
    else:
        mint = lacking("mint.nn", f"nn.Conv{n}dTranspose")
    return Row(f"ConvTranspose{n}d", parameters, (of_nn, mint), also=(f"LazyConvTranspose{n}d",))


def _nn_convolution(name: str, n: int, parameters: tuple[Parameter, ...]) -> Counterpart:
    weight = Other("weight", "weight")
    remarks = [f"padding in nn is {_PADS[n]}; pad_mode='same' pads more at the end where the sum is odd"]
    if n == 1:
        weight = replace(weight, shape=parameters[0].shape.replace(" k", " 1, k"))
        remarks.insert(0, "the kernel has a dimension more, of size 1: it is a two-dimensional one inside")
    padding = Default("padding=0", "pad_mode='same'", "pad_mode='valid'", "another output size, or other borders")
    remarks.append("for another padding of PyTorch's, write pad_mode='pad', padding=…")
    return Counterpart(
        "nn",
        name,
        parameters=(weight, Other("bias", "bias")),
        called=(("groups", "group"), BIAS),
        defaults=(padding, _NO_BIAS),
        lacks=("padding_mode",),
        proven="running",
        remarks=tuple(remarks),
    )


# -- norms -------------------------------------------------------------------------------------------------------------

_TRACKED = "track_running_stats"
_STATISTICS = (
    Parameter("running_mean", "n", _TRACKED),
    Parameter("running_var", "n", _TRACKED),
    Parameter("num_batches_tracked", "", _TRACKED),
)
_NORM = (Parameter("weight", "n", "affine"), Parameter("bias", "n", "affine and bias"), *_STATISTICS)

_GAMMA, _BETA = Other("gamma", "weight", always=True), Other("beta", "bias", always=True)
_NN_NORM = (
    Other("moving_mean", "running_mean", alone="mean", always=True),
    Other("moving_variance", "running_var", alone="variance", always=True),
    _GAMMA,
    _BETA,
)
_MOMENTUM = Default(
    "momentum=0.1", "momentum=0.9", "momentum=1 - PyTorch's", "while training, the running statistics drift off"
)
_BATCH = Default(
    "track_running_stats=True",
    "use_batch_statistics=None",
    "use_batch_statistics=True for track_running_stats=False",
)
_NO_COUNTER = "without the counter nothing is lost, unless PyTorch's momentum is None"
_FIXED = "gamma and beta are there also with affine=False: ones and zeros that are not trained"


def _batch_norm(name: str, lazy: bool = True, mint: Proven = "stand-in") -> Row:
    others: tuple[Other, ...] = _NN_NORM
    remarks = [_NO_COUNTER, _FIXED]
    if name == "BatchNorm3d":
        others = tuple(replace(o, name=f"bn2d.{o.name}", alone="") for o in others)
        remarks.insert(0, "it keeps a BatchNorm2d, so the names have a level more")
    lacks = ("process_group",) if name == "SyncBatchNorm" else ()
    of_nn = Counterpart(
        "nn",
        name,
        parameters=others,
        defaults=(_MOMENTUM, _BATCH),
        lacks=(*lacks, "bias"),
        proven="running",
        remarks=tuple(remarks),
    )
    of_mint = Counterpart("mint.nn", name, parameters=same(_NORM), lacks=("bias",), proven=mint)
    return Row(name, _NORM, (of_nn, of_mint), also=(f"Lazy{name}",) if lazy else ())


def _instance_norm(n: int) -> Row:
    name = f"InstanceNorm{n}d"
    of_nn = Counterpart(
        "nn",
        name,
        parameters=_NN_NORM,
        defaults=(Default("affine=False", "affine=True", "affine=False", "it trains parameters that PyTorch has not"),),
        lacks=("track_running_stats", "bias"),
        proven="stand-in",
        remarks=(
            "it always normalises by the statistics of the instance: with PyTorch's track_running_stats=True, "
            "the two differ in inference",
            "all four parameters are there always; gamma and beta are ones and zeros to begin with",
        ),
    )
    mint = lacking("mint.nn", f"nn.{name}, or mint.nn.GroupNorm(n, n): one group for each channel")
    return Row(name, _NORM, (of_nn, mint), also=(f"Lazy{name}",))


_LAYER_NORM = (
    Parameter("weight", "*normalized_shape", "elementwise_affine"),
    Parameter("bias", "*normalized_shape", "elementwise_affine and bias"),
)
_GROUP_NORM = _NORM[:2]
_RMS_NORM = (_LAYER_NORM[0],)

_NORMS = (
    *(_batch_norm(f"BatchNorm{n}d") for n in (1, 2, 3)),
    _batch_norm("SyncBatchNorm", lazy=False, mint="running"),
    Row(
        "LayerNorm",
        _LAYER_NORM,
        (
            Counterpart(
                "nn",
                "LayerNorm",
                parameters=(_GAMMA, _BETA),
                called=(("eps", "epsilon"),),
                defaults=(Default("eps=1e-05", "epsilon=1e-07", "epsilon=1e-5", "wrong where inputs are small"),),
                lacks=("elementwise_affine", "bias"),
                proven="running",
                remarks=(
                    "normalized_shape is a tuple; where it has several dimensions, write begin_norm_axis=n and "
                    "begin_params_axis=n, n being the number of those before them: else only the last is normalised",
                    "gamma and beta are there always; ones and zeros stand for what PyTorch has not",
                ),
            ),
            Counterpart("mint.nn", "LayerNorm", parameters=same(_LAYER_NORM), proven="stand-in"),
        ),
    ),
    Row(
        "GroupNorm",
        _GROUP_NORM,
        (
            Counterpart(
                "nn", "GroupNorm", parameters=(_GAMMA, _BETA), lacks=("bias",), proven="running", remarks=(_FIXED,)
            ),
            Counterpart(
                "mint.nn",
                "GroupNorm",
                parameters=tuple(replace(o, always=True) for o in same(_GROUP_NORM)),
                lacks=("bias",),
                proven="running",
                remarks=("weight and bias are there also with affine=False: ones and zeros that are not trained",),
            ),
        ),
    ),
    *(_instance_norm(n) for n in (1, 2, 3)),
    Row(
        "RMSNorm",
        _RMS_NORM,
        (
            lacking(
                "nn",
                "a cell of your own with ops.rms_norm(x, weight, epsilon)[0]; its epsilon is 1e-6, "
                "PyTorch's (eps=None) is 1.19e-7",
            ),
            lacking("mint.nn", "the same"),
        ),
    ),
)

# -- tables ------------------------------------------------------------------------------------------------------------

_EMBEDDING = (Parameter("weight", "num, dim"),)
_TABLE = (Other("embedding_table", "weight"),)
_SIZES = (("num_embeddings", "vocab_size"), ("embedding_dim", "embedding_size"))
_NO_NORM = ("max_norm", "norm_type", "scale_grad_by_freq", "sparse")

_TABLES = (
    Row(
        "Embedding",
        _EMBEDDING,
        (
            Counterpart("nn", "Embedding", parameters=_TABLE, called=_SIZES, lacks=_NO_NORM, proven="running"),
            Counterpart(
                "nn",
                "EmbeddingLookup",
                parameters=_TABLE,
                called=_SIZES,
                defaults=(Default("sparse=False", "sparse=True", "sparse=False", "training alone sees it"),),
                lacks=("padding_idx", "norm_type", "scale_grad_by_freq"),
                proven="running",
            ),
            Counterpart("mint.nn", "Embedding", parameters=same(_EMBEDDING), proven="stand-in"),
        ),
    ),
    Row(
        "EmbeddingBag",
        _EMBEDDING,
        (
            lacking(
                "nn", "nn.Embedding, and the mean, sum or maximum (mode) over each bag; weight becomes embedding_table"
            ),
            lacking("mint.nn", "mint.nn.Embedding, and the same"),
        ),
    ),
)

# -- activations -------------------------------------------------------------------------------------------------------

_PRELU = (Parameter("weight", "n"),)

_ACTIVATIONS = (
    Row(
        "PReLU",
        _PRELU,
        (
            Counterpart(
                "nn",
                "PReLU",
                parameters=(Other("w", "weight", alone="a"),),
                called=(("num_parameters", "channel"), ("init", "w")),
                proven="running",
            ),
            Counterpart("mint.nn", "PReLU", parameters=same(_PRELU), proven="running"),
        ),
    ),
)

# -- losses ------------------------------------------------------------------------------------------------------------

_WEIGHTED = (Parameter("weight", "*weight", "weight is not None"),)
_POSITIVE = (*_WEIGHTED, Parameter("pos_weight", "*pos_weight", "pos_weight is not None"))
_GIVEN = "what PyTorch stores in the checkpoint is an argument here, and no parameter: give it when you build the loss"


def _loss(
    name: str,
    parameters: tuple[Parameter, ...] = _WEIGHTED,
    mint: Proven | None = "running",
    also: tuple[str, ...] = (),
    remarks: tuple[str, ...] = (),
) -> Row:
    of_nn = Counterpart("nn", name, proven="running", remarks=(_GIVEN, *remarks))
    of_mint = Counterpart("mint.nn", name, proven=mint, remarks=(_GIVEN,)) if mint else lacking("mint.nn", f"nn.{name}")
    return Row(name, parameters, (of_nn, of_mint), also)


_IN_LOSS = (Parameter("linear.weight", "classes, in"), Parameter("linear.bias", "classes", "bias"))
_ADAPTIVE = (
    Parameter("head.weight", "shortlist + clusters, in"),
    Parameter("head.bias", "shortlist + clusters", "head_bias"),
    Parameter("tail.{l}.0.weight", "in_l, in"),
    Parameter("tail.{l}.1.weight", "size_l, in_l"),
)

_LOSSES = (
    _loss("CrossEntropyLoss", mint="stand-in", remarks=("labels must be int32, not int64",)),
    _loss("NLLLoss", also=("NLLLoss2d",)),
    _loss("BCELoss", remarks=("weight must have the shape of the input: a smaller one is read beyond its end (CPU)",)),
    _loss("BCEWithLogitsLoss", _POSITIVE),
    _loss("MultiMarginLoss", mint=None),
    _loss("MultiLabelSoftMarginLoss", mint=None),
    Row(
        "AdaptiveLogSoftmaxWithLoss",
        _ADAPTIVE,
        (
            lacking("nn", "a cell of your own, with nn.Dense(has_bias=False) for each part"),
            lacking("mint.nn", "the same with mint.nn.Linear(bias=False)"),
        ),
        remarks=(
            "shortlist: cutoffs[0]; clusters: the number of cutoffs; size_l: the classes of cluster l; "
            "in_l: in // div_value ** (l + 1)",
        ),
    ),
    Row(
        "LinearCrossEntropyLoss",
        _IN_LOSS,
        (
            lacking("nn", "nn.Dense and nn.CrossEntropyLoss, one after the other"),
            lacking("mint.nn", "mint.nn.Linear and mint.nn.CrossEntropyLoss, one after the other"),
        ),
    ),
)

ROWS: tuple[Row, ...] = (
    *_DENSE,
    *(_convolution(n) for n in (1, 2, 3)),
    *(_transposed(n) for n in (1, 2, 3)),
    *_NORMS,
    *_TABLES,
    *_ACTIVATIONS,
    *RECURRENT_ROWS,
    *ATTENTION_ROWS,
    *_LOSSES,
)

# -- weights computed from others --------------------------------------------------------------------------------------

_G_AND_V = "g * v / numpy.linalg.norm of v over all axes but the first (dim=0, the default), for g and v in this order"
_SIGMA = "original / (u @ original.reshape(len(u), -1) @ v), with the axis dim first (1 for ConvTranspose, else 0)"

REPARAMETRIZATIONS: tuple[Reparametrization, ...] = (
    Reparametrization(
        "weight_norm",
        (Parameter("weight_g", "out, 1, …"), Parameter("weight_v", "as weight")),
        _G_AND_V,
        ("they come after the other parameters of the layer; with dim=None, weight_g has no dimension",),
    ),
    Reparametrization(
        "parametrizations.weight_norm",
        (
            Parameter("parametrizations.weight.original0", "out, 1, …"),
            Parameter("parametrizations.weight.original1", "as weight"),
        ),
        _G_AND_V,
        ("they come after the other parameters of the layer; with dim=None, original0 has no dimension",),
    ),
    Reparametrization(
        "spectral_norm",
        (
            Parameter("weight_orig", "as weight"),
            Parameter("weight_u", "out"),
            Parameter("weight_v", "the product of the other dimensions"),
        ),
        _SIGMA,
        ("u and v are buffers, stored after all parameters",),
    ),
    Reparametrization(
        "parametrizations.spectral_norm",
        (
            Parameter("parametrizations.weight.original", "as weight"),
            Parameter("parametrizations.weight.0._u", "out"),
            Parameter("parametrizations.weight.0._v", "the product of the other dimensions"),
        ),
        _SIGMA,
        ("u and v are buffers, stored after all parameters",),
    ),
)
