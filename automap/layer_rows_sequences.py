"""The rows of the layer table for recurrent layers, attention and transformers; see :mod:`automap.layer_rows`."""

from __future__ import annotations

from dataclasses import replace

from automap.layer_table import BIAS, Counterpart, Other, Parameter, Row, lacking, same

# -- recurrent layers --------------------------------------------------------------------------------------------------


def _recurrent(name: str, gates: str) -> Row:
    h = f"{gates}hidden"
    out = "out" if name == "LSTM" else "hidden"
    parameters: tuple[Parameter, ...] = (
        Parameter("weight_ih_l{l}{d}", f"{h}, in_l"),
        Parameter("weight_hh_l{l}{d}", f"{h}, {out}"),
        Parameter("bias_ih_l{l}{d}", h, "bias"),
        Parameter("bias_hh_l{l}{d}", h, "bias"),
    )
    remarks = [f"in_l: the input size for l = 0, then the number of directions * {out}"]
    lacks: tuple[str, ...] = ()
    if name == "LSTM":
        parameters = (*parameters, Parameter("weight_hr_l{l}{d}", "proj, hidden", "proj_size"))
        remarks.append("out: proj_size, or the hidden size where that is 0")
        lacks = ("proj_size",)
    of_nn = Counterpart(
        "nn",
        name,
        parameters=same(parameters[:4]),
        by_kind=True,
        called=(BIAS,),
        lacks=lacks,
        proven="running",
        remarks=(
            "the gates are in the same order, and there are two biases as in PyTorch",
            "the order of definition differs: all weight_ih come first, then all weight_hh, bias_ih, bias_hh",
            *(["for proj_size, write a cell of your own: there is no weight_hr"] if lacks else []),
        ),
    )
    return Row(name, parameters, (of_nn, lacking("mint.nn", f"nn.{name}")), remarks=tuple(remarks))


def _recurrent_cell(name: str, gates: str) -> Row:
    h = f"{gates}hidden"
    parameters = (
        Parameter("weight_ih", f"{h}, in"),
        Parameter("weight_hh", f"{h}, hidden"),
        Parameter("bias_ih", h, "bias"),
        Parameter("bias_hh", h, "bias"),
    )
    of_nn = Counterpart("nn", name, parameters=same(parameters), called=(BIAS,), proven="running")
    return Row(name, parameters, (of_nn, lacking("mint.nn", f"nn.{name}")))


RECURRENT_ROWS = tuple(
    make(f"{kind}{end}", gates)
    for make, end in ((_recurrent, ""), (_recurrent_cell, "Cell"))
    for kind, gates in (("RNN", ""), ("LSTM", "4*"), ("GRU", "3*"))
)

# -- attention and transformers ----------------------------------------------------------------------------------------

_ONE = "kdim in (None, embed_dim) and vdim in (None, embed_dim)"
_ATTENTION = (
    Parameter("in_proj_weight", "3*embed, embed", _ONE),
    Parameter("q_proj_weight", "embed, embed", f"not ({_ONE})"),
    Parameter("k_proj_weight", "embed, kdim", f"not ({_ONE})"),
    Parameter("v_proj_weight", "embed, vdim", f"not ({_ONE})"),
    Parameter("in_proj_bias", "3*embed", "bias"),
    Parameter("bias_k", "1, 1, embed", "add_bias_kv"),
    Parameter("bias_v", "1, 1, embed", "add_bias_kv"),
    Parameter("out_proj.weight", "embed, embed"),
    Parameter("out_proj.bias", "embed", "bias"),
)

_PART = {"embed": "d_model"}


def _inside(
    prefix: str, parameters: tuple[Parameter, ...], renamed: dict[str, str] | None = None
) -> tuple[Parameter, ...]:
    """The parameters of a layer that is a part of another one; ``renamed``: symbols and conditions in its terms."""

    def said(text: str) -> str:
        for old, new in (renamed or {}).items():
            text = text.replace(old, new)
        return text

    return tuple(Parameter(f"{prefix}{p.name}", said(p.shape), said(p.when)) for p in parameters)


def _attention(name: str) -> tuple[Parameter, ...]:
    """The attention inside another layer: always with one projection for q, k and v."""
    usual = [p for p in _ATTENTION if p.when in (_ONE, "bias", "")]
    return _inside(f"{name}.", tuple(replace(p, when="" if p.when == _ONE else p.when) for p in usual), _PART)


def _norm(name: str) -> tuple[Parameter, ...]:
    return (Parameter(f"{name}.weight", "d_model"), Parameter(f"{name}.bias", "d_model", "bias"))


_FORWARD = (
    Parameter("linear1.weight", "dim_feedforward, d_model"),
    Parameter("linear1.bias", "dim_feedforward", "bias"),
    Parameter("linear2.weight", "d_model, dim_feedforward"),
    Parameter("linear2.bias", "d_model", "bias"),
)
_ENCODER_LAYER = (*_attention("self_attn"), *_FORWARD, *_norm("norm1"), *_norm("norm2"))
_DECODER_LAYER = (
    *_attention("self_attn"),
    *_attention("multihead_attn"),
    *_FORWARD,
    *_norm("norm1"),
    *_norm("norm2"),
    *_norm("norm3"),
)
_BLOCK = "layers.{l}."
#: A norm at the end is the user's own layer.
_LAST = (Parameter("norm.weight", "d_model", "norm"), Parameter("norm.bias", "d_model", "norm"))
_ENCODER = (*_inside(_BLOCK, _ENCODER_LAYER), *_LAST)
_DECODER = (*_inside(_BLOCK, _DECODER_LAYER), *_LAST)
_TRANSFORMER = (
    *_inside("encoder.", _inside(_BLOCK, _ENCODER_LAYER)),
    *_norm("encoder.norm"),
    *_inside("decoder.", _inside(_BLOCK, _DECODER_LAYER)),
    *_norm("decoder.norm"),
)


def _dense_and_gamma(parameters: tuple[Parameter, ...]) -> tuple[Other, ...]:
    """MindSpore's names in a transformer: ``linear1`` is ``dense1``, and the norms have ``gamma`` and ``beta``."""
    made = []
    for p in parameters:
        name = p.name.replace("linear", "dense")
        if ".norm" in f".{name}":
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        made.append(Other(name, p.name, always=p.when == "bias"))
    return tuple(made)


def _transformer(
    name: str, parameters: tuple[Parameter, ...], lacks: tuple[str, ...], remarks: tuple[str, ...] = ()
) -> Row:
    of_nn = Counterpart(
        "nn", name, parameters=_dense_and_gamma(parameters), lacks=lacks, proven="running", remarks=remarks
    )
    return Row(name, parameters, (of_nn, lacking("mint.nn", f"nn.{name}")))


_NO_PLAIN = ("PyTorch without biases (bias=False) has no counterpart but one whose biases stay zero",)

ATTENTION_ROWS = (
    Row(
        "MultiheadAttention",
        _ATTENTION,
        (
            Counterpart("nn", "MultiheadAttention", parameters=same(_ATTENTION), called=(BIAS,), proven="running"),
            lacking("mint.nn", "nn.MultiheadAttention"),
        ),
        remarks=(
            "one in_proj_weight for q, k and v, in this order, or three where kdim or vdim differ from embed_dim",
        ),
    ),
    _transformer("TransformerEncoderLayer", _ENCODER_LAYER, ("bias",), _NO_PLAIN),
    _transformer("TransformerDecoderLayer", _DECODER_LAYER, ("bias",), _NO_PLAIN),
    _transformer("TransformerEncoder", _ENCODER, ("enable_nested_tensor", "mask_check")),
    _transformer("TransformerDecoder", _DECODER, ()),
    _transformer("Transformer", _TRANSFORMER, ("bias",), _NO_PLAIN),
)
