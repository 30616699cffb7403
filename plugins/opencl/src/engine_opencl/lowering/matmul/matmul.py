"""Matrix products: MatMul, Gemm and the fused product, as one kernel with an epilogue."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from engine.ir import Output
from engine.ir.element_type import f64
from engine.lowering import Refusal
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine_opencl.elements import REALS
from engine_opencl.lowering.matmul.block_product import BlockProduct
from engine_opencl.lowering.matmul.blocks import launch_blocks
from engine_opencl.lowering.matmul.integer_gemm import MULTIPLIED_AS, multiply_integers
from engine_opencl.lowering.matmul.packing import Matrices
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.matmul.tile_candidates import DirectProduct
from engine_opencl.lowering.matmul.tiles import Operands, launch_direct, launch_tiles
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of

_ROWS: Final = 8
"""The rows of a product of f64 that an item computes."""


@lowers("MatMul", spec=MatMulSpec)
@lowers("FusedMatMul", domain=INTERNAL_DOMAIN, spec=MatMulSpec)
class MatMulLowering(OpLowering[MatMulSpec]):
    """MatMul; for floats also with a bias, a residual and an activation."""

    def check(self, spec: MatMulSpec) -> Refusal | None:
        return check_types(spec.node.input_values, REALS if spec.node.domain else {*REALS, *MULTIPLIED_AS})

    def lower(self, spec: MatMulSpec, b: LaunchPlanBuilder) -> None:
        node = spec.node
        x, y, bias, residual = node.input_value(0), node.input_value(1), spec.input(2), spec.input(3)
        p = matmul_of(b.shape(x), b.shape(y), is_transposed=spec.trans_b)
        if x.element_type in MULTIPLIED_AS:
            multiply_integers(b, node, (p.m, p.n, p.k), p.batch, (p.a_batch, p.b_batch))
            return
        epilogue = Epilogue(
            bias=None if bias is None else (0, 0 if math.prod(b.shape(bias)) == 1 else 1),
            has_residual=residual is not None,
            activation=spec.activation,
        )
        multiply(b, x, y, node.output(0), p, epilogue, bias, residual)


@lowers("Gemm", spec=GemmSpec)
class GemmLowering(OpLowering[GemmSpec]):
    """alpha * A' B' + beta * C of matrices."""

    def check(self, spec: GemmSpec) -> Refusal | None:
        return check_types(spec.node.input_values, REALS)

    def lower(self, spec: GemmSpec, b: LaunchPlanBuilder) -> None:
        x, y, bias = spec.node.input_value(0), spec.node.input_value(1), spec.input(2)
        (rows, inner), (first, second) = b.shape(x), b.shape(y)
        x_strides, y_strides = (inner, 1), (second, 1)
        if spec.transA:
            rows, inner, x_strides = inner, rows, (1, inner)
        columns = second
        if spec.transB:
            columns, y_strides = first, (1, second)
        steps = None
        if bias is not None:
            shape = (1, 1, *b.shape(bias))[-2:]
            row_step, column_step = (0 if n == 1 else s for n, s in zip(shape, strides_of(shape), strict=True))
            steps = row_step, column_step
        product = Product(rows, columns, inner, (), (), (), x_strides, y_strides)
        multiply(b, x, y, spec.output(), product, Epilogue(spec.alpha, steps, spec.beta), bias)


def matmul_of(x: tuple[int, ...], y: tuple[int, ...], *, is_transposed: bool = False) -> Product:
    """The product of two tensors as in numpy's matmul; with `is_transposed`, `y` is [..., N, K]."""
    full_x = x if len(x) > 1 else (1, *x)
    if is_transposed and len(y) == 2:
        n, k = y
        m, batch = math.prod(full_x[:-1]), ()
        return Product(m, n, k, batch, (), (), (k, 1), (1, k))
    full_y = y if len(y) > 1 else (*y, 1)
    (m, k), n = full_x[-2:], full_y[-2 if is_transposed else -1]
    batch = np.broadcast_shapes(full_x[:-2], full_y[:-2])
    columns = (1, k) if is_transposed else (n, 1)
    return Product(m, n, k, batch, _batch_strides(full_x, batch), _batch_strides(full_y, batch), (k, 1), columns)


def _batch_strides(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    steps = strides_of(shape)[:-2]
    own = tuple(0 if n == 1 else s for n, s in zip(shape[:-2], steps, strict=True))
    return (0,) * (len(batch) - len(own)) + own


def multiply(
    b: LaunchPlanBuilder,
    x: Output,
    y: Output,
    result: Output,
    product: Product,
    epilogue: Epilogue,
    bias: Output | None = None,
    residual: Output | None = None,
) -> None:
    """Launch the product of two values."""
    added = [None if value is None else b.input(value) for value in (bias, residual)]
    product = replace(product, real=result.element_type)
    x_buffer, y_buffer = b.input(x), b.input(y)
    launch_product(b, product, epilogue, x_buffer, y_buffer, b.output(result), *added)


def launch_product(
    b: LaunchPlanBuilder,
    product: Product,
    epilogue: Epilogue,
    x: Buffer,
    y: Buffer,
    result: Buffer,
    bias: Buffer | None = None,
    residual: Buffer | None = None,
) -> None:
    """Launch the product kernel for the kind of device."""
    p = product
    if 0 in (p.m, p.n, *p.batch):
        return
    if all(stride == 0 for stride in p.b_batch) and p.a == (p.k, 1) and p.batch and _is_dense(p):
        # A matrix shared by all batches: the batches become further rows.
        p = replace(p, m=p.m * math.prod(p.batch), batch=(), a_batch=(), b_batch=())
    if p.real is f64:
        launch_direct(b, Operands(p, epilogue, x, y, result, bias, residual), DirectProduct(_ROWS))
    elif b.facts.kind == "cpu":
        left = Matrices(x, p.m, p.k, *p.a, p.batch, p.a_batch, p.real)
        right = Matrices(y, p.n, p.k, p.b[1], p.b[0], p.batch, p.b_batch, p.real)
        launch_blocks(b, BlockProduct(left, right, result, p.n, epilogue, bias, residual))
    else:
        launch_tiles(b, Operands(p, epilogue, x, y, result, bias, residual))


def _is_dense(p: Product) -> bool:
    step = p.m * p.k
    for length, stride in zip(reversed(p.batch), reversed(p.a_batch), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True
