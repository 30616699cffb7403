"""Models whose tensors are f16 or bf16, on devices with and without such arithmetic: stored so, computed in f32.

If a case fails here, a model that was exported in 16 bits gives its users wrong numbers, or does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from numpy.typing import NDArray

from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, Result
from engine.ir.element_type import ElementType, bf16, f16, f32
from engine.plugin_api import SupportLevel

UNITS = {f16: 2.0**-11, bf16: 2.0**-8}
"""The relative errors of rounding to these types."""
Build = Callable[..., Node]
PAIR = ("TEMPLATE", "OPENCL")


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind, without arithmetic in f16."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=request.param, has_fp16=False))
    return str(request.param)


@pytest.fixture(params=[f16, bf16], ids=str)
def real(request: pytest.FixtureRequest) -> ElementType:
    """The type of a model's floating-point values."""
    found: ElementType = request.param
    return found


def values_of(*shape: int) -> NDArray[np.float16]:
    """Numbers of f16 that bf16 also has."""
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape)
    return numbers.astype(bf16.numpy).astype(np.float16)


def answers(device: str, build: Build, values: Sequence[NDArray[Any]], real: ElementType) -> list[Any]:
    """Of a model whose floating-point inputs, given in f16, are of one type."""
    given = [value.astype(real.numpy) if value.dtype == np.float16 else value for value in values]
    parameters = [Parameter(ElementType.from_numpy(v.dtype), v.shape, f"x{i}") for i, v in enumerate(given)]
    results = [Result(output) for output in build(*parameters).outputs]
    network = Core().compile_model(Model(results, parameters, name="case"), device)
    return list(network(given).values())


def check(real: ElementType, build: Build, *values: NDArray[Any], roundings: int = 1) -> None:
    """The answer equals CPU's in f32, up to rounding to `real`, by half a unit of the largest value each."""
    pairs = zip(answers("OPENCL", build, values, real), answers("CPU", build, values, f32), strict=True)
    for found, expected in pairs:
        assert found.dtype == (real.numpy if expected.dtype == np.float32 else expected.dtype)
        largest = float(np.max(np.abs(expected), initial=0))
        np.testing.assert_allclose(
            found.astype(expected.dtype), expected, rtol=0, atol=1.01 * roundings * UNITS[real] * largest
        )


def made(op_type: str, *constants: NDArray[Any], **attributes: Any) -> Build:
    """An operator on inputs followed by constants, which have the inputs' type if that is f16."""

    def build(*inputs: Parameter) -> Node:
        real = inputs[0].output(0).element_type.numpy
        others = [Constant(c.astype(real) if c.dtype == np.float16 else c) for c in constants]
        return ops.create(op_type, [*inputs, *others], attributes)

    return build


# -- products and convolutions: sums in f32, one rounding at the end --------------------------------------------


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(
    ("x", "y"), [((17, 200), (200, 33)), ((1, 70), (70, 5)), ((3, 20, 16), (3, 16, 37)), ((70, 40), (40, 130))]
)
def test_products(kind: str, real: ElementType, x: tuple[int, ...], y: tuple[int, ...], is_constant: bool) -> None:
    if is_constant:
        check(real, made("MatMul", values_of(*y)), values_of(*x))
    else:
        check(real, made("MatMul"), values_of(*x), values_of(*y))


def test_gemm_with_bias(kind: str, real: ElementType) -> None:
    check(real, made("Gemm", values_of(50, 21), values_of(35, 1), transB=1, alpha=0.5), values_of(35, 21))


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(
    ("op_type", "x", "w", "attributes"),
    [
        ("Conv", (2, 8, 14, 9), (16, 8, 1, 1), {}),
        ("Conv", (1, 16, 9, 9), (24, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("Conv", (1, 3, 20, 21), (17, 3, 5, 5), {"strides": [2, 2]}),
        ("Conv", (2, 8, 12, 13), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
        ("Conv", (1, 4, 20, 31), (8, 4, 3, 3), {}),
        ("ConvTranspose", (1, 6, 7, 8), (6, 4, 3, 3), {"strides": [2, 2]}),
    ],
)
def test_convolutions(
    kind: str,
    real: ElementType,
    op_type: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    attributes: dict[str, Any],
    is_constant: bool,
) -> None:
    channels = w[0] if op_type == "Conv" else w[1]
    others = [values_of(*w), values_of(channels)]

    def build(*inputs: Parameter) -> Node:
        return ops.Relu(made(op_type, *others[len(inputs) - 1 :], **attributes)(*inputs))

    check(real, build, values_of(*x), *([] if is_constant else others))


# -- everything else ----------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Build, tuple[NDArray[Any], ...]]] = {
    "Softmax": (made("Softmax", axis=-1), (values_of(7, 60),)),
    "LogSoftmax": (made("LogSoftmax", axis=1), (values_of(3, 9, 5),)),
    "LayerNormalization": (made("LayerNormalization", values_of(60), values_of(60)), (values_of(7, 60),)),
    "LayerNormalization of one": (made("LayerNormalization", values_of(1), axis=1), (values_of(7, 6, 10),)),
    "InstanceNormalization": (made("InstanceNormalization", values_of(3), values_of(3)), (values_of(2, 3, 9, 9),)),
    "BatchNormalization": (
        made("BatchNormalization", values_of(3), values_of(3), values_of(3), np.abs(values_of(3))),
        (values_of(2, 3, 9, 9),),
    ),
    "LpNormalization": (made("LpNormalization", axis=1), (values_of(2, 30, 4),)),
    "LRN": (made("LRN", size=3), (values_of(2, 9, 4, 4),)),
    "MaxPool": (made("MaxPool", kernel_shape=[3, 3], strides=[2, 2]), (values_of(2, 3, 9, 9),)),
    "GlobalAveragePool": (made("GlobalAveragePool"), (values_of(2, 3, 40, 40),)),
    "ReduceSum": (made("ReduceSum", np.array([1])), (values_of(3, 3000),)),
    "ReduceLogSumExp": (made("ReduceLogSumExp", np.array([1])), (values_of(3, 30),)),
    "ReduceL2": (made("ReduceL2", np.array([0, 2])), (values_of(3, 30, 5) * 100,)),
    "CumSum": (made("CumSum", np.array(1)), (values_of(3, 300),)),
    "TopK": (made("TopK", np.array([4]), axis=1), (values_of(5, 30),)),
    "ArgMax": (made("ArgMax", axis=1), (values_of(5, 30),)),
    "Hardmax": (made("Hardmax", axis=1), (values_of(5, 30),)),
    "OneHot": (
        lambda x: ops.create("OneHot", [Constant(np.array([1, 2])), Constant(np.array(4)), x], {}),
        (values_of(2),),
    ),
    "Resize": (made("Resize", np.zeros(0, np.float32), np.array([1, 2, 1.5], np.float32), mode="linear"),
               (values_of(2, 9, 8),)),
    "ScatterElements": (
        made("ScatterElements", np.array([[1, 0, 1]]), values_of(1, 3), axis=0, reduction="add"), (values_of(3, 3),)
    ),
    "DequantizeLinear": (
        lambda s: ops.create("DequantizeLinear", [Constant(np.arange(9, dtype=np.int8)), s], {}), (np.float16(0.375),)
    ),
    # Recurrent weights that shrink the last state, and so do not amplify its rounding.
    "LSTM": (made("LSTM", values_of(1, 20, 6), values_of(1, 20, 5) / 8, values_of(1, 40), hidden_size=5),
             (values_of(30, 2, 6),)),
    "GRU": (made("GRU", values_of(1, 15, 6), values_of(1, 15, 5) / 8, hidden_size=5), (values_of(30, 2, 6),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, real: ElementType) -> None:
    """Of recurrent layers the projection of the inputs is rounded once more."""
    build, values = CASES[name]
    check(
        real,
        build,
        *map(np.asarray, values),
        roundings=4 if name in ("LSTM", "GRU", "Resize", "ScatterElements") else 1,
    )


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_arithmetic_is_rounded_once(op_type: str, real: ElementType) -> None:
    x, y = values_of(40, 30), values_of(30)
    (found,) = answers("OPENCL", made(op_type), (x, y), real)
    functions = {
        "Add": "add",
        "Sub": "subtract",
        "Mul": "multiply",
        "Div": "divide",
        "Max": "maximum",
        "Min": "minimum",
    }
    exact = getattr(np, functions[op_type])(x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_array_equal(found, exact.astype(real.numpy))


def test_a_chain_is_rounded_at_its_end() -> None:
    """Intermediate values are f32: they neither overflow nor are rounded."""
    x = np.array([300, -300, 0.1], np.float16)
    (found,) = answers("OPENCL", lambda x: ops.Sqrt(ops.Mul(x, x)), (x,), f16)
    np.testing.assert_array_equal(found, np.abs(x))


@pytest.mark.parametrize("is_continued", [False, True])
def test_casts_round_to_nearest(real: ElementType, is_continued: bool) -> None:
    """Also if a chain continues in f32: a cast must round. Values that are too large become inf."""
    unit = UNITS[real]
    x = np.array([1 + unit, 1 + 3 * unit, 65519, 65520, -1e9, 2.0**-24, 2.0**-26, 3.4e38, np.nan, np.inf], np.float32)

    def build(x: Parameter) -> Node:
        narrow = ops.create("Cast", [x], {"to": real.onnx})
        return ops.Neg(ops.create("Cast", [narrow], {"to": f32.onnx})) if is_continued else narrow

    parameter = Parameter(f32, x.shape, "x")
    network = Core().compile_model(Model([Result(build(parameter))], [parameter]), "OPENCL")
    (found,) = network([x]).values()
    with np.errstate(over="ignore"):
        expected = x.astype(real.numpy)
    wanted = expected.astype(np.float32)
    np.testing.assert_array_equal(found.astype(np.float32), -wanted if is_continued else wanted)


@pytest.mark.parametrize("scale", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("precision", [0, f32.onnx, f16.onnx, bf16.onnx])
def test_quotients_are_rounded_before_they_become_integers(scale: ElementType, precision: int) -> None:
    """To the configured precision, else the scale's type: in 16 bits many become ties. NaN maps to the zero point."""
    x = np.linspace(-9, 9, 4001).astype(scale.numpy)
    x[7] = np.nan
    parameter = Parameter(ElementType.from_numpy(x.dtype), x.shape, "x")
    constants = [Constant(np.asarray(0.0877, scale.numpy)), Constant(np.int8(-17))]
    model = Model(
        [Result(ops.create("QuantizeLinear", [parameter, *constants], {"precision": precision}))], [parameter]
    )
    assert not Core().query_model(model, "OPENCL").at(SupportLevel.REFUSED)
    found, expected = (Core().compile_model(model, device)([x])[0] for device in ("OPENCL", "TEMPLATE"))
    np.testing.assert_array_equal(found, expected)


# -- movement: every bit stays -----------------------------------------------------------------------------------

MOVEMENTS: dict[str, Build] = {
    "Transpose": made("Transpose", perm=[1, 0]),
    "Concat": lambda x: ops.create("Concat", [x, x], {"axis": 1}),
    "Slice": made("Slice", np.array([7]), np.array([0]), np.array([0]), np.array([-2])),
    "Pad": made("Pad", np.array([1, 0, 0, 2]), np.array(-7.5, np.float16)),
    "Expand": made("Expand", np.array([3, 256, 256])),
    "Tile": made("Tile", np.array([2, 1])),
    "Gather": made("Gather", np.array([3, -1, 0]), axis=1),
    "GatherND": made("GatherND", np.array([[3], [255]])),
    "GatherElements": made("GatherElements", np.array([[3, -1, 0]]), axis=1),
    "ScatterND": made("ScatterND", np.array([[3]]), np.full((1, 256), 1.5, np.float16)),
    "Trilu": made("Trilu", upper=1),
    "Identity": made("Identity"),
    "Split": made("Split", num_outputs=2, axis=0),
    "DepthToSpace": lambda x: ops.create(
        "DepthToSpace", [ops.create("Reshape", [x, Constant(np.array([1, 16, 64, 64]))], {})], {"blocksize": 2}
    ),
}


def check_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """All bits are equal, but a NaN may be another one."""
    with np.errstate(invalid="ignore"):  # of signalling NaN
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(~np.isnan(found), numbers)
    np.testing.assert_array_equal(found.view(np.uint16)[numbers], expected.view(np.uint16)[numbers])


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movement_keeps_all_values(name: str, real: ElementType) -> None:
    """All 65536 patterns: the smallest numbers and both zeros, too; a NaN stays one."""
    x = np.arange(1 << 16, dtype=np.uint16).view(real.numpy).reshape(256, 256)
    found, expected = (answers(device, MOVEMENTS[name], (x,), real) for device in ("OPENCL", "TEMPLATE"))
    for got, right in zip(found, expected, strict=True):
        check_same(got, right)


def test_the_nearest_element_is_taken_as_it_is(real: ElementType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(real.numpy).reshape(256, 256)
    scales = [np.zeros(0, np.float32), np.array([1, 2], np.float32)]
    (found,) = answers("OPENCL", made("Resize", *scales, mode="nearest"), (x,), real)
    check_same(found, np.repeat(x, 2, axis=1))


# -- what is refused ------------------------------------------------------------------------------------------------


def test_types_that_do_not_match_are_refused_by_name() -> None:
    """BatchNormalization may have statistics of another type than the input."""
    x = Parameter(f16, (1, 2, 3), "x")
    statistics = [Constant(np.ones(2, np.float32)) for _ in range(4)]
    node = ops.create("BatchNormalization", [x, *statistics])
    node.friendly_name = "norm"
    model = Model([Result(node.output(0))], [x])
    answer = Core().query_model(model, "OPENCL")
    assert set(answer.at(SupportLevel.REFUSED)) == {"norm"}
    with pytest.raises(UnsupportedError, match=r"`norm` \(element type\).*f32.*f16; expected one type"):
        Core().compile_model(model, "OPENCL")


@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_a_mean_of_losses_whose_sums_do_not_fit(op_type: str, real: ElementType) -> None:
    """The sum of the weights of 40,000 labels is beyond f16, and in bf16 both sums would be rounded."""
    random = np.random.default_rng(5)
    scores = random.uniform(-3, -1, (40_000, 2)).astype(np.float16)
    labels, weights = random.integers(0, 2, 40_000), np.array([2, 3], np.float16)
    wanted, found = (answers(device, getattr(ops, op_type), [scores, labels, weights], real)[0] for device in PAIR)
    assert np.isfinite(wanted.astype(np.float32))
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=2 * UNITS[real])
