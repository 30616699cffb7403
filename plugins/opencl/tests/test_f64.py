"""Models that compute in f64, and devices without such arithmetic.

If a case fails here, a model whose positions or statistics are f64 gives wrong numbers, loses their precision, or does
not run, or a device whose OpenCL has no f64 fails to compile it instead of saying so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import device_of
from engine_opencl.expressions import for_type
from engine_opencl.source import kernel_text
from engine_opencl.transform import prepare_model

from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import Constant, ElementType, Model, Node, Parameter, Result
from engine.ir.element_type import bf16, f8e4m3fn, f8e5m2, f8e8m0, f16, f32, f64, i64, u8, u64
from engine.plugin_api import SupportLevel

Build = Callable[..., Node]
UNIT = 2.0**-53


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def made(op_type: str, *constants: Any, **attributes: Any) -> Build:
    return lambda *inputs: ops.create(op_type, [*inputs, *map(Constant, constants)], attributes)


def answers(device: str, build: Build, *given: np.ndarray) -> list[np.ndarray]:
    parameters = [Parameter(ElementType.from_numpy(x.dtype), x.shape, f"x{i}") for i, x in enumerate(given)]
    model = Model([Result(output) for output in build(*parameters).outputs], parameters, name="case")
    return list(Core().compile_model(model, device)(list(given)).values())


@pytest.fixture
def without_f64(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, has_fp64=False))


# -- arithmetic -------------------------------------------------------------------------------------------------------

# OpenCL's functions are off by up to 16 units in the last place (OpenCL C, relative error as ULPs).
ELEMENTWISE = [
    "Abs", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
    "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Tan",
    "Tanh", "ThresholdedRelu", "Celu", "Gelu",
]  # fmt: skip


@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_functions_keep_the_precision_of_f64(op_type: str) -> None:
    x = np.concatenate([values(5, 40).ravel(), [-30.0, -9.0, 20.5, 21.0, 36.5, 40.0]])
    (found,), (expected,) = (answers(device, made(op_type), x) for device in ("OPENCL", "TEMPLATE"))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=64 * UNIT, atol=64 * UNIT)


def test_gelu_by_tanh_keeps_the_precision_of_f64() -> None:
    build = made("Gelu", approximate="tanh")
    (found,), (expected,) = (answers(device, build, values(5, 40)) for device in ("OPENCL", "TEMPLATE"))
    np.testing.assert_allclose(found, expected, rtol=64 * UNIT, atol=64 * UNIT)


CASES: dict[str, tuple[Build, tuple[np.ndarray, ...]]] = {
    **{name: (made(name), (values(4, 9), values(9))) for name in (
        "Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Less", "Equal", "GreaterOrEqual", "PRelu",
    )},
    "Mod": (made("Mod", fmod=1), (values(4, 9), values(9))),
    "Pow": (made("Pow"), (np.abs(values(4, 9)), values(9))),
    "Pow of an integer": (made("Pow"), (np.arange(9), np.array([0.5, 1.5, 3.0]).reshape(3, 1))),
    "Pow of f32": (made("Pow"), (np.abs(values(9)).astype(np.float32), values(9))),
    "Where": (lambda x, y: ops.Where(ops.Less(x, y), x, y), (values(4, 9), values(9))),
    "IsNaN": (made("IsNaN"), (np.array([1.0, np.nan]),)),
    "IsInf": (made("IsInf"), (np.array([1.0, np.inf, -np.inf]),)),
    "Clip": (made("Clip", np.float64(-0.1), np.float64(0.3)), (values(40),)),
    "Softmax": (made("Softmax", axis=1), (values(3, 700),)),
    "LogSoftmax": (made("LogSoftmax", axis=0), (values(30, 7),)),
    "Hardmax": (made("Hardmax", axis=1), (values(3, 70),)),
    **{name: (made(name, np.array([1])), (values(3, 700, 2),)) for name in (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSumExp",
    )},
    "ReduceMean of many": (made("ReduceMean", np.array([0])), (values(200_000),)),
    "ReduceProd": (made("ReduceProd", np.array([1])), (values(3, 7),)),
    "ArgMax": (made("ArgMax", axis=1), (values(5, 30),)),
    "TopK": (made("TopK", np.array([4]), axis=1), (values(5, 30),)),
    "TopK of long rows": (made("TopK", np.array([4]), axis=1), (values(2, 5000),)),
    "CumSum": (made("CumSum", np.array(1)), (values(3, 300),)),
    "ScatterElements": (
        made("ScatterElements", np.array([[1, 0, 1]]), values(1, 3), axis=0, reduction="max"), (values(3, 3),)
    ),
    "OneHot": (made("OneHot", np.array(4), np.array([0.5, 1.5])), (np.array([1.0, 3.0, -1.0]),)),
    "MatMul": (made("MatMul"), (values(2, 17, 40), values(40, 9))),
    "MatMul of a vector": (made("MatMul"), (values(40), values(3, 40, 9))),
    "MatMul and more": (
        lambda x: ops.Relu(ops.Add(ops.MatMul(x, Constant(values(40, 9))), Constant(values(9)))), (values(17, 40),)
    ),
    "Gemm": (made("Gemm", values(21, 50), values(35, 1), transA=1, alpha=0.5, beta=0.25), (values(21, 35),)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("name", CASES)
def test_operators_keep_the_precision_of_f64(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of n numbers below 4 are off by up to n roundings: here, by far fewer, as roundings cancel."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=kind))
    build, given = CASES[name]
    for found, expected in zip(answers("OPENCL", build, *given), answers("TEMPLATE", build, *given), strict=True):
        assert found.dtype == expected.dtype
        unit = 2.0**-24 if expected.dtype == np.float32 else UNIT
        largest = float(np.max(np.abs(expected), initial=1))
        np.testing.assert_allclose(found, expected, rtol=0, atol=200 * unit * largest)


def test_numbers_of_code_are_those_of_f64() -> None:
    """0.1f is another number than 0.1; numbers from a model's attributes are exactly f32 numbers."""
    assert for_type("clip(0.1f * {0}, 0x1.99999ap-4f)", "double") == "clip_double(0.1 * {0}, 0x1.99999ap-4f)"
    assert for_type("clip(0.1f * {0})", "float") == "clip(0.1f * {0})"


# -- conversions ------------------------------------------------------------------------------------------------------

# Just above the middle of two neighbours: rounded to f32 first, they would be in the middle, and then rounded to even.
TIES = {f16: 1 + 2.0**-11 + 2.0**-40, bf16: 1 + 2.0**-8 + 2.0**-40, f8e4m3fn: 1 + 2.0**-4 + 2.0**-40,
        f8e5m2: 1 + 2.0**-3 + 2.0**-40}  # fmt: skip
ABOVE = {f16: 1 + 2.0**-10, bf16: 1 + 2.0**-7, f8e4m3fn: 1.125, f8e5m2: 1.25}


@pytest.mark.parametrize("target", TIES, ids=str)
def test_casts_from_f64_round_once(target: ElementType) -> None:
    x = np.array([TIES[target], -TIES[target], 1.0, 0.0, -3.0, np.nan])
    (found,) = answers("OPENCL", made("Cast", to=target.onnx), x)
    np.testing.assert_array_equal(found.astype(np.float64), [ABOVE[target], -ABOVE[target], 1, 0, -3, np.nan])


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("round_mode", ["down", "up", "nearest"])
def test_small_numbers_as_powers_of_two(source: type, round_mode: str) -> None:
    """f8e8m0 has no zero: its least number is 2^-127, which is a subnormal number of f32."""
    x = np.array([0, 2.0**-127, 1.5 * 2.0**-127, 2.0**-126, 1.5 * 2.0**-126, 0.75, 3.0]).astype(source)
    build = made("Cast", to=f8e8m0.onnx, round_mode=round_mode)
    (found,), (expected,) = (answers(device, build, x) for device in ("OPENCL", "TEMPLATE"))
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("round_mode", ["down", "up", "nearest"])
def test_numbers_that_f32_has_not_as_powers_of_two(round_mode: str, saturate: int) -> None:
    """Beyond its range, above its largest number, and between two of its numbers."""
    largest = float(np.finfo(np.float32).max)
    x = np.array([1e300, -3.5e38, 2.0**128, largest, largest * (1 + 2.0**-26), 2 - 2.0**-40, 1 + 2.0**-40, 1e-300])
    build = made("Cast", to=f8e8m0.onnx, round_mode=round_mode, saturate=saturate)
    (found,), (expected,) = (answers(device, build, x) for device in ("OPENCL", "TEMPLATE"))
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("target", [f32, i64, u64, u8], ids=str)
def test_casts_from_f64(target: ElementType) -> None:
    x = np.array([0.1, 1e9 + 0.5, 200.9, 3.0]) if target is not u8 else np.array([0.1, 200.9, 3.0])
    (found,), (expected,) = (answers(device, made("Cast", to=target.onnx), x) for device in ("OPENCL", "TEMPLATE"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("source", [np.float32, np.float16, np.int64, np.uint64, np.bool_])
def test_casts_to_f64_are_exact(source: type) -> None:
    x = np.array([0, 1, 3, 2**15], np.float64).astype(source)
    (found,) = answers("OPENCL", made("Cast", to=f64.onnx), x)
    np.testing.assert_array_equal(found, x.astype(np.float64))


def test_a_chain_in_f64_keeps_its_precision_between_casts() -> None:
    """Positions: (i + 0.5) * scale - 0.5 of large i, and back to integers."""

    def build(i: Parameter) -> Node:
        x = ops.Cast(i, to=f64.onnx)
        return ops.Cast(ops.Floor(ops.Mul(x, Constant(np.float64(1 / 3)))), to=i64.onnx)

    i = np.array([3 * 10**9 + 1, 3 * 10**9 - 1, 5])
    np.testing.assert_array_equal(answers("OPENCL", build, i)[0], i // 3)


# -- devices without arithmetic in f64 ---------------------------------------------------------------------------------


def test_such_devices_refuse_it_by_name(without_f64: None) -> None:
    x = Parameter(f64, (3,), "x")
    node = ops.Mul(x, x)
    node.friendly_name = "square"
    model = Model([Result(node)], [x])
    assert set(Core().query_model(model, "OPENCL").at(SupportLevel.REFUSED)) == {"square"}
    with pytest.raises(UnsupportedError, match=r"`square` \(element type\).*f64; the device has no.*cl_khr_fp64"):
        Core().compile_model(model, "OPENCL")


@pytest.mark.parametrize(
    "build",
    [
        made("Transpose", perm=[1, 0]),
        made("Gather", np.array([1, 0])),
        made("Concat", values(2, 3), axis=0),
        made("ScatterElements", np.array([[1, 0, 1]]), values(1, 3), axis=0),
        made("ScatterND", np.array([[1]]), values(1, 3)),
        made("GatherElements", np.array([[1, 0, 1]]), axis=0),
        made("GatherND", np.array([[1]])),
        made("Pad", np.array([1, 0, 0, 2]), np.float64(-7.5)),
        made("Slice", np.array([1]), np.array([3]), np.array([1])),
        made("Tile", np.array([2, 1])),
        made("Expand", np.array([4, 2, 3])),
        made("Trilu", upper=1),
        made("ReverseSequence", np.array([2, 1, 2]), batch_axis=1, time_axis=0),
        made("Identity"),
        lambda x: ops.Resize(x, None, None, Constant(np.array([3, 5])), mode="nearest"),
        lambda x: ops.Resize(
            x,
            Constant(np.array([-0.5, 0, 1, 1.5])),
            None,
            Constant(np.array([4, 6])),
            mode="nearest",
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=-7.5,
        ),
    ],
)
def test_such_devices_move_it(without_f64: None, build: Build) -> None:
    """Without the type in a kernel, which their compilers would not accept."""
    (found,), (expected,) = (answers(device, build, values(2, 3)) for device in ("OPENCL", "TEMPLATE"))
    np.testing.assert_array_equal(found, expected)
    x, facts = Parameter(f64, (2, 3), "x"), device_of("0").facts
    plan = build_plan(prepare_model(Model([Result(build(x))], [x]), facts), facts)
    common = kernel_text("real"), kernel_text("factors")  # where it stands in a branch that is not taken
    for source in {launch.source for launch in plan.launches}:
        for each in common:
            source = source.replace(each, "")
        assert "double" not in source


def test_such_devices_refuse_what_adds_while_it_moves(without_f64: None) -> None:
    build = made("ScatterElements", np.array([[1, 0, 1]]), values(1, 3), axis=0, reduction="add")
    with pytest.raises(UnsupportedError, match="cl_khr_fp64"):
        answers("OPENCL", build, values(2, 3))


def test_such_devices_refuse_a_blob_that_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    x = Parameter(f64, (3,), "x")
    stream = io.BytesIO()
    Core().compile_model(Model([Result(ops.Mul(x, x))], [x]), "OPENCL").export_model(stream)
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, has_fp64=False))
    stream.seek(0)
    with pytest.raises(UnsupportedError, match="cl_khr_fp64"):
        Core().import_model(stream, "OPENCL")
