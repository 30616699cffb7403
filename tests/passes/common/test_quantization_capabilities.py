"""A device's declarations decide which products are computed on integers, and each other product has a reason.

If this fails, a device gets integers that it has no kernel for, or a user cannot find out why a model is slow.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, f32, i8, u8
from engine.lowering import answer_query
from engine.lowering.query import precision_of, why_real
from engine.ops.evaluator import evaluate_model
from engine.passes import Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.quantization_capabilities import Granularity, PrecisionRestriction, QuantizationCapabilities
from engine.passes.runtime_info import init_node_info
from engine.plugin_api import Support

GUIDE = Path(__file__).parents[3] / "docs" / "low-precision.md"


def dequantized(data: Any, scale: Any = 0.02, zero_point: Any = None, axis: int = 0, **attributes: int) -> Node:
    inputs = [data if isinstance(data, Node) else Constant(data), Constant(np.float32(scale))]
    return ops.DequantizeLinear(*inputs, None if zero_point is None else Constant(zero_point), axis=axis, **attributes)


def codes(*shape: int, kind: Any = np.int8) -> np.ndarray[Any, Any]:
    limits = np.iinfo(kind)
    return np.random.default_rng(1).integers(limits.min, limits.max + 1, shape).astype(kind)


def conv(x_type: Any = u8, *, weights: Node | None = None, **attributes: Any) -> Model:
    x = Parameter(x_type, [1, 4, 5, 5], "x")
    given = dequantized(codes(8, 4 // attributes.get("group", 1), 3, 3)) if weights is None else weights
    return Model([ops.Conv(dequantized(x), given, friendly_name="node", **attributes)], [x])


def transposed(scale: Any = None, **attributes: Any) -> Model:
    x = Parameter(u8, [1, 4, 5, 5], "x")
    outputs = 6 // attributes.get("group", 1)
    given = np.linspace(0.01, 0.1, outputs) if scale is None else scale
    weights = dequantized(codes(4, outputs, 3, 3), given, axis=1)
    return Model([ops.ConvTranspose(dequantized(x), weights, friendly_name="node", **attributes)], [x])


def product(weights: Node, **attributes: Any) -> Model:
    x = Parameter(u8, [3, 6], "x")
    if attributes:
        return Model([ops.Gemm(dequantized(x), weights, friendly_name="node", **attributes)], [x])
    return Model([ops.MatMul(dequantized(x), weights, friendly_name="node")], [x])


def answer(model: Model, *restrictions: PrecisionRestriction) -> Support:
    """The answer of a device with these capabilities for the operation `node`."""
    graph = model.clone()
    init_node_info(graph)
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    QuantizationCapabilities("ACME", restrictions).configure(manager.pass_config)
    manager.run_passes(graph)
    feed = [
        codes(*model.parameters[0].output(0).shape.get_shape(), kind=model.parameters[0].output(0).element_type.numpy)
    ]
    (got,), (expected,) = evaluate_model(graph, feed), evaluate_model(model, feed)
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    else:
        assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1

    def support(node: Node) -> Support:
        return Support.native(precision_of(node), why_real(node))

    return answer_query(model, graph, support)["node"]


CONV, MATMUL = PrecisionRestriction(operator="Conv"), PrecisionRestriction(operator="MatMul")


@pytest.mark.parametrize(
    ("model", "restriction"),
    [
        (conv(), CONV),
        (conv(i8), CONV),
        (conv(weights=dequantized(codes(8, 4, 3, 3), np.linspace(0.01, 0.1, 8))), CONV),
        (conv(weights=dequantized(codes(8, 4, 3, 3, kind=np.uint8), 0.02, np.uint8(128))), CONV),
        (conv(group=4), CONV),
        (
            transposed(strides=[2, 3], output_padding=[1, 0], pads=[1, 0, 1, 0]),
            PrecisionRestriction(operator="Conv", transposed=True),
        ),
        (transposed(0.02, group=2), PrecisionRestriction(operator="Conv", transposed=True)),
        (product(dequantized(codes(6, 8))), MATMUL),
        (product(dequantized(codes(8, 6), np.linspace(0.01, 0.1, 8)), transB=1), MATMUL),
        (
            product(dequantized(codes(6, 8), 0.1, np.int8(-7))),
            PrecisionRestriction(operator="MatMul", symmetric_weights=False),
        ),
        (
            conv(weights=dequantized(codes(8, 4, 3, 3, kind=np.uint8), np.full(8, 0.1), codes(8, kind=np.uint8))),
            PrecisionRestriction(operator="Conv", symmetric_weights=False),
        ),
    ],
)  # fmt: skip
def test_what_is_declared_is_computed_on_integers(model: Model, restriction: PrecisionRestriction) -> None:
    found = answer(model, restriction)
    assert (found.precision, found.precision_reason) == (model.parameters[0].output(0).element_type.name, "")


REASONS: list[tuple[Model, PrecisionRestriction, str]] = [
    (conv(), MATMUL, "ACME has no integer kernel for Conv"),
    (transposed(), CONV, "ACME has no integer kernel for transposed convolutions"),
    (
        transposed(group=2),
        PrecisionRestriction(operator="Conv", transposed=True),
        "groups of a transposed convolution share scales or zero points; expected one scale",
    ),
    (
        conv(),
        PrecisionRestriction(operator="Conv", activations=frozenset({i8})),
        "x is quantized to u8; ACME multiplies i8",
    ),
    (
        conv(weights=dequantized(codes(8, 4, 3, 3), 0.02, np.int8(3))),
        CONV,
        "weights of i8 have zero point 3; ACME multiplies symmetric weights only: here, zero point 0",
    ),
    (
        conv(weights=dequantized(codes(8, 4, 3, 3, kind=np.uint8))),
        CONV,
        "weights of u8 have zero point 0; ACME multiplies symmetric weights only: here, zero point 128",
    ),
    (
        product(dequantized(codes(6, 8), np.linspace(0.01, 0.1, 8), axis=1)),
        PrecisionRestriction(operator="MatMul", granularity=frozenset({Granularity.TENSOR})),
        "weights have a scale for each channel; ACME takes one for each tensor",
    ),
    (
        product(dequantized(codes(6, 8), np.full((3, 8), 0.1), axis=0, block_size=2)),
        MATMUL,
        "weights have a scale for each block; ACME takes one for each channel or one for each tensor",
    ),
    (
        product(dequantized(codes(6, 8), np.linspace(0.01, 0.1, 6), axis=0)),
        MATMUL,
        "weights have scales along axis 0; expected axis 1, of the results",
    ),
    (conv(group=2), PrecisionRestriction(operator="Conv", group_multiple=None), "the convolution has 2 groups"),
    (
        conv(group=2),
        PrecisionRestriction(operator="Conv", group_multiple=16),
        "groups have 2 input and 4 output channels; ACME takes multiples of 16",
    ),
    (
        conv(group=4, weights=dequantized(codes(4, 1, 3, 3))),
        PrecisionRestriction(operator="Conv", depthwise=False),
        "ACME has no integer kernel for depthwise convolutions",
    ),
    (
        conv(),
        PrecisionRestriction(operator="Conv", max_terms=35),
        "a sum has 36 products: more than the 35 of ACME",
    ),
    (
        conv(),
        PrecisionRestriction(operator="Conv", limits=lambda spec: f"{spec.op_type}: not on Mondays"),
        "Conv: not on Mondays",
    ),
    (conv(weights=dequantized(codes(8, 4, 3, 3), -0.5)), CONV, "a scale of the weights is -0.5"),
    (conv(weights=Constant(np.ones((8, 4, 3, 3), np.float32))), CONV, "the weights are not quantized"),
    (product(dequantized(codes(6, 8)), alpha=0.5), MATMUL, "alpha, beta or transA of the Gemm"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "restriction", "reason"), REASONS, ids=[reason for _, _, reason in REASONS])
def test_what_is_not_declared_stays_in_f32_with_the_reason(
    model: Model, restriction: PrecisionRestriction, reason: str
) -> None:
    found = answer(model, restriction)
    assert found.precision == "f32"
    assert found.precision_reason.startswith(reason)


def test_a_product_of_two_computed_matrices() -> None:
    x = Parameter(u8, [4, 4], "x")
    model = Model([ops.MatMul(dequantized(x), dequantized(x), friendly_name="node")], [x])
    assert answer(model, MATMUL).precision_reason == "both factors are computed; integer products take constant weights"
    found = answer(model, PrecisionRestriction(operator="MatMul", computed_weights=True))
    assert (found.precision, found.precision_reason) == ("u8", "")


@pytest.mark.parametrize("operator", ["Add", "Mul", "AveragePool"])
def test_arithmetic_of_maps_is_declared_by_operator(operator: str) -> None:
    x = Parameter(u8, [1, 2, 4, 4], "x")
    real = dequantized(x)
    node: Node
    if operator == "AveragePool":
        node = ops.AveragePool(real, kernel_shape=[2, 2], friendly_name="node")
    else:
        node = ops.create(operator, [real, dequantized(ops.MaxPool(x, kernel_shape=[1, 1]))], friendly_name="node")
    model = Model([ops.QuantizeLinear(node, Constant(np.float32(0.1)), Constant(np.uint8(3)))], [x])
    assert answer(model, PrecisionRestriction(operator=operator)).precision == "u8"
    others = [PrecisionRestriction(operator=each) for each in ("Add", "Mul", "AveragePool") if each != operator]
    found = answer(model, *others)
    assert found.precision == "f32"
    assert found.precision_reason == f"the device has no kernel that computes {operator} on integers here"


def test_what_is_not_quantized_needs_no_reason() -> None:
    x = Parameter(f32, [2, 3], "x")
    model = Model([ops.MatMul(x, Constant(np.ones((3, 4), np.float32)), friendly_name="node")], [x])
    graph = model.clone()
    init_node_info(graph)
    assert answer_query(model, graph, lambda n: Support.native(precision_of(n), why_real(n)))["node"] == Support.native(
        "f32"
    )


@pytest.mark.parametrize(
    ("restrictions", "message"),
    [
        ([CONV, CONV], "Conv has two restrictions"),
        ([PrecisionRestriction(operator="Relu")], "'Relu' is not one of Conv, MatMul"),
        ([PrecisionRestriction(operator="Conv", max_terms=0)], "max_terms of Conv is 0; expected at least 1"),
        (
            [PrecisionRestriction(operator="MatMul", granularity=frozenset({Granularity.BLOCK}))],
            "granularity of MatMul contains block",
        ),
    ],
)
def test_wrong_declarations_are_refused(restrictions: list[PrecisionRestriction], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        QuantizationCapabilities("ACME", restrictions)


def test_the_example_of_the_guide() -> None:
    """A vendor copies it."""
    text = GUIDE.read_text(encoding="utf-8").split("## Using the passes for a device")[1]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    namespace: dict[str, Any] = {}
    exec(compile(code[1], str(GUIDE), "exec", dont_inherit=True), namespace)
    graph = conv()
    init_node_info(graph)
    namespace["manager"].run_passes(graph)
    reasons = {why_real(node) for node in graph.ordered_nodes()} - {""}
    assert reasons == {"x is quantized to u8; ACME multiplies i8"}
    assert f"in f32: Conv `stem`: {reasons.pop()}" in text
