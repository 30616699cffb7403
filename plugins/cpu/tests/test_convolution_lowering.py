"""Convolution and pooling as the device runs them, natively, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest
from engine_cpu.layout import Layout
from engine_cpu.lowering.conv_candidates import ConvCandidates, ConvProblem
from engine_cpu.lowering.conv_geometry import ConvGeometry
from onnx import helper, numpy_helper

from engine.core import Core
from engine.errors import UnsupportedError
from engine.native import default_isa
from engine.testing.values import values as random_values

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, np.dtype[Any]]
EPSILON = float(np.finfo(np.float32).eps)


def named(name: str, *shape: int) -> Array:
    return random_values(*shape, seed=name, is_uniform=True)


def network(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Array], constants: Mapping[str, Array], dynamic: bool = False
) -> onnx.ModelProto:
    """A model whose output is `y`; `dynamic`: with unknown lengths of all but the channels."""
    given = [
        helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT, [None if dynamic and i != 1 else n for i, n in enumerate(array.shape)]
        )
        for name, array in inputs.items()
    ]
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", given, [out], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run_cpu(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Array:
    compiled = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    return np.asarray(compiled(dict(inputs))["y"])


def run_ort(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(inputs))[0])


def check(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    length: int,
    dynamic: bool = False,
) -> None:
    """Each output sums `length` products; both sides have rounding errors, Winograd's ten times as large."""
    model = network(nodes, inputs, constants, dynamic)
    actual, expected = run_cpu(model, inputs), run_ort(model, inputs)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=EPSILON * length, atol=50 * EPSILON * max(1, length) ** 0.5)


@pytest.mark.parametrize(
    "activation",
    [
        ("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("Sigmoid", {}), ("Tanh", {}), ("HardSigmoid", {}),
        ("HardSwish", {}), ("Elu", {}), ("Mish", {}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["direct", "depthwise", "transposed", "planar"])
def test_fused_ends(activation: tuple[str, dict[str, Any]], kind: str) -> None:
    """A bias, a residual and an activation become one step with the convolution."""
    op, attributes = activation
    channels = 3 if kind == "planar" else 32
    x, r = named("x", 2, channels, 8, 9), named("r", 2, 32, 8, 9)
    shape = {"depthwise": (32, 1, 3, 3), "transposed": (32, 32, 3, 3)}.get(kind, (32, channels, 3, 3))
    group = 32 if kind == "depthwise" else 1
    convolution = "ConvTranspose" if kind == "transposed" else "Conv"
    nodes = [
        helper.make_node(convolution, ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], group=group),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node(op, ["s"], ["y"], **attributes),
    ]
    constants = {"w": named("w", *shape), "b": named("b", 32)}
    model = network(nodes, {"x": x, "r": r}, constants)
    check(nodes, {"x": x, "r": r}, constants, 9 * channels)
    compiled = Core().compile_model(model, "CPU", {"PERF_COUNT": True})
    assert [node.op_type for node in compiled.graph.ordered_nodes() if node.domain == "engine"] == ["FusedConv"]


def test_a_residual_is_not_lost_where_it_is_read_again() -> None:
    """The result may reuse the memory of its residual only if that has no other consumer."""
    x = named("x", 1, 16, 8, 8)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "a"], ["s"]),
        helper.make_node("Conv", ["s", "v"], ["t"]),
        helper.make_node("Add", ["t", "a"], ["y"]),
    ]
    check(nodes, {"x": x}, {"v": named("v", 16, 16, 1, 1) / 4, "w": named("w", 16, 16, 3, 3) / 8}, 16 * 9)


def test_unknown_lengths() -> None:
    """Weights are packed once for all shapes."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    w = named("w", 32, 16, 3, 3)
    model = network([node], {"x": named("x", 1, 16, 8, 8)}, {"w": w}, dynamic=True)
    compiled = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    for shape in ((1, 16, 8, 8), (2, 16, 5, 9), (1, 16, 1, 1), (0, 16, 4, 4)):
        x = named("x", *shape)
        expected = run_ort(model, {"x": x}) if shape[0] else np.empty((0, 32, 4, 4), np.float32)
        np.testing.assert_allclose(compiled({"x": x})["y"], expected, rtol=EPSILON * 144, atol=240 * EPSILON)


@pytest.mark.parametrize(
    ("node", "shape", "constants", "message"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"]), (1, 2, 2, 2, 1, 2, 2), {"w": (3, 2, *[1] * 5)}, "5 spatial dim"),
        (helper.make_node("Conv", ["x", "w"], ["y"], strides=[5000, 1]), (1, 2, 4, 4), {"w": (3, 2, 1, 1)}, "strides"),
        (helper.make_node("GlobalLpPool", ["x"], ["y"], p=3), (1, 2, 4, 4, 4), {}, "p is 3"),
    ],
)
def test_what_has_no_kernel_is_reported(
    node: onnx.NodeProto, shape: tuple[int, ...], constants: dict[str, tuple[int, ...]], message: str
) -> None:
    inputs = {"x": named("x", *shape)}
    weights = {name: named(name, *shape) for name, shape in constants.items()}
    model = network([node], inputs, weights)
    with pytest.raises(UnsupportedError, match=message):
        run_cpu(model, inputs)
    actual = np.asarray(Core().compile_model(model, "CPU")(inputs)["y"])
    np.testing.assert_allclose(actual, run_ort(model, inputs), rtol=1e-5, atol=1e-5)


def geometry(channels: int, out: int, size: int, kernel: int = 3, groups: int = 1) -> ConvGeometry:
    pad = kernel // 2
    return ConvGeometry(
        1, groups, channels, out, (size, size), (size, size), (kernel, kernel), (1, 1), (1, 1), (pad, pad, pad, pad)
    )


def default(problem: ConvGeometry, layout: Layout = Layout.BLOCKED) -> str:
    return ConvCandidates(ConvProblem(problem, {}, True, False, layout, "avx512", 2))[0].name


def test_the_default_is_what_wins_on_large_and_small_maps() -> None:
    """COMPILE_EFFORT=none measures nothing, but whole networks must still be fast."""
    assert default(geometry(64, 64, 56)).startswith("winograd_f32 output_tile4")
    assert default(geometry(128, 128, 112)).startswith("winograd_f32 output_tile4")
    assert default(geometry(64, 256, 56, kernel=1)) == "conv_blocked_f32 vectors0"
    assert default(geometry(128, 128, 28, groups=128)) == "depthwise_f32"
    assert default(geometry(3, 64, 112, kernel=7), Layout.PLAIN) == "conv_planar_f32 vectors0"


def test_dilated_convolutions_by_winograds_algorithm() -> None:
    """On the maps of pixels that are as far apart as the dilation; if these are too small, tap by tap."""

    def first(size: int, dilation: int) -> str:
        pads = (dilation,) * 4
        dilated = ConvGeometry(
            1, 1, 128, 128, (size, size), (size, size), (3, 3), (1, 1), (dilation, dilation), pads
        )  # fmt: skip
        return default(dilated)

    assert first(28, 2).startswith("winograd_f32 output_tile4")
    assert first(65, 12).startswith("winograd_f32")
    assert first(28, 24) == "conv_taps_f32 vectors0", "most taps are in the padding"
    x, w = named("x", 2, 32, 21, 22), named("w", 48, 32, 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[3, 4], pads=[3, 4, 3, 4])
    check([node], {"x": x}, {"w": w}, 9 * 32)


@pytest.mark.parametrize(("dilation", "pad", "stride"), [(9, 9, 1), (30, 30, 1), (6, 6, 2), (8, 3, 1), (7, 20, 1)])
def test_taps_in_the_padding(dilation: int, pad: int, stride: int) -> None:
    """A window may be larger than the map, and there may be no tap that all outputs have."""
    x, w, b, r = named("x", 2, 40, 14, 16), named("w", 48, 40, 3, 3), named("b", 48), named("r", 1, 48, 1, 1)
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["c"], dilations=[dilation] * 2, pads=[pad] * 4, strides=[stride] * 2
    )  # fmt: skip
    rest = [helper.make_node("Add", ["c", "r"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    check([node, *rest], {"x": x}, {"w": w, "b": b, "r": r}, 9 * 40)


def test_tiles_come_first_where_the_instruction_set_has_them() -> None:
    def first(problem: ConvGeometry, layout: Layout = Layout.BLOCKED_BF16, isa: str = "amx") -> str:
        blocked = Layout.BLOCKED_BF16
        given = ConvProblem(problem, {}, True, False, layout, isa, 2, blocked, is_bf16=True)
        return ConvCandidates(given)[0].kernel

    assert first(geometry(64, 64, 56)) == "conv_amx_bf16"
    assert first(geometry(3, 64, 112, kernel=7), Layout.PLAIN) == "conv_amx_bf16"
    assert first(geometry(3, 64, 112, kernel=9), Layout.PLAIN) == "conv_planar_bf16", "a kernel row fits no step"
    assert first(geometry(128, 128, 28, groups=128)) == "depthwise_bf16"
    assert first(geometry(64, 64, 28, groups=2)) == "conv_blocked_bf16"
    assert first(geometry(64, 64, 56), isa="avx512bf16") != "conv_amx_bf16"


@pytest.mark.parametrize(("groups", "width"), [(2, 32), (4, 32), (7, 24), (6, 20)])
def test_groups_by_winograds_algorithm(groups: int, width: int) -> None:
    """Wide groups, several narrow groups as one with zeros between them, and groups that never fill blocks."""
    channels = width * groups
    problem = ConvProblem(geometry(channels, channels, 28, groups=groups), {}, True, True, Layout.BLOCKED,
                          default_isa(), 2)  # fmt: skip
    best = ConvCandidates(problem)[0]
    assert best.kernel == ("conv_lanes_f32" if width == 20 else "winograd_f32")
    assert best.attributes.get("merge") == {32: 1, 24: 2, 20: None}[width]
    x, r = named("x", 2, channels, 28, 27), named("r", 2, channels, 28, 27)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], group=groups),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    constants = {"w": named("w", channels, width, 3, 3), "b": named("b", channels)}
    check(nodes, {"x": x, "r": r}, constants, 9 * width)
    blob = BytesIO()
    compiled = Core().compile_model(network(nodes, {"x": x, "r": r}, constants), "CPU")
    compiled.export_model(blob)
    imported = Core().import_model(blob.getvalue(), "CPU")
    np.testing.assert_array_equal(imported({"x": x, "r": r})["y"], compiled({"x": x, "r": r})["y"])


def test_weights_that_two_convolutions_divide_differently_are_packed_for_each() -> None:
    x, z = named("x", 1, 64, 28, 28), named("z", 1, 128, 28, 28)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("Conv", ["z", "w"], ["b"], pads=[1, 1, 1, 1], group=4),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    check(nodes, {"x": x, "z": z}, {"w": named("w", 128, 32, 3, 3)}, 2 * 9 * 32)


def test_groups_that_winograds_algorithm_does_not_compute() -> None:
    def first(problem: ConvGeometry) -> str:
        return ConvCandidates(ConvProblem(problem, {}, True, False, Layout.BLOCKED, default_isa(), 2))[0].kernel

    assert first(geometry(128, 128, 28, kernel=5, groups=2)) == "conv_blocked_f32", "not 3x3"
    assert first(geometry(1024, 1024, 7, groups=32)) == "conv_blocked_f32", "its weights are four times as large"
    assert first(geometry(888, 888, 7, groups=37)) == "conv_lanes_f32"


@pytest.mark.parametrize(
    ("groups", "ins", "outs", "stride", "dilation"),
    [(32, 4, 4, 1, 1), (8, 8, 8, 2, 1), (5, 24, 24, 2, 1), (8, 24, 8, 1, 1), (20, 16, 16, 1, 1), (6, 12, 12, 1, 2)],
)
def test_groups_of_few_channels(groups: int, ins: int, outs: int, stride: int, dilation: int) -> None:
    """Each lane multiplies the inputs of its own group; no group is padded to blocks."""
    x = named("x", 2, groups * ins, 14, 14)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[dilation] * 4, strides=[stride] * 2, group=groups,
                         dilations=[dilation] * 2),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]  # fmt: skip
    constants = {"w": named("w", groups * outs, ins, 3, 3), "b": named("b", groups * outs)}
    check(nodes, {"x": x}, constants, 9 * ins)
    problem = replace(
        geometry(groups * ins, groups * outs, 14, groups=groups), strides=(stride,) * 2, dilations=(dilation,) * 2
    )
    kernels = [each.kernel for each in ConvCandidates(ConvProblem(problem, {}, True, False, Layout.BLOCKED, "avx2", 1))]
    assert kernels[0] == "conv_lanes_f32"


@pytest.mark.parametrize(("groups", "ins", "outs", "size"), [(4, 60, 15, 9), (8, 12, 12, 14), (3, 20, 40, 4)])
def test_pointwise_groups(groups: int, ins: int, outs: int, size: int) -> None:
    """As in ShuffleNet: groups that are not whole blocks are read where they are."""
    x = named("x", 2, groups * ins, size, size)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], group=groups), helper.make_node("Relu", ["c"], ["y"])]
    check(nodes, {"x": x}, {"w": named("w", groups * outs, ins, 1, 1), "b": named("b", groups * outs)}, ins)
    problem = geometry(groups * ins, groups * outs, size, kernel=1, groups=groups)
    kernels = [each.kernel for each in ConvCandidates(ConvProblem(problem, {}, True, False, Layout.BLOCKED, "avx2", 1))]
    assert "conv_pointwise_groups_f32" in kernels
    assert size < 9 or kernels[0] == "conv_pointwise_groups_f32"


def test_groups_that_lanes_do_not_divide_have_another_kernel() -> None:
    problem = ConvProblem(geometry(96, 96, 14, groups=16), {}, True, False, Layout.BLOCKED, "avx512", 1)
    assert "conv_lanes_f32" not in [each.kernel for each in ConvCandidates(problem)]


def test_candidates_are_few_and_apart() -> None:
    for problem in (geometry(64, 64, 56), geometry(512, 512, 7), geometry(16, 24, 9, 1), geometry(24, 24, 9, 3, 3)):
        names = [each.name for each in ConvCandidates(ConvProblem(problem, {}, True, True, Layout.BLOCKED, "avx2", 1))]
        assert 1 <= len(names) <= 8
        assert len(set(names)) == len(names)
