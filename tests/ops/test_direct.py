"""What breaks if these fail: constants are folded to other values, or small models load a large package to compile."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Node, Parameter, TensorType
from engine.ops import direct, reference
from engine.ops.cases import all_cases

DIRECT = sorted(
    op.name
    for op in ops.all_ops()
    if op.evaluator is not None and getattr(op.evaluator, "__module__", None) == direct.__name__
)
RNG = np.random.default_rng(7)
NUMBERS = [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64]
BOOLEAN = {"And", "Not", "Or", "Xor"}
REAL = {"Ceil", "Cos", "Div", "Exp", "Floor", "IsNaN", "Log", "Sin", "Tanh"}


def node_of(op_type: str, arrays: list[Any], **attributes: Any) -> Node:
    inputs = [None if a is None else Parameter(_type(a)) for a in arrays]
    return ops.create(op_type, inputs, attributes)


def _type(array: np.ndarray) -> TensorType:
    return ops.Constant(array).output(0).type  # type: ignore[return-value]


def same(op_type: str, arrays: list[Any], **attributes: Any) -> None:
    """The evaluation equals that of `onnx.reference`, with NaNs and the signs of zeros."""
    _compare(node_of(op_type, arrays, **attributes), arrays)


def _compare(node: Node, arrays: list[Any]) -> None:
    with np.errstate(all="ignore"):
        expected = reference.compile_onnx(node)(arrays)
    (got,) = ops.evaluate(node, arrays)
    (wanted,) = [value.astype(object) if value.dtype.kind == "U" else np.asarray(value) for value in expected]
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if got.dtype == object:
        assert got.tolist() == wanted.tolist()
        return
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(wanted).tobytes()


def values(kind: Any, *shape: int) -> np.ndarray:
    data = RNG.integers(-100, 100, shape).astype(kind)
    if np.issubdtype(kind, np.floating) and data.size:
        data.reshape(-1)[: min(5, data.size)] = [np.nan, np.inf, -np.inf, -0.0, 0.25][: min(5, data.size)]
    return data


@pytest.mark.parametrize("op_type", DIRECT)
def test_cases_have_the_results_of_onnx(op_type: str) -> None:
    """The cases that every device runs."""
    for case in all_cases().values():
        if case.op_type == op_type and not case.domain:
            node, arrays = case.node()[0], case.arrays()
            if not any(array is not None and array.dtype == object for array in arrays):
                _compare(node, arrays)


@pytest.mark.parametrize("op_type", sorted(direct._POINTWISE.keys() | {"Div", "Max", "Min"}))
def test_pointwise_results_are_those_of_onnx(op_type: str) -> None:
    """In every type of numpy, with broadcasting, NaN, infinity, zeros of both signs and no elements."""
    kinds = [np.bool_] if op_type in BOOLEAN else NUMBERS[:3] if op_type in REAL else NUMBERS
    count = ops.get_op(op_type).min_inputs
    shapes = [(3, 4, 5), (4, 1), (5,)]
    for kind in kinds:
        if (op_type, kind) == ("Neg", np.uint8):
            continue
        for given in ([shapes[0]], shapes[1:2], [()], [(0, 3)]):
            first = values(kind, *given[0])
            rest = [values(kind, *shape) for shape in (shapes[1:] if given[0] == shapes[0] else [given[0]] * 2)]
            if op_type == "Where":
                same(op_type, [values(np.bool_, *given[0]), first, rest[1]])
            elif op_type in ("Max", "Min"):
                for number in range(3):
                    same(op_type, [first, *rest[:number]])
            else:
                same(op_type, [first, *rest[: count - 1]])


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
@pytest.mark.parametrize("real", [np.float32, np.float16])
def test_dequantized_values_are_those_of_onnx(kind: Any, real: Any) -> None:
    """For a scale per tensor, per channel and per block, with and without zero points."""
    x = RNG.integers(0, 127, (6, 8)).astype(kind)
    for scale, attributes in (
        (np.float32(0.37), {}),
        (np.asarray([0.1]), {"axis": 0}),
        (RNG.random(6), {"axis": 0}),
        (RNG.random(8), {"axis": -1}),
        (RNG.random((6, 4)), {"axis": 1, "block_size": 2}),
    ):
        scales = np.asarray(scale, real)
        same("DequantizeLinear", [x, scales], **attributes)
        if kind is not np.int32:
            same("DequantizeLinear", [x, scales, RNG.integers(0, 9, scales.shape).astype(kind)], **attributes)


def test_casts_are_those_of_onnx() -> None:
    """Between all types of numpy, except from real numbers to integers, which ONNX's reference wraps around."""
    for source in [np.bool_, *NUMBERS]:
        for target in [np.bool_, *NUMBERS]:
            if np.issubdtype(source, np.floating) and not np.issubdtype(target, np.floating):
                continue
            if source is not target:
                same("Cast", [values(source, 3, 4)], to=ops.Constant(np.zeros(1, target)).element_type.onnx)


def test_shapes_are_those_of_onnx() -> None:
    """Operators that only move elements, also of strings."""
    for data in (values(np.float32, 2, 1, 3), np.array([[["a"]], [["b"]]], object)):
        same("Unsqueeze", [data, np.array([0, -1])])
        same("Unsqueeze", [data, np.array([], np.int64)])
        same("Squeeze", [data, np.array([1])])
        same("Squeeze", [data])
        same("Transpose", [data])
        same("Transpose", [data], perm=[2, 0, 1])
        same("Identity", [data])
        same("Concat", [data, data], axis=-2)
    same("ConstantOfShape", [np.array([2, 0, 3])])
    same("ConstantOfShape", [np.array([], np.int64)], value=np.array([7], np.int8))


_PROGRAM = """
import sys, numpy as np
from engine import ops
from engine.ir import f32, i64
x = np.arange(6, dtype=np.int64)
for node, arrays in [
    (ops.Concat(ops.Parameter(i64, [6]), ops.Parameter(i64, [6]), axis=0), [x, x]),
    (ops.Cast(ops.Parameter(i64, [6]), to=1), [x]),
    (ops.Unsqueeze(ops.Parameter(i64, [6]), ops.Constant([0])), [x, np.array([0])]),
    (ops.Mul(ops.Parameter(i64, [6]), ops.Parameter(i64, [6])), [x, x]),
]:
    ops.evaluate(node, arrays)
print("onnx.reference" in sys.modules)
"""


def test_arithmetic_of_shapes_does_not_load_the_reference() -> None:
    """Its import takes longer than the compilation of a small model."""
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
