"""Operators that onnxruntime's optimizers and model builder write: on each device, the answers of onnxruntime.

If one fails, transformers that were optimized for onnxruntime cannot be read, or give other answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine import Core
from engine.errors import EngineError, ModelError, UnsupportedError
from engine.onnx import read_model
from engine.onnx.contrib import (
    DOMAIN,
    OPERATORS,
    activations,
    attention,
    grouped_attention,
    normalizations,
    products,
    rotary,
)

Array = NDArray[Any]
DEVICES = ("TEMPLATE", "CPU")
FAMILIES = (activations, attention, grouped_attention, normalizations, products, rotary)


@dataclass
class Inputs:
    """The inputs of a node, and what its model says about them.

    Attributes:
        arrays: None for an input that is omitted.
        constants: the indices of initializers.
        outputs: the number of outputs; `omitted` are the indices of those without a name.
        compared: the part of each output that is compared; the rest has no meaning.
    """

    seed: int = 0
    dtype: Any = np.float32
    arrays: list[Array | None] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)
    outputs: int = 1
    omitted: tuple[int, ...] = ()
    compared: Callable[[int, Array], Array] = lambda _, value: value
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def real(self, *shape: int, scale: float = 1.0, constant: bool = False) -> Array:
        """Add an input of normally distributed numbers."""
        return self.add((scale * self.random.normal(size=shape)).astype(self.dtype), constant=constant)

    def add(self, value: Any, *, constant: bool = False) -> Array:
        if constant:
            self.constants.add(len(self.arrays))
        self.arrays.append(None if value is None else np.asarray(value))
        return np.asarray(value)

    def skip(self, count: int = 1) -> None:
        """Omit inputs."""
        self.arrays += [None] * count

    @property
    def feed(self) -> dict[str, Array]:
        return {f"x{i}": a for i, a in enumerate(self.arrays) if a is not None and i not in self.constants}


Make = Callable[[Inputs], dict[str, Any]]
"""Adds the inputs of a node and returns its attributes."""
CASES: dict[str, Make] = {}
HALVES = (
    "GroupQueryAttention/step-rotary",
    "GroupQueryAttention/padded-packed",
    "GroupQueryAttention/ragged-sink",
    "GroupQueryAttention/parts-chunks",
    "MRotaryEmbedding/part",
    "RotaryEmbedding",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization/all",
    "SkipSimplifiedLayerNormalization/sum",
)
"""Cases that also run in f16."""


def case(name: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[name] = make
        return make

    return register


def proto_of(
    name: str, x: Inputs, attributes: dict[str, Any], *, dynamic: bool = False, named: bool = True
) -> onnx.ModelProto:
    """A model of one node whose input `i` is called `x<i>`, and its output `y<i>`.

    If `dynamic`, only the last length of each input is stated; `named` says whether the others have names.
    """
    op_type = name.split("/")[0]
    given = {index: array for index, array in enumerate(x.arrays) if array is not None}
    names = [f"x{i}" if i in given else "" for i in range(max(given) + 1)]
    outputs = ["" if i in x.omitted else f"y{i}" for i in range(x.outputs)]

    def shape(index: int, array: Array) -> list[Any]:
        return (
            [f"d{index}_{i}" if named else None for i in range(array.ndim - 1)] + list(array.shape[-1:])
            if dynamic
            else list(array.shape)
        )

    graph = helper.make_graph(
        [helper.make_node(op_type, names, outputs, "node", domain=OPERATORS[op_type].domain, **attributes)],
        "contrib",
        [
            helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), shape(i, a))
            for i, a in given.items()
            if i not in x.constants
        ],
        [onnx.ValueInfoProto(name=output) for output in outputs if output],
        [numpy_helper.from_array(given[i], f"x{i}") for i in sorted(x.constants & given.keys())],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def onnxruntime_answers(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Array]:
    """The answers without optimizations, which would fuse operators."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, inputs)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_onnxruntime(name: str, dynamic: bool) -> None:
    x = Inputs()
    check_answers(x, proto_of(name, x, CASES[name](x), dynamic=dynamic))


@pytest.mark.parametrize("name", ["Attention/ends", "Attention/lengths", "MultiHeadAttention/causal-of-few"])
def test_the_answer_if_lengths_have_no_names(name: str) -> None:
    """Unknown lengths may differ."""
    x = Inputs()
    check_answers(x, proto_of(name, x, CASES[name](x), dynamic=True, named=False))


@pytest.mark.parametrize("name", HALVES)
def test_the_answer_in_f16(name: str) -> None:
    """onnxruntime has kernels in f16 for these."""
    x = Inputs(dtype=np.float16, tolerance=4e-3)
    check_answers(x, proto_of(name, x, CASES[name](x)))


def check_answers(x: Inputs, model: onnx.ModelProto) -> None:
    expected = onnxruntime_answers(model, x.feed)
    for device in DEVICES:
        result = Core().compile_model(model, device)(x.feed)
        for info, want in zip(model.graph.output, expected, strict=True):
            got, index = result[info.name], int(info.name[1:])
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (device, info.name)
            got, want = x.compared(index, got), x.compared(index, want)
            atol = x.tolerance * max(1.0, np.abs(want.astype(np.float64)).max(initial=0.0))
            np.testing.assert_allclose(got, want, rtol=x.tolerance, atol=atol, err_msg=f"{info.name} on {device}")


def test_every_operator_has_a_case() -> None:
    modules = {family.__name__ for family in FAMILIES}
    known = {name for name, operator in OPERATORS.items() if operator.function.__module__ in modules}
    assert {name.split("/")[0] for name in CASES} == known - {"QAttention"}  # `test_contrib.py` has its cases


# -- activations ------------------------------------------------------------------------------------------


def unary(x: Inputs, bias: bool = False, **attributes: Any) -> dict[str, Any]:
    x.real(2, 3, 8, scale=2)
    if bias:
        x.real(8, constant=True)
    return attributes


CASES["Gelu"] = unary
CASES["BiasGelu"] = lambda x: unary(x, bias=True)
CASES["FastGelu"] = unary
CASES["FastGelu/bias"] = lambda x: unary(x, bias=True)
CASES["QuickGelu"] = unary
CASES["QuickGelu/alpha"] = lambda x: unary(x, alpha=0.7)


# -- normalizations ---------------------------------------------------------------------------------------


def skip(x: Inputs, *more: bool, other: Sequence[int] = (2, 3, 8), outputs: int = 1, **attributes: Any) -> Any:
    """`more` says which of the optional vectors are given."""
    x.real(*((6, 8) if len(other) == 2 and other[0] == 6 else (2, 3, 8)))
    x.real(*other)
    x.real(8, constant=True)
    for is_given in more:
        x.real(8, constant=True) if is_given else x.skip()
    x.outputs, x.omitted = outputs, (1, 2)
    return attributes


CASES["SkipLayerNormalization"] = skip
CASES["SkipLayerNormalization/beta"] = lambda x: skip(x, True)
CASES["SkipLayerNormalization/bias"] = lambda x: skip(x, False, True, epsilon=0.1)
CASES["SkipLayerNormalization/all"] = lambda x: skip(x, True, True, outputs=4)
CASES["SkipLayerNormalization/sum"] = lambda x: skip(x, True, outputs=4)
CASES["SkipLayerNormalization/one-sample"] = lambda x: skip(x, True, other=(1, 3, 8), outputs=4)
CASES["SkipLayerNormalization/no-batch"] = lambda x: skip(x, True, other=(3, 8), outputs=4)
CASES["SkipLayerNormalization/tokens"] = lambda x: skip(x, True, other=(6, 8))
CASES["SkipSimplifiedLayerNormalization"] = skip
CASES["SkipSimplifiedLayerNormalization/sum"] = lambda x: skip(x, outputs=4, epsilon=1e-5)
CASES["SkipSimplifiedLayerNormalization/all"] = lambda x: skip(x, True, outputs=4)


def simplified(x: Inputs, shape: Sequence[int] = (8,), **attributes: Any) -> dict[str, Any]:
    x.real(2, 3, 8)
    x.real(*shape, constant=True)
    return attributes


CASES["SimplifiedLayerNormalization"] = simplified
CASES["SimplifiedLayerNormalization/epsilon"] = lambda x: simplified(x, epsilon=0.1, axis=-1, stash_type=1)
CASES["SimplifiedLayerNormalization/axis"] = lambda x: simplified(x, (3, 8), axis=1)


def embed(
    x: Inputs, *, segments: bool = True, mask: bool = False, positions: Any = None, outputs: int = 3, **attributes: Any
) -> dict[str, Any]:
    x.add(x.random.integers(0, 11, (2, 5), dtype=np.int32))
    x.add(x.random.integers(0, 3, (2, 5), dtype=np.int32)) if segments else x.skip()
    x.real(11, 8, constant=True)
    x.real(7, 8, constant=True)
    x.real(3, 8, constant=True) if segments else x.skip()
    x.real(8, constant=True)
    x.real(8, constant=True)
    x.add(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)) if mask else x.skip()
    if positions is not None:
        x.add(np.asarray(positions, np.int32))
    x.outputs = outputs
    return attributes


CASES["EmbedLayerNormalization"] = embed
CASES["EmbedLayerNormalization/mask"] = lambda x: embed(x, mask=True, epsilon=1e-5)
CASES["EmbedLayerNormalization/no-segments"] = lambda x: embed(x, segments=False, mask=True, outputs=2)
CASES["EmbedLayerNormalization/positions"] = lambda x: embed(x, positions=[[3, 1, 0, 6, 2], [0, 0, 4, 4, 1]])
CASES["EmbedLayerNormalization/one-row-of-positions"] = lambda x: embed(x, positions=[[3, 1, 0, 6, 2]])


def embed_codes(x: Inputs, dtype: Any, *, segments: bool = True, mask: bool = False) -> dict[str, Any]:
    limits = np.iinfo(dtype)
    x.add(x.random.integers(0, 11, (2, 5), dtype=np.int32))
    x.add(x.random.integers(0, 3, (2, 5), dtype=np.int32) if segments else None)
    for shape in ((11, 8), (7, 8), (3, 8), (8,), (8,)):
        codes = x.random.integers(limits.min, limits.max + 1, shape).astype(dtype)
        x.add(codes if segments or shape != (3, 8) else None, constant=True)
    x.add(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None)
    for values in (x.random.uniform(0.01, 0.1, 5).astype(np.float32), x.random.integers(-9, 9, 5).astype(dtype)):
        for index, value in enumerate(values):
            x.add(value if segments or index != 2 else None, constant=True)
    x.outputs = 2
    return {}


CASES["QEmbedLayerNormalization"] = lambda x: embed_codes(x, np.int8, mask=True)
CASES["QEmbedLayerNormalization/u8"] = lambda x: embed_codes(x, np.uint8)
CASES["QEmbedLayerNormalization/no-segments"] = lambda x: embed_codes(x, np.uint8, segments=False, mask=True)


# -- products ---------------------------------------------------------------------------------------------


def matmul(x: Inputs, a: Sequence[int], b: Sequence[int], **attributes: Any) -> dict[str, Any]:
    x.real(*a)
    x.real(*b)
    return attributes


CASES["FusedMatMul"] = lambda x: matmul(x, (2, 3, 4), (2, 4, 5))
CASES["FusedMatMul/alpha"] = lambda x: matmul(x, (2, 3, 4), (4, 5), alpha=0.125)
CASES["TransposeMatMul"] = lambda x: matmul(x, (2, 4, 3), (2, 4, 5), transA=1, alpha=0.5)
CASES["FusedMatMul/A"] = lambda x: matmul(x, (2, 4, 3), (2, 4, 5), transA=1)
CASES["FusedMatMul/B"] = lambda x: matmul(x, (2, 6, 3, 4), (2, 6, 5, 4), transB=1, alpha=2.0)
CASES["FusedMatMul/both"] = lambda x: matmul(x, (4, 3), (5, 4), transA=1, transB=1)
CASES["FusedMatMul/batches-of-A"] = lambda x: matmul(x, (3, 2, 4), (2, 4, 5), transBatchA=1)
CASES["FusedMatMul/batches-of-B"] = lambda x: matmul(x, (2, 6, 3, 4), (4, 2, 6, 5), transBatchB=1)
CASES["FusedMatMul/batches"] = lambda x: matmul(
    x, (4, 2, 6, 3), (5, 2, 6, 4), transBatchA=1, transA=1, transBatchB=1, transB=1
)


def gemm(x: Inputs, c: Sequence[int] | None = (5,), **attributes: Any) -> dict[str, Any]:
    x.real(*((4, 3) if attributes.get("transA") else (3, 4)))
    x.real(*((5, 4) if attributes.get("transB") else (4, 5)))
    if c is not None:
        x.real(*c)
    return attributes


CASES["FusedGemm/Relu"] = lambda x: gemm(x, activation="Relu", transB=1, alpha=0.5, beta=2.0)
CASES["FusedGemm/LeakyRelu"] = lambda x: gemm(x, None, activation="LeakyRelu", activation_alpha=0.3, transA=1)
CASES["FusedGemm/Sigmoid"] = lambda x: gemm(x, (3, 5), activation="Sigmoid")
CASES["FusedGemm/Elu"] = lambda x: gemm(x, activation="Elu", activation_alpha=0.5)


def conv(x: Inputs, bias: bool = True, other: bool = False, **attributes: Any) -> dict[str, Any]:
    x.real(1, 4, 6, 6)
    x.real(8, 4, 3, 3, constant=True)
    x.real(8, constant=True) if bias else x.skip()
    if other:
        x.real(1, 8, 6, 6)
    return {key: value for key, value in {"pads": [1, 1, 1, 1], **attributes}.items() if value is not None}


CASES["FusedConv"] = conv
CASES["FusedConv/Relu"] = lambda x: conv(x, activation="Relu")
CASES["FusedConv/sum"] = lambda x: conv(x, other=True, activation="Relu")
CASES["FusedConv/sum-without-bias"] = lambda x: conv(x, False, True)
CASES["FusedConv/LeakyRelu"] = lambda x: conv(x, activation="LeakyRelu", activation_params=[0.2], strides=[2, 2])
CASES["FusedConv/Clip"] = lambda x: conv(x, activation="Clip", activation_params=[-0.5, 0.7])
CASES["FusedConv/HardSigmoid"] = lambda x: conv(x, activation="HardSigmoid", activation_params=[0.3, 0.4])
CASES["FusedConv/Tanh"] = lambda x: conv(x, activation="Tanh", auto_pad="SAME_UPPER", pads=None)


# -- rotary embeddings ------------------------------------------------------------------------------------


def rotary_embedding(
    x: Inputs, shape: Sequence[int], positions: Any, columns: int = 8, **attributes: Any
) -> dict[str, Any]:
    x.real(*shape)
    x.add(np.asarray(positions, np.int64))
    angles = x.random.uniform(0, 7, (20, columns))
    x.add(np.cos(angles).astype(x.dtype), constant=True)
    x.add(np.sin(angles).astype(x.dtype), constant=True)
    return attributes


TABLE = [[3, 4, 5], [0, 19, 7]]
CASES["RotaryEmbedding"] = lambda x: rotary_embedding(x, (2, 3, 32), TABLE)
CASES["RotaryEmbedding/interleaved"] = lambda x: rotary_embedding(x, (2, 3, 32), TABLE, interleaved=1)
CASES["RotaryEmbedding/offset"] = lambda x: rotary_embedding(x, (2, 3, 32), [6])
CASES["RotaryEmbedding/heads"] = lambda x: rotary_embedding(x, (2, 4, 3, 16), TABLE)
CASES["RotaryEmbedding/offset-of-heads"] = lambda x: rotary_embedding(x, (2, 4, 3, 16), [6])
CASES["RotaryEmbedding/part"] = lambda x: rotary_embedding(
    x, (2, 3, 64), TABLE, 8, num_heads=2, rotary_embedding_dim=16
)
CASES["RotaryEmbedding/part-of-heads"] = lambda x: rotary_embedding(
    x, (2, 2, 3, 32), TABLE, 4, num_heads=2, rotary_embedding_dim=8, interleaved=1
)


def three_positions(
    x: Inputs, shape: Sequence[int], sections: Sequence[int], *, layout: int = 0, rotated: int = 0, **attributes: Any
) -> dict[str, Any]:
    """With 2 heads; each stream of positions differs."""
    x.real(*shape)
    x.add(x.random.integers(0, 20, (3, shape[0], shape[-2])))
    angles = x.random.uniform(0, 7, (20, sum(sections)))
    x.add(np.cos(angles).astype(x.dtype), constant=True)
    x.add(np.sin(angles).astype(x.dtype), constant=True)
    return {
        "num_heads": 2, "mrope_section": list(sections), "mrope_layout": layout, "rotary_embedding_dim": rotated,
        **attributes,
    }  # fmt: skip


_PICTURES = {"": (4, 2, 2), "time": (8, 0, 0), "no-time": (0, 4, 4), "wide": (2, 4, 2), "uneven": (3, 3, 2)}
for form, sections in _PICTURES.items():
    for layout in (0, 1):
        CASES[f"MRotaryEmbedding/{form}-{layout}"] = lambda x, sections=sections, layout=layout: three_positions(
            x, (2, 3, 32), sections, layout=layout
        )
CASES["MRotaryEmbedding"] = lambda x: three_positions(x, (2, 3, 32), (4, 2, 2), layout=1)
CASES["MRotaryEmbedding/interleaved"] = lambda x: three_positions(x, (2, 3, 32), (3, 3, 2), interleaved=1, layout=1)
CASES["MRotaryEmbedding/heads"] = lambda x: three_positions(x, (2, 2, 3, 16), (4, 2, 2), layout=1)
CASES["MRotaryEmbedding/part"] = lambda x: three_positions(x, (2, 3, 32), (2, 1, 1), rotated=8, layout=1)
CASES["MRotaryEmbedding/part-of-heads"] = lambda x: three_positions(
    x, (2, 2, 3, 16), (2, 1, 1), rotated=8, interleaved=1
)


# -- attention --------------------------------------------------------------------------------------------


def mask_of(form: str, batch: int, queries: int, keys: int) -> Array:
    """A mask of a form; each query sees some key."""
    seen = np.arange(batch * queries * keys).reshape(batch, queries, keys) % 3 > 0
    lengths = np.arange(keys, keys - batch, -1)
    forms = {
        "lengths": lengths,
        "ends": np.concatenate((lengths, np.arange(batch))),
        "keys": seen[:, 0],
        "scores": seen,
        "dummy": np.ones((batch, 1)),
        "all": np.zeros((batch, keys)),
    }
    return forms[form].astype(np.int32)


def multi_head(
    x: Inputs,
    mask: str = "",
    *,
    bias: bool = False,
    added: Sequence[int] | None = None,
    past: int | None = None,
    queries: int = 3,
    keys: int = 5,
    width: int = 16,
    crossed: bool = False,
    outputs: int = 1,
    **attributes: Any,
) -> dict[str, Any]:
    x.real(2, queries, 16)
    for size in (16, width):
        x.real(2, 2, keys, size // 2) if crossed else x.real(2, keys, size)
    x.real(32 + width, constant=True) if bias else x.skip()
    total = keys + (past or 0)
    x.add(mask_of(mask, 2, queries, total)) if mask else x.skip()
    x.real(*added, queries, total) if added else x.skip()
    if past is not None:
        x.real(2, 2, past, 8)
        x.real(2, 2, past, width // 2)
    x.outputs = outputs
    return {"num_heads": 2, **attributes}


CASES["MultiHeadAttention"] = multi_head
CASES["MultiHeadAttention/bias"] = lambda x: multi_head(x, bias=True, width=24)
CASES["MultiHeadAttention/lengths"] = lambda x: multi_head(x, "lengths")
CASES["MultiHeadAttention/keys"] = lambda x: multi_head(x, "keys", mask_filter_value=-3.0)
CASES["MultiHeadAttention/scores"] = lambda x: multi_head(x, "scores")
CASES["MultiHeadAttention/no-keys"] = lambda x: multi_head(x, "all")
CASES["MultiHeadAttention/added"] = lambda x: multi_head(x, "keys", added=(2, 2), scale=0.3)
CASES["MultiHeadAttention/added-to-all"] = lambda x: multi_head(x, added=(1, 1))
CASES["MultiHeadAttention/present"] = lambda x: multi_head(x, bias=True, outputs=3, queries=5)
CASES["MultiHeadAttention/past"] = lambda x: multi_head(x, past=4, outputs=3, queries=5, bias=True)
CASES["MultiHeadAttention/empty-past"] = lambda x: multi_head(x, past=0, outputs=3, queries=5)
CASES["MultiHeadAttention/past-and-mask"] = lambda x: multi_head(x, "keys", past=4, outputs=3, queries=5)
CASES["MultiHeadAttention/causal"] = lambda x: multi_head(x, unidirectional=1, queries=5)
CASES["MultiHeadAttention/causal-past"] = lambda x: multi_head(x, past=4, outputs=3, queries=5, unidirectional=1)
CASES["MultiHeadAttention/step"] = lambda x: multi_head(
    x, "keys", past=4, outputs=3, queries=1, keys=1, unidirectional=1, added=(1, 2)
)
CASES["MultiHeadAttention/cross"] = lambda x: multi_head(x, "keys", crossed=True)
CASES["MultiHeadAttention/cross-bias"] = lambda x: multi_head(x, crossed=True, bias=True, outputs=3)
CASES["MultiHeadAttention/cross-causal"] = lambda x: multi_head(x, crossed=True, unidirectional=1)
CASES["MultiHeadAttention/causal-of-few"] = lambda x: multi_head(x, "keys", unidirectional=1)
CASES["MultiHeadAttention/causal-of-one"] = lambda x: multi_head(x, unidirectional=1, queries=1)
CASES["MultiHeadAttention/causal-of-many-keys"] = lambda x: multi_head(
    x, unidirectional=1, past=4, queries=2, outputs=3
)


def packed(
    x: Inputs,
    mask: str = "",
    *,
    sizes: tuple[int, int, int] | None = None,
    past: int | None = None,
    added: Sequence[int] | None = None,
    bias: bool = True,
    outputs: int = 1,
    length: int = 4,
    **attributes: Any,
) -> dict[str, Any]:
    x.real(2, length, 6)
    width = sum(sizes or (8, 8, 8))
    x.real(6, width, constant=True)
    x.real(width, constant=True) if bias else x.skip()
    total = length + (past or 0)
    x.add(mask_of(mask, 2, length, total)) if mask else x.skip()
    x.real(2, 2, 2, past, 4) if past is not None else x.skip()
    x.real(*added, length, total) if added else x.skip()
    x.outputs = outputs
    return {"num_heads": 2, **({"qkv_hidden_sizes": list(sizes)} if sizes else {}), **attributes}


CASES["Attention"] = packed
CASES["Attention/no-bias"] = lambda x: packed(x, bias=False, scale=0.4)
CASES["Attention/sizes"] = lambda x: packed(x, sizes=(8, 8, 12))
for form in ("lengths", "ends", "keys", "scores", "dummy", "all"):
    CASES[f"Attention/{form}"] = lambda x, form=form: packed(x, form)
    CASES[f"Attention/{form}-causal"] = lambda x, form=form: packed(x, form, unidirectional=1, outputs=2)
CASES["Attention/causal"] = lambda x: packed(x, unidirectional=1)
CASES["Attention/past"] = lambda x: packed(x, past=3, outputs=2, unidirectional=1)
CASES["Attention/past-and-mask"] = lambda x: packed(x, "keys", past=3, outputs=2, unidirectional=1)
CASES["Attention/past-and-lengths"] = lambda x: packed(x, "ends", past=3, outputs=2)
CASES["Attention/step"] = lambda x: packed(x, past=3, outputs=2, unidirectional=1, length=1)
CASES["Attention/added"] = lambda x: packed(x, added=(1, 2))
CASES["Attention/added-to-keys"] = lambda x: packed(x, "keys", added=(2, 1), mask_filter_value=-50.0)


def grouped(
    x: Inputs,
    lengths: Sequence[int],
    *,
    rows: int = 1,
    capacity: int | None = None,
    total: int | None = None,
    is_packed: bool = False,
    size: int = 16,
    positions: Any = None,
    added: Sequence[int] | None = None,
    sink: bool = False,
    own: Sequence[int] | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    """With 4 heads of queries and 2 of keys; `lengths` are the sequences' after the step.

    `own` are the lengths of the sequences' parts of the rows, if they are given.
    """
    batch, total = len(lengths), max(lengths) if total is None else total
    if is_packed:
        x.real(batch, rows, 8 * size)
        x.skip(2)
    else:
        for count in (4, 2, 2):
            x.real(batch, rows, count * size)
    if capacity is None:
        x.skip(2)
    else:
        for _ in range(2):
            x.real(batch, 2, capacity, size)
    x.add(np.array(lengths, np.int32) - 1)
    x.add(np.int32(total), constant=False)
    if attributes.get("do_rotary"):
        angles = x.random.uniform(0, 7, (20, 8))
        x.add(np.cos(angles).astype(x.dtype), constant=True)
        x.add(np.sin(angles).astype(x.dtype), constant=True)
    else:
        x.skip(2)
    x.add(np.asarray(positions, np.int64)) if positions is not None else x.skip()
    x.real(*added, rows, total) if added else x.skip()
    x.real(4, constant=True) if sink else x.skip()
    if own is not None:
        x.skip(4)
        x.add(np.array(own, np.int32))
    x.outputs = 3
    valid_rows = [min(rows, n) for n in lengths] if own is None else own

    def valid(index: int, value: Array) -> Array:
        """Without the results of queries in a padding, and what the cache has behind the sequences."""
        if index:
            return np.concatenate([sample[:, :n] for sample, n in zip(value, lengths, strict=True)], axis=1)
        return np.concatenate([sample[:n] for sample, n in zip(value, valid_rows, strict=True)])

    x.compared = valid
    return {"num_heads": 4, "kv_num_heads": 2, **attributes}


_PROMPT: dict[str, Any] = {"lengths": (5, 5), "rows": 5}
_PADDED: dict[str, Any] = {"lengths": (5, 3), "rows": 5}
_STEP: dict[str, Any] = {"lengths": (7, 7), "capacity": 6}
_RAGGED: dict[str, Any] = {"lengths": (7, 4), "capacity": 6}
_SHARED: dict[str, Any] = {"lengths": (7, 4), "capacity": 12}
_CHUNK: dict[str, Any] = {"lengths": (9,), "rows": 3, "capacity": 6}
_EMPTY: dict[str, Any] = {"lengths": (5, 3), "rows": 5, "capacity": 0}
GROUPED = {
    "prompt": _PROMPT, "padded": _PADDED, "step": _STEP, "ragged": _RAGGED, "shared": _SHARED, "chunk": _CHUNK,
    "empty-past": _EMPTY, "prompt-in-buffer": {**_PADDED, "capacity": 12},
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "packed": {"is_packed": True},
    "rotary": {"do_rotary": 1},
    "packed-rotary": {"is_packed": True, "do_rotary": 1, "rotary_interleaved": 1},
    "part-rotary": {"do_rotary": 1, "size": 32},
    "window": {"local_window_size": 3},
    "softcap": {"softcap": 2.0, "scale": 0.5},
    "smooth": {"smooth_softmax": 1},
    "sink": {"sink": True, "local_window_size": 4, "softcap": 3.0},
    "added": {"added": (1, 1)},
    "both-ways": {"causal": 0},
    "added-to-heads": {"added": (1, 4), "local_window_size": 2},
}
for form, data in GROUPED.items():
    for variant, more in VARIANTS.items():
        CASES[f"GroupQueryAttention/{form}{'-' if variant else ''}{variant}"] = lambda x, data=data, more=more: grouped(
            x, **data, **more
        )
CASES["GroupQueryAttention/positions"] = lambda x: grouped(x, **_CHUNK, do_rotary=1, positions=[[2, 11, 0]])
CASES["GroupQueryAttention/positions-of-prompt"] = lambda x: grouped(
    x, **_PROMPT, do_rotary=1, positions=np.arange(10).reshape(2, 5)
)
_PARTS: dict[str, dict[str, Any]] = {
    "whole": {"lengths": (9,), "own": (3,), "rows": 3, "capacity": 6},
    "chunks": {"lengths": (9, 5, 4), "own": (3, 1, 0), "rows": 3, "capacity": 6, "total": 9},
    "step": {"lengths": (7, 4), "own": (1, 0), "rows": 1, "capacity": 6},
    "empty-past": {"lengths": (3, 1), "own": (3, 1), "rows": 3, "capacity": 0},
    "room": {"lengths": (4, 3), "own": (2, 3), "rows": 3, "capacity": 12, "total": 14},
}
for form in _PARTS:
    for variant in ("", "packed-rotary", "window", "sink", "added"):
        CASES[f"GroupQueryAttention/parts-{form}{'-' if variant else ''}{variant}"] = (
            lambda x, data=_PARTS[form], more=VARIANTS[variant]: grouped(x, **data, **more)
        )
CASES["GroupQueryAttention/parts-positions"] = lambda x: grouped(
    x, **_PARTS["empty-past"], do_rotary=1, positions=[[3, 1, 8], [11, 0, 0]]
)
CASES["GroupQueryAttention/parts-window-cache"] = lambda x: grouped(
    x, lengths=(3, 2), own=(2, 1), rows=3, capacity=4, total=5, local_window_size=3, sliding_window_cache=1
)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("own", "length"), [(4, 9), (-1, 6), (3, 2), (1, 8)], ids=["more-than-rows", "negative", "before-0", "past"]
)
def test_lengths_of_parts_that_cannot_be(own: int, length: int, batch: int) -> None:
    """One error: anything else would be an answer from keys that the sequence does not have."""
    x = Inputs()
    right = {"lengths": (7,) * batch, "own": (1,) * batch, "rows": 3, "capacity": 6, "total": 9}
    model = proto_of("GroupQueryAttention", x, grouped(x, **right))
    feed = {**x.feed, "x5": np.full(batch, length - 1, np.int32), "x16": np.full(batch, own, np.int32)}
    for device in DEVICES:
        network = Core().compile_model(model, device)
        with pytest.raises(EngineError, match="node"):
            network(feed)
        network(x.feed)


@pytest.mark.parametrize("epsilons", [{}, {"qk_norm_epsilon": 0.3}, {"q_norm_epsilon": 0.3, "k_norm_epsilon": 0.1}])
@pytest.mark.parametrize("variant", ["rotary", "packed", "window"])
def test_heads_are_normalized_before_they_are_rotated(variant: str, epsilons: dict[str, float]) -> None:
    """onnxruntime has kernels for these inputs on GPUs only: its answer is for queries and keys that are normalized."""
    x = Inputs()
    attributes = grouped(x, **_CHUNK, **VARIANTS[variant])
    plain = proto_of("GroupQueryAttention", x, attributes)
    feed = x.feed
    x.skip(14 - len(x.arrays))
    weights = [x.real(16, constant=True) for _ in range(2)]
    model = proto_of("GroupQueryAttention", x, {**attributes, **epsilons})
    values = feed["x0"] if variant == "packed" else np.concatenate([feed[f"x{i}"] for i in range(3)], axis=-1)
    parts = np.split(values.astype(np.float64), [64, 96], axis=-1)
    for i, weight in enumerate(weights):
        by_head = parts[i].reshape(1, 3, -1, 16)
        epsilon = epsilons.get(f"{'qk'[i]}_norm_epsilon", epsilons.get("qk_norm_epsilon", 1e-6))
        by_head /= np.sqrt(np.mean(by_head**2, axis=-1, keepdims=True) + epsilon)
        by_head *= weight
    made = [np.concatenate(parts, axis=-1)] if variant == "packed" else parts
    normalized = {**feed, **{f"x{i}": value.astype(np.float32) for i, value in enumerate(made)}}
    expected = onnxruntime_answers(plain, normalized)
    for device in DEVICES:
        found = Core().compile_model(model, device)(feed)
        for index, want in enumerate(expected):
            np.testing.assert_allclose(found[f"y{index}"], want, rtol=1e-5, atol=1e-5)


# -- what is refused --------------------------------------------------------------------------------------


def changed(name: str, change: Callable[[Inputs, dict[str, Any]], object]) -> onnx.ModelProto:
    """A case, changed."""
    x = Inputs()
    attributes = CASES[name](x)
    change(x, attributes)
    return proto_of(name, x, attributes)


def at(index: int, value: Any) -> Callable[[Inputs, dict[str, Any]], object]:
    return lambda x, _: x.arrays.__setitem__(index, value)


def having(**attributes: Any) -> Callable[[Inputs, dict[str, Any]], object]:
    return lambda _, own: own.update(attributes)


def naming(outputs: int) -> Callable[[Inputs, dict[str, Any]], object]:
    def change(x: Inputs, _: dict[str, Any]) -> None:
        x.outputs, x.omitted = outputs, ()

    return change


STEP = "GroupQueryAttention/step"
F32 = np.float32


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (STEP, having(k_quant_type="PER_TENSOR"), "attribute `k_quant_type` is 'PER_TENSOR'"),
        (STEP, having(qk_output=1), "attribute `qk_output` is 1"),
        ("MRotaryEmbedding", having(scale=2.0), "attribute `scale` is 2.0"),
        ("MRotaryEmbedding", having(is_packed_batching=1), "attribute `is_packed_batching` is 1"),
        (STEP, naming(4), "output 3 (output_qk, `y3`) has no form"),
        ("MultiHeadAttention", naming(4), "output 3 (qk, `y3`) has no form"),
        ("MultiHeadAttention", at(2, None), "inputs 1 (key) and 2 (value) are not both given"),
        ("MultiHeadAttention/past", lambda x, _: x.add(np.int32([4])), "input 8 (past_sequence_length, `x8`) is given"),
        ("Attention", having(do_rotary=1), "attribute `do_rotary` is 1"),
        ("Attention/past", having(past_present_share_buffer=1), "attribute `past_present_share_buffer` is 1"),
        ("Attention/keys", at(3, np.ones((2, 1, 9, 9), np.int32)), "input 3 (mask_index, `x3`) has rank 4"),
        ("RotaryEmbedding", having(scale=2.0), "attribute `scale` is 2.0"),
        ("RotaryEmbedding", having(is_packed_batching=1), "attribute `is_packed_batching` is 1"),
        ("SkipLayerNormalization/all", naming(4), "output 1 (mean, `y1`) has no form"),
        ("SimplifiedLayerNormalization", naming(2), "output 1 (inv_std_var, `y1`) has no form"),
        ("FusedConv", having(activation="Gelu"), "attribute `activation` is 'Gelu'; known ones are Clip, Elu"),
    ],
)  # fmt: skip
def test_what_has_no_form_in_onnx(name: str, change: Any, words: str) -> None:
    with pytest.raises(UnsupportedError) as found:
        read_model(changed(name, change))
    assert f"{name.split('/')[0]} `node`" in str(found.value)
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (STEP, at(4, None), "past_key and past_value must both be given"),
        (STEP, at(2, None), "key and value must both be given"),
        (STEP, having(num_heads=3), "attribute `num_heads` is 3; expected a multiple of `kv_num_heads`, 2"),
        (STEP, having(kv_num_heads=0), "attribute `kv_num_heads` is 0; expected 1 or more"),
        (STEP, having(local_window_size=0), "attribute `local_window_size` is 0; expected 1 or more, or -1"),
        (STEP, having(do_rotary=1), "attribute `do_rotary` is 1; expected inputs cos_cache and sin_cache"),
        (STEP, having(smooth_softmax=2), "attribute `smooth_softmax` is 2; expected -1 or 0 or 1"),
        (STEP, at(1, np.zeros((2, 1, 64), F32)), "input 1 (key, `x1`) has shape [2,1,64]; expected width 32"),
        (STEP, at(5, np.zeros(2, np.int64)), "input 5 (seqlens_k, `x5`) is i64; expected i32"),
        (STEP, at(3, np.zeros((2, 6, 16), F32)), "input 3 (past_key, `x3`) has shape [2,6,16]; expected rank 4"),
        ("MultiHeadAttention/bias", at(3, np.zeros(7, F32)), "input 3 (bias, `x3`) has shape [7]; expected [56]"),
        ("MultiHeadAttention/past", at(7, None), "past_key and past_value must both be given"),
        ("MultiHeadAttention/lengths", at(4, np.ones(3, np.int32)), "has shape [3]; expected [2], one for each sample"),
        ("MultiHeadAttention/keys", at(4, np.ones((2, 4), np.int32)), "has shape [2,4]; expected 5 keys"),
        (STEP, having(causal=0, local_window_size=3), "attribute `local_window_size` is given; expected none"),
        ("MultiHeadAttention", having(num_heads=0), "attribute `num_heads` is 0; expected 1 or more"),
        ("MultiHeadAttention", having(heads=2), "it has no attribute `heads`"),
        ("Attention/sizes", having(qkv_hidden_sizes=[8, 12, 8]), "attribute `qkv_hidden_sizes` is [8, 12, 8]"),
        ("Attention/lengths", at(3, np.ones(3, np.int32)), "has shape [3]; expected [2] or [4] for a batch of 2"),
        ("RotaryEmbedding/part", having(rotary_embedding_dim=8), "has 8 columns; expected half of"),
        ("RotaryEmbedding", having(num_heads=0, rotary_embedding_dim=16), "attribute `num_heads` is 0"),
        ("MRotaryEmbedding", having(mrope_section=[4, 2]), "attribute `mrope_section` is [4, 2]; expected 3 numbers"),
        ("MRotaryEmbedding", having(mrope_section=[4, 2, 1]), "expected 3 numbers of 0 or more, whose sum is 8"),
        ("MRotaryEmbedding", having(mrope_section=[10, -2, 0]), "attribute `mrope_section` is [10, -2, 0]; expected"),
        ("MRotaryEmbedding", having(mrope_layout=2), "attribute `mrope_layout` is 2; expected 0 or 1"),
        ("MRotaryEmbedding", having(num_heads=0), "attribute `num_heads` is 0; expected 1 or more"),
        ("MRotaryEmbedding/part", having(rotary_embedding_dim=16), "has 4 columns; expected half of"),
        ("MRotaryEmbedding", at(1, np.zeros((2, 2, 3), np.int64)), "has shape [2,2,3]; expected [3, batch, length]"),
        ("GroupQueryAttention/parts-whole", at(3, None), "past_key and past_value must both be given"),
        ("GroupQueryAttention/parts-whole", having(causal=0), "(query_seqlens, `x16`) is given; expected past_key"),
        ("GroupQueryAttention/parts-whole", at(14, np.ones(16, F32)), "q_norm_weight and k_norm_weight must both be"),
        ("GroupQueryAttention/parts-whole", at(16, np.ones((1, 1), np.int32)), "has shape [1,1]; expected rank 1"),
        ("SkipLayerNormalization", at(1, np.zeros((2, 3, 8), np.float16)), "input 1 (skip, `x1`) is f16; expected f32"),
        ("SkipLayerNormalization", at(2, np.zeros((1, 8), F32)), "has shape [1,8]; expected rank 1"),
        ("EmbedLayerNormalization", at(1, None), "segment_ids and segment_embedding must both be given"),
        ("FusedConv/LeakyRelu", having(activation_params=[0.1, 0.2]), "`activation_params` has 2 numbers; expected 1"),
        ("FusedGemm/Relu", having(activation_beta=0.1), "attribute `activation_beta` is given; expected none for Relu"),
        ("FusedMatMul", having(transA=2), "attribute `transA` is 2; expected 0 or 1"),
        ("QuickGelu", having(alpha="x"), "attribute `alpha` is 'x'; expected a number"),
        ("BiasGelu", at(1, np.zeros((1, 8), F32)), "input 1 (B, `x1`) has shape [1,8]; expected rank 1"),
    ],
)  # fmt: skip
def test_what_an_operator_does_not_accept(name: str, change: Any, words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(changed(name, change))
    assert f"{name.split('/')[0]} `node`" in str(found.value)
    assert words in str(found.value)


ARRAYS = st.builds(
    lambda shape, dtype: np.ones(shape, dtype),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from([np.int32, np.int64, np.float32, np.float16, np.bool_]),
)
VALUES = st.one_of(st.integers(-9, 30), st.floats(-2, 2), st.text(max_size=3), st.lists(st.integers(-3, 9), min_size=1))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_other_call_is_read_or_refused(name: str, data: st.DataObject) -> None:
    def change(x: Inputs, attributes: dict[str, Any]) -> None:
        for index in data.draw(st.sets(st.integers(0, len(x.arrays) - 1), max_size=2)):
            x.arrays[index] = data.draw(st.one_of(st.none(), ARRAYS))
        names = OPERATORS[name.split("/")[0]].attributes or ("none",)
        for key in data.draw(st.sets(st.sampled_from(names), max_size=2)):
            attributes[key] = data.draw(VALUES)
        x.add(None if any(a is not None for a in x.arrays) else np.ones(1, np.float32))

    with contextlib.suppress(EngineError):
        read_model(changed(name, change))
