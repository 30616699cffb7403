"""The tools see what they look for: a finding, an error, a crash, a hang, too much memory, and a wrong result."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Parameter, Result, boolean, f16, f32, u8

from . import broken
from .blobs import make as make_blob
from .graphs import make as make_graph
from .mutants import make as make_mutant
from .rounding import Answers, difference, expected
from .supervisor import run_cases


def test_every_bad_end_of_a_case_is_a_finding_and_the_next_one_runs() -> None:
    seeds = [
        broken.ENDS.index(name) for name in ("finding", "fine", "abort", "fine", "memory", "error", "hang", "fine")
    ]
    summary = run_cases("broken", seeds, limit=broken.LIMIT, devices="TEMPLATE")
    assert summary.outcomes == {
        "fine": 3, "wrong result": 1, "a crash by SIGABRT while going": 1, "KeyError escaped": 1,
        "MemoryError escaped": 1, "a hang of 2 s while going": 1,
    }  # fmt: skip
    assert [each.seed for each in summary.findings] == [1, 3, 5, 2, 4]


def test_a_seed_is_always_the_same_case() -> None:
    for make in (make_mutant, make_blob):
        assert make(3)[0] == make(3)[0]
    (one, first, _), (other, second, _) = make_graph(3), make_graph(3)
    kinds = [[node.op_type for node in model.ordered_nodes()] for model in (one, other)]
    assert kinds[0] == kinds[1]
    assert {name: value.tobytes() for name, value in first.items()} == {n: v.tobytes() for n, v in second.items()}


@pytest.mark.parametrize("length", [8, 512])
def test_another_order_of_a_sum_is_right_and_a_wrong_term_is_not(length: int) -> None:
    draw = np.random.default_rng(length)
    x, weights = (draw.uniform(-1, 1, shape).astype(np.float32) for shape in ((3, length), (length, 5)))
    p = Parameter(f32, x.shape, "x")
    (right,) = expected(Model([Result(ops.MatMul(p, Constant(weights)), "y")], [p]), {"x": x})
    backwards = np.zeros((3, 5), np.float32)
    for k in reversed(range(length)):
        backwards += x[:, k : k + 1] * weights[k]
    assert difference(backwards, right) is None
    assert difference(backwards - x[:, :1] * weights[0], right) is not None
    assert difference(right.value.astype(np.float64), right) is not None
    assert difference(right.value[:2], right) is not None


def test_a_value_between_two_steps_may_fall_to_either_side() -> None:
    p, scale = Parameter(f32, [4], "x"), Constant(np.float32(0.5))
    model = Model([Result(ops.QuantizeLinear(p, scale, Constant(np.int8(0))), "y")], [p])
    (right,) = expected(model, {"x": np.array([0.25, 0.75, 0.5, 1.1], np.float32)})
    assert difference(right.value + np.array([1, 1, 0, 0], np.int8), right) is None
    assert difference(right.value + np.array([0, 0, 1, 0], np.int8), right) is not None
    assert difference(right.value + np.array([0, 0, 0, 1], np.int8), right) is not None


def test_equal_values_may_differ_by_their_rounding_alone() -> None:
    p = Parameter(f32, [3], "x")
    model = Model([Result(ops.Equal(p, Constant(np.ones(3, np.float32))), "y")], [p])
    right = Answers(model, {"x": np.array([1, np.nextafter(np.float32(1), np.float32(2)), 1.001], np.float32)})
    for found in ([True, True, False], [False, False, False]):
        assert right.difference(0, np.array(found)) is None, found
    assert right.difference(0, np.array([True, False, True])) is not None


def test_values_at_borders_that_cancel_each_other_may_jump_alone() -> None:
    """Two sums of quantized values between two steps, added up with opposite signs: a device may round either one."""
    p, scale, zero = Parameter(f32, [1, 2], "x"), Constant(np.float32(0.5)), Constant(np.int8(0))
    steps = ops.DequantizeLinear(ops.QuantizeLinear(p, scale, zero), scale, zero)
    model = Model([Result(ops.MatMul(steps, Constant(np.array([[1.0], [-1.0]], np.float32))), "y")], [p])
    right = Answers(model, {"x": np.array([[1.25, 1.25]], np.float32)})
    for found in (0.0, 0.5, -0.5):
        assert right.difference(0, np.array([[found]], np.float32)) is None, found
    assert right.difference(0, np.array([[2.0]], np.float32)) is not None
    sure = Answers(model, {"x": np.array([[1.3, 1.2]], np.float32)})
    assert sure.difference(0, np.array([[0.5]], np.float32)) is None
    for found in (0.0, 1.0):
        assert sure.difference(0, np.array([[found]], np.float32)) is not None, found


def test_f16_may_be_kept_in_f32_up_to_a_cast() -> None:
    """A product below the smallest f16 is 0 there, and true as f32; what a cast rounds is rounded everywhere."""
    p = Parameter(f16, [3], "x")
    tiny = np.array([1e-5, 1e-3, 0], np.float16)
    products = ops.Mul(p, p)
    model = Model([Result(ops.Cast(products, to=boolean.onnx), "kept")], [p])
    right = Answers(model, {"x": tiny})
    assert right.difference(0, np.array([True, True, False])) is None
    assert right.difference(0, np.array([False, True, False])) is None
    assert right.difference(0, np.array([True, True, True])) is not None
    rounded = ops.Cast(ops.Cast(ops.Cast(p, to=f32.onnx), to=f16.onnx), to=u8.onnx)
    answers = Answers(Model([Result(rounded, "y")], [p]), {"x": np.array([3.5, 4.5, 5.5], np.float16)})
    assert answers.difference(0, np.array([3, 4, 5], np.uint8)) is None
    assert answers.difference(0, np.array([3, 3, 5], np.uint8)) is not None
