"""How long a node is expected to take, which decides whether it is folded while compiling."""

from __future__ import annotations

import pytest

from engine import ops
from engine.ir import Parameter, f32
from engine.ops.work import work_of


@pytest.mark.parametrize("left", [(64, 256), (1, 64, 256), (64, 1, 256), (4, 16, 256)])
def test_a_product_counts_the_terms_of_each_sum(left: tuple[int, ...]) -> None:
    """The same products in other shapes take the same time."""
    b = Parameter(f32, [256, 512], "b")
    assert work_of(ops.MatMul(Parameter(f32, list(left), "a"), b)) == work_of(
        ops.Gemm(Parameter(f32, [256, 64], "a"), b, transA=1)
    )


def test_a_product_takes_as_long_as_its_sums_are() -> None:
    work = [work_of(ops.MatMul(Parameter(f32, [512, n], "a"), Parameter(f32, [n, 512], "b"))) for n in (512, 4096)]
    assert 6 < work[1] / work[0] < 8
