"""Type rules of operators that move data, where bounds and symbols must survive: Transpose, Concat, Shape, MatMul."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Dimension, Node, PartialShape, TensorType, ValueType, i64, undefined
from engine.ops.registry import attribute, get_op, infers
from engine.ops.rules import broadcast_shapes, check_inputs, fail, normalize_axis, sum_dims, tensor_type


@infers("Transpose")
def _infer_transpose(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Transpose"))
    data = tensor_type(node, 0)
    perm = attribute(node, "perm")
    if data.shape.rank.is_dynamic:
        return (TensorType(data.element_type, PartialShape.dynamic(None if perm is None else len(perm))),)
    dims = data.shape.dims
    if perm is None:
        return (TensorType(data.element_type, PartialShape(dims[::-1])),)
    if sorted(perm) != list(range(len(dims))):
        fail(node, f"perm {list(perm)} is no permutation of the {len(dims)} axes of input 0")
    return (TensorType(data.element_type, PartialShape([dims[axis] for axis in perm])),)


@infers("Concat")
def _infer_concat(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Concat"))
    types = [tensor_type(node, index) for index in range(node.num_inputs)]
    element_type = next((t.element_type for t in types if t.element_type is not undefined), undefined)
    ranks = {len(t.shape) for t in types if t.shape.rank.is_static}
    if len(ranks) > 1:
        fail(node, f"all inputs must have one rank, got ranks {sorted(ranks)}")
    if not ranks:
        return (TensorType(element_type, PartialShape.dynamic()),)
    rank = ranks.pop()
    axis = normalize_axis(node, attribute(node, "axis"), rank)
    shapes = [t.shape if t.shape.rank.is_static else PartialShape.dynamic(rank) for t in types]
    dims = [_common_dim(node, shapes, position) for position in range(rank)]
    dims[axis] = sum_dims([shape[axis] for shape in shapes])
    for position in range(rank):
        if position != axis and dims[position] is None:
            lengths = [str(shape[position]) for shape in shapes]
            fail(node, f"dimension {position} differs between the inputs ({', '.join(lengths)}); only axis {axis} may")
    return (TensorType(element_type, PartialShape(dims)),)


def _common_dim(node: Node, shapes: Sequence[PartialShape], position: int) -> Dimension | None:
    dim = shapes[0][position]
    for shape in shapes[1:]:
        if not dim.compatible(shape[position]):
            return None
        dim = dim.merge(shape[position])
    return dim


@infers("Shape")
def _infer_shape(node: Node) -> Sequence[ValueType]:
    shape = tensor_type(node, 0).shape
    if shape.rank.is_dynamic:
        return (TensorType(i64, PartialShape.dynamic(1)),)
    rank = len(shape)
    end = attribute(node, "end")
    return (TensorType(i64, PartialShape([len(range(rank)[attribute(node, "start") : end])])),)


@infers("MatMul")
def _infer_matmul(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("MatMul"))
    a, b = tensor_type(node, 0), tensor_type(node, 1)
    element_type = a.element_type if a.element_type is not undefined else b.element_type
    if a.shape.rank.is_dynamic or b.shape.rank.is_dynamic:
        return (TensorType(element_type, PartialShape.dynamic()),)
    if not len(a.shape) or not len(b.shape):
        fail(node, "a scalar cannot be multiplied; expected rank 1 or more, or use Mul")
    rows, inner = (a.shape.dims[-2:-1], a.shape[-1])
    columns = b.shape.dims[-1:] if len(b.shape) > 1 else ()
    other = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if not inner.compatible(other):
        fail(node, f"the last dimension of A ({inner}) and the {'last but one' if columns else 'only'} of B ({other}) "
             "must be equal")  # fmt: skip
    batch = broadcast_shapes(node, (PartialShape(a.shape.dims[:-2]), PartialShape(b.shape.dims[:-2])))
    return (TensorType(element_type, PartialShape([*batch.dims, *rows, *columns])),)


@infers("Size")
def _infer_size(node: Node) -> Sequence[ValueType]:
    return (TensorType(i64, PartialShape([])),)
