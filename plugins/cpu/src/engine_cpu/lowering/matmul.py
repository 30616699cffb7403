"""MatMul, FusedMatMul and Gemm with the kernel for strided matrix products; of f64, some with another kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.ir import Constant, Node, Output
from engine.ir.element_type import f32, f64
from engine.lowering import Refusal, RefusalCause, first_refusal, is_known_when_bound
from engine.native import Attribute
from engine.onnx.skeleton import INLINE_BYTES
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine_cpu.layout import Layout, LayoutOption, layout_bytes, static_shape
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.factor import ConstantFactor
from engine_cpu.lowering.product import MAX_BATCH_DIMS, Product, padded_vector
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, copy_step
from engine_cpu.segment import SegmentBuilder
from engine_cpu.weights import WeightStore


@lowers("MatMul", spec=MatMulSpec)
@lowers("FusedMatMul", domain=INTERNAL_DOMAIN, spec=MatMulSpec)
class MatMulLowering(OpLowering[MatMulSpec]):
    """Products of matrices and of batches of them, with a bias, a residual and an activation."""

    def check(self, spec: MatMulSpec) -> Refusal | None:
        if _is_double(spec.node):
            from engine_cpu.lowering.double_product import check_double  # few models have them

            return check_double(spec.node, is_plain=spec.activation is None and not spec.node.has_input(3))
        return first_refusal(check_f32(spec.node), _check_ranks(spec.node))

    def layouts(self, spec: MatMulSpec) -> Sequence[LayoutOption]:
        return _product_layouts(spec.node)

    def pack(self, spec: MatMulSpec, weights: WeightStore, precision: str) -> Sequence[Output]:
        return _pack_matrix(spec.node, spec.trans_b, weights, precision)

    def lower(self, spec: MatMulSpec, b: SegmentBuilder) -> None:
        node = spec.node
        if _is_double(node):
            from engine_cpu.lowering.double_product import lower_double

            lower_double(node, b, transposed=spec.trans_b)
            return
        option = b.option(node)
        left, right, bias, residual = (*node.input_values, None, None)[:4]
        assert left is not None
        assert right is not None
        a_shape, b_shape = _as_matrices(b.shape(left), b.shape(right))
        product = Product.of_shapes(a_shape, b_shape, trans_b=spec.trans_b)
        attributes: dict[str, Attribute] = dict(activation_attributes(spec.activation))
        more = []
        if bias is not None:
            attributes["bias"] = 1
            more.append(padded_vector(node, b, bias))
        if residual is not None:
            attributes["residual"] = 1
            more.append(b.input(residual))
        source, result = option.inputs[0], option.outputs[0]
        operands = b.input(left, source), b.output(node.output(0), result)
        product.add_step(node, b, right, operands, more, attributes, stored=(source, result))


def _product_layouts(node: Node) -> Sequence[LayoutOption]:
    """Row-major; in a network of bf16, a product with constant weights reads and writes f32 or bf16."""
    left, right = node.input_value(0), node.input_value(1)
    if _is_double(node):
        return (LayoutOption.uniform(Layout.PLAIN, node.num_inputs, node.num_outputs),)
    others = (Layout.PLAIN,) * (node.num_inputs - 1)
    options = [LayoutOption((Layout.PLAIN, *others), (Layout.PLAIN,), precision="f32")]
    has_bf16 = isinstance(right.node, Constant) and len(right.shape) <= 2
    stored = (Layout.PLAIN, Layout.PLAIN_BF16) if has_bf16 else (Layout.PLAIN,)
    for source in stored:
        for result in stored:
            moved = layout_bytes(static_shape(left), f32, source)
            moved += layout_bytes(static_shape(node.output(0)), f32, result)
            options.append(LayoutOption((source, *others), (result,), moved, "bf16"))
    return options


def _pack_matrix(node: Node, transposed: bool, weights: WeightStore, precision: str) -> Sequence[Output]:
    """Pack one large constant matrix B, whose form is the same for any A."""
    left, right = node.input_value(0), node.input_value(1)
    if (
        _is_double(node)
        or not isinstance(right.node, Constant)
        or len(right.shape) != 2
        or right.node.byte_size <= INLINE_BYTES
    ):
        return ()
    if is_known_when_bound(left):  # the product is folded once lengths are known, which reads the plain data
        return ()
    rows, columns = right.node.shape
    n, k = (rows, columns) if transposed else (columns, rows)
    ConstantFactor(right, n, k, transposed, weights).pack(precision)
    return (right,)


def _check_ranks(node: Node) -> Refusal | None:
    a, b = (len(node.input_value(index).shape) for index in (0, 1))
    if b > 2 and max(a, b) - 2 > MAX_BATCH_DIMS:
        return Refusal(
            RefusalCause.RANK, f"the product has {max(a, b) - 2} batch dimensions; expected at most {MAX_BATCH_DIMS}"
        )
    return None


def _as_matrices(a: Sequence[int], b: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Vectors promoted to matrices as in MatMul."""
    return (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b


@lowers("Gemm", spec=GemmSpec)
class GemmLowering(OpLowering[GemmSpec]):
    """alpha * A * B + beta * C, where C is a row, a matrix, or constant."""

    def check(self, spec: GemmSpec) -> Refusal | None:
        if _is_double(spec.node):
            from engine_cpu.lowering.double_product import check_double  # few models have them

            return check_double(spec.node, is_plain=spec.alpha == 1 and not spec.transA)
        return first_refusal(check_f32(spec.node), self._check_sum(spec))

    def layouts(self, spec: GemmSpec) -> Sequence[LayoutOption]:
        return super().layouts(spec) if spec.transA else _product_layouts(spec.node)

    def pack(self, spec: GemmSpec, weights: WeightStore, precision: str) -> Sequence[Output]:
        return _pack_matrix(spec.node, spec.transB, weights, precision)

    def lower(self, spec: GemmSpec, b: SegmentBuilder) -> None:
        node = spec.node
        if _is_double(node):
            from engine_cpu.lowering.double_product import lower_double

            lower_double(node, b, transposed=spec.transB, beta=spec.beta)
            return
        option = b.option(node)
        stored = option.inputs[0], option.outputs[0]
        left, right = node.input_value(0), node.input_value(1)
        a_shape = b.shape(left)
        if spec.transA:
            a_shape = a_shape[::-1]
            source = _transposed(node, b, left)
        else:
            source = b.input(left, stored[0])
        product = Product.of_shapes(a_shape, b.shape(right), trans_b=spec.transB)
        attributes: dict[str, Attribute] = {}
        more, residual = [], None
        if node.has_input(2) and spec.beta != 0.0:
            bias, residual = self._addends(spec, b, product)
            if bias is not None:
                attributes["bias"] = 1
                more.append(bias)
        if spec.alpha != 1.0:
            attributes["scale"] = 1
            more.append(b.constant(np.full(-(-product.n // 16) * 16, spec.alpha, np.float32)))
        if residual is not None:
            attributes["residual"] = 1
            more.append(residual)
        operands = source, b.output(node.output(0), stored[1])
        product.add_step(node, b, right, operands, more, attributes, stored=stored)

    def _check_sum(self, spec: GemmSpec) -> Refusal | None:
        added, result = spec.input(2), spec.output()
        if added is None or _is_constant(added):
            return None
        if spec.beta != 1.0:
            return Refusal(RefusalCause.ATTRIBUTE, f"beta is {spec.beta} for a C computed at run time; expected 1")
        if not len(added.shape) or added.shape[-1].is_dynamic or added.shape[-1] != result.shape[-1]:
            return Refusal(
                RefusalCause.SHAPE, f"C is {added.type}; expected rows of {result.shape[-1]} elements, as in the result"
            )
        return None

    def _addends(self, spec: GemmSpec, b: SegmentBuilder, product: Product) -> tuple[int | None, int | None]:
        """C as a bias buffer or a residual buffer."""
        added = spec.node.input_value(2)
        shape = (1, 1, *b.shape(added))[-2:]
        if shape == (1, product.n) and b.is_repeatable and len(b.shape(added)) == 2 and not b.is_constant(added):
            # A bias and a residual are added at other times, and the only row of C may be one of many.
            rows = Strided.row_major((product.m, product.n))
            target = b.temporary(4 * math.prod(rows.shape))
            copy_step(b, spec.node, 4, [Copy(b.input(added), Strided(rows.shape, (0, 1)), target, rows)])
            return None, target
        if shape == (1, product.n):
            return padded_vector(spec.node, b, added, spec.beta), None
        if not b.is_constant(added):
            return None, b.input(added)
        beta, whole = np.float32(spec.beta), (product.m, product.n)
        recipe = f"broadcast to {whole} times {beta}"
        return None, b.weights([added], recipe, lambda: np.array(np.broadcast_to(b.value(added) * beta, whole)))


def _is_double(node: Node) -> bool:
    return node.input_value(0).element_type is f64


def _is_constant(value: Output) -> bool:
    return isinstance(value.node, Constant)


def _transposed(node: Node, b: SegmentBuilder, matrix: Output) -> int:
    if b.is_constant(matrix):
        return b.weights([matrix], "transposed", lambda: np.ascontiguousarray(b.value(matrix).T))
    elements = Strided.row_major(b.shape(matrix)).permute((1, 0))
    target = b.temporary(4 * math.prod(elements.shape))
    copy_step(b, node, 4, [Copy(b.input(matrix), elements, target, Strided.row_major(elements.shape))])
    return target
