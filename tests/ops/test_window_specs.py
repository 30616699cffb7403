"""Specs of convolution and pooling: defaults, padding, and what is refused. All devices compute what these say."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from engine import ops
from engine.errors import OperatorSpecError
from engine.ir import Node, Parameter, PartialShape, TensorType, f32
from engine.ops.conv import Col2ImSpec, ConvSpec
from engine.ops.fused_activation import Activation
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.pool import MaxUnpoolSpec, PoolSpec
from engine.ops.windows import WindowGeometry


def node(op_type: str, *shapes: Any, domain: str = "", **attributes: Any) -> Node:
    """A node that no inference has seen; a shape is a list, or None for an unknown rank."""
    values = [Parameter(f32, PartialShape.dynamic() if shape is None else shape) for shape in shapes]
    types = [TensorType(f32, PartialShape.dynamic())]
    return Node(op_type, values, attributes, domain=domain, types=types)


def test_defaults_are_filled_in() -> None:
    spec = ConvSpec.of(node("Conv", [1, 4, 8, 8], [6, 2, 3, 3], group=2))
    assert (spec.strides, spec.dilations, spec.pads) == ((1, 1), (1, 1), (0, 0, 0, 0))
    assert (spec.kernel_shape, spec.auto_pad, spec.group, spec.transposed) == (None, "NOTSET", 2, False)
    assert (spec.output_padding, spec.output_shape, spec.activation) == ((0, 0), None, None)
    pool = PoolSpec.of(node("LpPool", [1, 4, 8], kernel_shape=(2,)))
    assert (pool.p, pool.ceil_mode, pool.count_include_pad, pool.storage_order) == (2, False, False, 0)


def test_attributes_of_an_unknown_rank_wait_for_the_lengths() -> None:
    spec = ConvSpec.of(node("Conv", None, None, strides=()))
    assert (spec.strides, spec.pads) == ((), ())
    assert spec.at((1, 2, 9, 9), (4, 2, 3, 3)).outputs == (7, 7)
    assert ConvSpec.of(node("Conv", None, None, pads=(1, 2))).strides == (1,)


def test_fused_convolutions_say_what_they_end_with() -> None:
    fused = node(
        "FusedConv", [1, 2, 8], [2, 4, 3], domain=INTERNAL_DOMAIN, transposed=1, activation="LeakyRelu",
        activation_parameters=(0.5,),
    )  # fmt: skip
    spec = ConvSpec.of(fused)
    assert spec.transposed
    assert spec.activation == Activation("LeakyRelu", (0.5,))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize(
    ("length", "kernel", "stride", "dilation"),
    [(8, 3, 1, 1), (5, 2, 2, 1), (8, 2, 2, 1), (8, 4, 3, 1), (5, 1, 3, 1), (8, 3, 2, 2)],
)
def test_padding_is_that_of_onnxruntime(auto_pad: str, length: int, kernel: int, stride: int, dilation: int) -> None:
    """The elements that a window meets, weighed by their place in it, tell where it stands."""
    if dilation > 1 and auto_pad.startswith("SAME"):
        dilation = 1  # onnxruntime has no other
    attributes = {"strides": (stride,), "dilations": (dilation,), "auto_pad": auto_pad}
    reach = (kernel - 1) * dilation + 1
    g = ConvSpec.of(node("Conv", [1, 1, length], [1, 1, kernel], **attributes)).at((1, 1, length), (1, 1, kernel))
    weights = 10.0 ** np.arange(kernel)
    full = np.pad(np.ones(length), (g.pads_begin[0], g.pads_end[0]))
    expected = [full[i * stride : i * stride + reach : dilation] @ weights for i in range(g.outputs[0])]
    single = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    found = run_onnxruntime(single, x=np.ones((1, 1, length)), w=weights.reshape(1, 1, kernel))
    assert found.reshape(-1).tolist() == expected


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": (1, 0), "output_padding": (1,)},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "VALID", "output_padding": (1,)},
        {"output_shape": (10,)},
        {"output_shape": (13,), "auto_pad": "SAME_UPPER"},
    ],
    ids=str,
)
def test_what_a_transposed_convolution_leaves_out(attributes: dict[str, Any]) -> None:
    """Each element of the input is spread over the output; positions before and after it are cut off."""
    given = {"strides": (3,), **attributes}
    spec = ConvSpec.of(node("ConvTranspose", [1, 1, 4], [1, 1, 4], **given))
    g = spec.at((1, 1, 4), (1, 1, 4))
    weights, x = np.array([1.0, 10.0, 100.0, 1000.0]), np.arange(1.0, 5.0)
    full = np.zeros(40)
    for place, value in enumerate(x):
        full[3 * place : 3 * place + 4] += value * weights
    expected = full[g.pads_begin[0] : g.pads_begin[0] + g.outputs[0]]
    assert g.pads_begin[0] + g.outputs[0] + g.pads_end[0] == 13  # what 4 elements are spread over
    single = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **given)
    found = run_onnxruntime(single, x=x.reshape(1, 1, -1), w=weights.reshape(1, 1, -1))
    assert found.reshape(-1).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("auto_pad", "before"), [("NOTSET", {-1: 0, -2: -1, -3: -1}), ("SAME_UPPER", {-1: -1, -2: -1, -3: -2})]
)
def test_a_transposed_convolution_beyond_its_full_result(auto_pad: str, before: dict[int, int]) -> None:
    """By ONNX's formula, a negative padding is of both sides; onnxruntime takes none."""
    for total, start in before.items():
        attributes = {"strides": (2,), "output_shape": (6 - total,), "auto_pad": auto_pad}
        made = node("ConvTranspose", [1, 1, 3], [1, 1, 2], **attributes)
        x, weights = np.array([[[1, 2, 3]]], np.float32), np.array([[[1, 10]]], np.float32)
        expected = np.zeros(6 - total)
        expected[-start : 6 - start] = [1, 10, 2, 20, 3, 30]
        assert ops.evaluate(made, [x, weights])[0].reshape(-1).tolist() == expected.tolist()


def run_onnxruntime(single: Any, **inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The output of a node of f32 tensors."""
    given = [helper.make_tensor_value_info(name, 1, value.shape) for name, value in inputs.items()]
    graph = helper.make_graph([single], "g", given, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {name: value.astype(np.float32) for name, value in inputs.items()})[0])


def test_a_last_window_that_is_cut_off_counts_in_ceil_mode() -> None:
    attributes = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 1, 0, 1)}
    whole = PoolSpec.of(node("MaxPool", [1, 1, 6, 6], **attributes)).at((1, 1, 6, 6))
    cut_off = PoolSpec.of(node("MaxPool", [1, 1, 6, 6], ceil_mode=1, **attributes)).at((1, 1, 6, 6))
    assert (whole.outputs, cut_off.outputs) == ((2, 3), (3, 4))
    assert (cut_off.pads_begin, cut_off.pads_end) == ((0, 1), (0, 1))


def test_axes_that_are_missing_come_in_front() -> None:
    g = WindowGeometry((8,), (3,), (3,), (2,), (1,), (0,), (1,)).with_axes(3)
    assert g == WindowGeometry((1, 1, 8), (1, 1, 3), (1, 1, 3), (1, 1, 2), (1, 1, 1), (0, 0, 0), (0, 0, 1))


def test_shapes_that_pooling_came_from() -> None:
    spec = MaxUnpoolSpec.of(
        node("MaxUnpool", [1, 3, 4, 4], [1, 3, 4, 4], kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 0))
    )
    assert spec.unpooled_shape((1, 3, 4, 4)) == (1, 3, 7, 5)
    assert Col2ImSpec.of(node("Col2Im", [1, 5, 5], [2], [2])).at((5, 5), (1, 5)).outputs == (5, 1)


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "message"),
    [
        ("Conv", ([1, 2, 8], [4, 2, 3]), {"strides": (1, 1)}, r"attribute strides is \[1, 1\]; allowed: 1 values"),
        ("Conv", ([1, 2, 8], [4, 2, 3]), {"dilations": (0,)}, r"attribute dilations is \[0\]; allowed: 1 values"),
        ("Conv", ([1, 2, 8], [4, 2, 3]), {"pads": (0, -1)}, r"attribute pads is \[0, -1\]; allowed: 2 values, 0 or"),
        ("Conv", (None, None), {"pads": (0, 1, 1)}, r"attribute pads is \[0, 1, 1\]; allowed: 2 values"),
        ("Conv", ([1, 2, 8], [4, 2, 3]), {"group": 0}, "attribute group is 0; allowed: 1 or more"),
        ("Conv", ([1, 2, 8], [4, 2, 3]), {"auto_pad": "SAME"}, "auto_pad is 'SAME'; allowed: NOTSET, VALID, SAME_"),
        ("Conv", ([1, 2], [4, 2]), {}, "input 0 has rank 2; expected 3 or more"),
        ("Conv", ([1, 2, 8], [4, 2, 3, 3]), {}, "input 1 has rank 4; expected .N, C, .... of rank 3 to fit input 0"),
        ("Conv", (None, [4, 2, 3, 3]), {"kernel_shape": (3,)}, "input 1 has rank 4; expected .* to fit kernel_shape"),
        ("ConvTranspose", ([1, 2, 8], [2, 2, 3]), {"output_padding": (1, 1)}, r"output_padding is \[1, 1\]; allow"),
        ("MaxPool", ([1, 2],), {"kernel_shape": (2,)}, "expected .N, C, .... of rank 3 to fit kernel_shape"),
        ("MaxPool", ([1, 2, 8],), {"kernel_shape": (0,)}, r"attribute kernel_shape is \[0\]; allowed: 1 values"),
        ("MaxPool", ([1, 2, 8],), {}, "required attribute 'kernel_shape' is missing"),
        ("MaxPool", ([1, 2, 8],), {"kernel_shape": (2,), "storage_order": 2}, "storage_order is 2; allowed: 0 or 1"),
        ("LpPool", ([1, 2, 8],), {"kernel_shape": (2,), "p": 0}, "attribute p is 0; allowed: 1 or more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(op_type: str, shapes: Any, attributes: dict[str, Any], message: str) -> None:
    cls = PoolSpec if op_type.endswith("Pool") else ConvSpec
    with pytest.raises(OperatorSpecError, match=message):
        cls.of(node(op_type, *shapes, **attributes))


def test_a_spec_is_of_its_operators_alone() -> None:
    x = Parameter(f32, [1, 2, 8])
    operators = r"AveragePool, LpPool, MaxPool, engine\.QuantizedAveragePool"
    with pytest.raises(OperatorSpecError, match=f"PoolSpec describes {operators}, not Relu"):
        PoolSpec.of(ops.Relu(x))


def test_activations_that_do_not_exist_are_refused() -> None:
    bad = node("FusedConv", [1, 2, 8], [2, 2, 3], domain=INTERNAL_DOMAIN, activation="Rely")
    with pytest.raises(OperatorSpecError, match=r"attribute activation is 'Rely'; allowed: .*Relu, Sigmoid"):
        ConvSpec.of(bad)
    bad = node("FusedConv", [1, 2, 8], [2, 2, 3], domain=INTERNAL_DOMAIN, activation="Clip")
    with pytest.raises(OperatorSpecError, match=r"activation_parameters is \[\]; allowed: \[min, max\] for Clip"):
        ConvSpec.of(bad)
