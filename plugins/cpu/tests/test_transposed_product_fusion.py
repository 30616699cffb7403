"""Products with Transpose(b): they read b where it is, and compute the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_cpu.passes.transposed_product_fusion import TransposedProductFusion

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, PartialShape, f32
from engine.ops.internal import Activation, FusedMatMul
from engine.passes import Manager, check_equivalence
from engine.testing.values import values as random_values

values = functools.partial(random_values, is_uniform=True)


def turned(b: Output) -> Node:
    rank = len(b.shape)
    return ops.Transpose(b, perm=(*range(rank - 2), rank - 1, rank - 2))


def fused(model: Model) -> list[str]:
    """The operators after the pass, which computes the same and changes nothing the second time."""
    graph = model.clone()
    manager = Manager()
    manager.register_pass(TransposedProductFusion)
    is_changed = manager.run_passes(graph)
    check_equivalence(model, graph)
    assert not manager.run_passes(graph)
    kinds = [node.op_type for node in graph.ordered_nodes() if node.op_type not in ("Parameter", "Constant", "Result")]
    assert is_changed == ("Transpose" not in kinds)
    return kinds


def model_of(make: Callable[[Output, Output], Node], a: list[Any], b: list[Any]) -> Model:
    parameters = [Parameter(f32, PartialShape(shape), name) for name, shape in (("a", a), ("b", b))]
    return Model([make(*(p.output(0) for p in parameters))], parameters)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a, b: ops.MatMul(a, turned(b)), ["FusedMatMul"]),
        (lambda a, b: FusedMatMul(a, turned(b), Constant(values(5)), activation=Activation("Relu")), ["FusedMatMul"]),
        (lambda a, b: ops.MatMul(a, ops.Transpose(b, perm=(1, 0, 2))), ["Transpose", "MatMul"]),
        (lambda a, b: ops.MatMul(ops.MatMul(a, turned(b)), turned(b)), None),
    ],
)
def test_only_an_exchange_of_the_last_axes_for_one_product(
    make: Callable[[Output, Output], Node], expected: list[str] | None
) -> None:
    if expected is None:
        b = Parameter(f32, [2, 6, 6], "b")
        once = turned(b.output(0))
        model = Model([ops.MatMul(ops.MatMul(b, once), once)], [b])
        assert fused(model) == ["Transpose", "MatMul", "MatMul"]
        return
    is_last = "Transpose" not in expected
    assert fused(model_of(make, [2, 4, 6], [2, 5, 6] if is_last else [6, 2, 5])) == expected


def test_products_of_matrices() -> None:
    c = Constant(values(5))
    gemm = model_of(lambda a, b: ops.Gemm(a, turned(b), c, alpha=0.5, transA=1), [6, 4], [5, 6])
    assert fused(gemm) == ["Gemm"]
    both = model_of(lambda a, b: ops.Gemm(a, turned(b), c, transB=1), [4, 6], [6, 5])
    assert fused(both) == ["Transpose", "Gemm"]


def test_unknown_lengths_wait_for_the_passes_that_recognise_attention() -> None:
    model = model_of(lambda a, b: ops.MatMul(a, turned(b)), [2, "N", 6], [2, "L", 6])
    assert fused(model) == ["Transpose", "MatMul"]
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    for rows, columns in ((3, 5), (1, 40), (7, 2), (0, 3)):
        a, b = values(2, rows, 6), values(2, columns, 6, seed=1)
        np.testing.assert_allclose(np.array(network([a, b])[0]), a @ b.swapaxes(1, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 33])
@pytest.mark.parametrize("batch", [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((1, 3), (2, 1))])
def test_lengths_around_vectors_and_tiles(rows: int, batch: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for depth in (0, 1, 3, 7, 15, 16, 17, 31, 33, 70):
        for columns in (1, 2, 4, 5, 9, 16, 17, 49, 130):
            a, b = values(*batch[0], rows, depth), values(*batch[1], columns, depth, seed=1)
            model = model_of(lambda x, y: ops.MatMul(x, turned(y)), list(a.shape), list(b.shape))
            (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})([a, b]).values()
            expected = np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(-1, -2))
            tolerance = 1e-6 * (2 + math.sqrt(depth))
            np.testing.assert_allclose(np.array(actual), expected, rtol=0, atol=tolerance, err_msg=f"{depth} {columns}")


def test_not_a_number_reaches_its_row_and_column_only() -> None:
    a, b = values(5, 19), values(21, 19, seed=1)
    a[1, 18], b[20, 17] = np.nan, np.inf
    model = model_of(lambda x, y: ops.MatMul(x, turned(y)), [5, 19], [21, 19])
    (actual,) = Core().compile_model(model, "CPU")([a, b]).values()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(np.array(actual), a @ b.T, rtol=1e-4, atol=1e-5)
