"""Integer products by operators of f32. If a test fails, a device without integer kernels gives wrong sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import ElementType, Model, Node, Parameter, i8, u8
from engine.ops import evaluate_model
from engine.passes.common.integer_product_decomposition import IntegerProductDecomposition

Apply = Callable[..., Counter[str]]
Array = np.ndarray[Any, np.dtype[Any]]
KINDS = [(u8, u8), (u8, i8), (i8, i8)]


def codes(parameter: Parameter, seed: int) -> Array:
    """Mostly the ends of the range, so that sums are large."""
    value = parameter.output(0)
    ends, random = np.iinfo(value.element_type.numpy), np.random.default_rng(seed)
    shape = value.shape.get_shape()
    chosen = random.choice([ends.min, ends.max], shape, p=[0.1, 0.9])
    return np.where(random.random(shape) < 0.05, random.integers(ends.min, ends.max, shape), chosen).astype(
        value.element_type.numpy
    )


def check(node: Node, products: int, apply: Apply) -> None:
    sources = [value.node for value in node.input_values if value is not None]
    parameters = [each for each in sources if isinstance(each, Parameter)]
    assert len(parameters) == len(sources)
    given = [codes(each, seed) for seed, each in enumerate(parameters)]
    model = Model([node], parameters)
    (expected,) = evaluate_model(model, given)
    operators = apply(model, IntegerProductDecomposition)
    assert not {"MatMulInteger", "ConvInteger"} & operators.keys()
    assert operators["MatMul"] + operators["Conv"] == products
    (actual,) = evaluate_model(model, given)
    np.testing.assert_array_equal(actual, expected)


# At the last length of each form, and the first of the next one.
LENGTHS = [(258, 1), (259, 2), (4112, 2), (4113, 4), (65536, 4)]


@pytest.mark.parametrize(("length", "products"), LENGTHS)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_products_of_matrices(kinds: tuple[ElementType, ElementType], length: int, products: int, apply: Apply) -> None:
    a, b = Parameter(kinds[0], [2, length], "a"), Parameter(kinds[1], [length, 3], "b")
    a_zero, b_zero = Parameter(kinds[0], [2], "a_zero"), Parameter(kinds[1], [], "b_zero")
    check(ops.MatMulInteger(a, b, a_zero, b_zero), products, apply)
    check(ops.MatMulInteger(a, b), products, apply)


def test_zero_points_of_each_matrix(apply: Apply) -> None:
    """Rows of a and columns of b, in batches: zero points of shape [..., M, 1] and [..., 1, N]."""
    a, b = Parameter(u8, [3, 2, 4, 5], "a"), Parameter(i8, [2, 5, 6], "b")
    a_zero, b_zero = Parameter(u8, [3, 2, 4, 1], "a_zero"), Parameter(i8, [2, 1, 6], "b_zero")
    check(ops.MatMulInteger(a, b, a_zero, b_zero), 1, apply)
    check(ops.MatMulInteger(a, b, None, b_zero), 1, apply)
    for single in ([], [1], [1, 1, 1, 1], [1, 1, 1, 1, 1]):
        check(ops.MatMulInteger(a, b, Parameter(u8, single, "a_zero"), b_zero), 1, apply)


@pytest.mark.parametrize(("channels", "products"), [(28, 1), (29, 2), (457, 4)])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_convolutions(kinds: tuple[ElementType, ElementType], channels: int, products: int, apply: Apply) -> None:
    x, w = Parameter(kinds[0], [1, channels, 4, 4], "x"), Parameter(kinds[1], [2, channels, 3, 3], "w")
    x_zero, w_zero = Parameter(kinds[0], [], "x_zero"), Parameter(kinds[1], [2], "w_zero")
    check(ops.ConvInteger(x, w, x_zero, w_zero, pads=[1, 1, 0, 0]), products, apply)
    check(ops.ConvInteger(x, w, None, w_zero), products, apply)


@pytest.mark.parametrize(
    "attributes", [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "VALID"}, {"pads": [2, 0, 1, 3]}], ids=str
)
def test_convolutions_that_devices_transform_in_f32(attributes: dict[str, Any], apply: Apply) -> None:
    """Transforms round, so a convolution of 3x3 becomes one of 3x4."""
    x, w = Parameter(u8, [1, 3, 5, 6], "x"), Parameter(i8, [2, 3, 3, 3], "w")
    check(ops.ConvInteger(x, w, **attributes), 1, apply)
    model = Model([ops.ConvInteger(x, w, **attributes)], [x, w])
    apply(model, IntegerProductDecomposition)
    (conv,) = (node for node in model.ordered_nodes() if node.op_type == "Conv")
    assert conv.input_value(1).shape.get_shape() == (2, 3, 3, 4)


def test_longer_and_unknown_sums_stay(apply: Apply) -> None:
    for length in (65537, "K"):
        a, b = Parameter(u8, [2, length], "a"), Parameter(i8, [length, 3], "b")
        apply(Model([ops.MatMulInteger(a, b)], [a, b]), IntegerProductDecomposition, modified=False)
