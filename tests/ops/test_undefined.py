"""The answers where ONNX leaves a result undefined: devices are compared with them by the operator suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.cases.undefined import UNDEFINED, is_undefined

EXAMPLES = [example for row in UNDEFINED for example in row.cases]


@pytest.mark.parametrize(("case", "wanted"), EXAMPLES, ids=[str(case) for case, _ in EXAMPLES])
def test_the_reference_gives_the_answer(case: OperatorCase, wanted: tuple[Any, ...]) -> None:
    node, _ = case.node()
    found = ops.evaluate(node, case.arrays())
    for value, output, expected in zip(found, node.outputs, wanted, strict=False):
        assert value.dtype == output.element_type.numpy
        kind = value.dtype if value.dtype.kind in "iu" else np.dtype(np.float64)
        np.testing.assert_array_equal(value.astype(kind), np.array(expected, kind))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Cast/undefined-f32-u8", True),
        ("Cast/f32-i4", True),  # among the numbers are some beyond 4 bits
        ("Cast/f32-f16", False),
        ("Clip/no-bounds", True),  # NaN
        ("MatMul/5x7-7x9", False),
    ],
)
def test_values_beyond_the_text_are_found_in_other_cases(name: str, expected: bool) -> None:
    """A runtime that has answers of its own is not asked about them."""
    assert is_undefined(all_cases()[name]) is expected
