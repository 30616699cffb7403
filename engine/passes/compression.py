"""`compress_weights`: the matrices of a model in 4 or 8 bits, without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

import numpy as np

from engine import ops
from engine.drawing.table import byte_count
from engine.errors import PassError
from engine.ir import Constant, ElementType, Model, Node, PartialShape, TensorType, f16, f32, i8, u8
from engine.ir.element_type import bf16, i4, u4
from engine.onnx.exporter import weight_bytes
from engine.ops.tensors import Array, tensor_from_raw, tensor_to_raw, transposed_matrix
from engine.passes.block_search import BlockCodes, search_blocks
from engine.passes.compressible import CompressibleMatrix, candidates
from engine.passes.compression_report import CompressedLayer, CompressedModel, SkippedLayer
from engine.passes.expert_compression import (
    ExpertMatrices,
    expert_matrices,
    replace_experts,
    search_experts,
    why_not_packable,
)
from engine.passes.runtime_info import copy_runtime_info

Selection: TypeAlias = str | Iterable[str] | Callable[[Node], bool]
"""Nodes: by patterns of their friendly names, in which `*` and `?` stand for any characters; or by a function."""

_TYPES: Final = {"int4": (i4, u4), "int8": (i8, u8)}
_REALS: Final = (f32, f16, bf16)
_LARGEST: Final = {f32: 2.0**127, f16: 2.0**15, bf16: 2.0**127}
"""Half of a type's largest number, so that codes times a scale do not overflow."""
_STRIP: Final = 1 << 20
_MIN_LENGTH: Final = 64
_FEW: Final = 8


def compress_weights(
    model: Model,
    weights: str = "int4",
    *,
    group: int = 128,
    symmetric: bool = True,
    embeddings: bool = False,
    include: Selection = "*",
    exclude: Selection = (),
    least: int = _MIN_LENGTH,
) -> CompressedModel:
    """A copy of `model` whose constant matrices are integers of few bits, each block with a scale. Needs no data.

    Each matrix that MatMul or Gemm multiplies with becomes the DequantizeLinear of integers, which any runtime of
    opset 21 computes; inputs, outputs and names stay. The matrices of the experts of a MoE become codes as a QMoE has
    them. Scales are searched to have the least squared error (see `search_blocks`), and have the type of the matrix.
    The constants are the only data that is computed: linear in their bytes, about a second of one core for a matrix of
    4096 x 4096.

    Args:
        weights: "int4" or "int8".
        group: how many elements of a column share a scale; the last group of a column may be shorter. 0: all of them.
        symmetric: if False, each group also has a zero point.
        embeddings: whether tables of Gather are compressed.
        include, exclude: which of the nodes that read a matrix to consider; a matrix is compressed if all of its nodes
            that are products, or look-ups with `embeddings`, are included, and none is excluded.
        least: matrices with fewer rows or columns stay as they are.

    Raises `PassError` for an argument that is out of range, and for a name that no node has.
    """
    if weights not in _TYPES:
        raise PassError(f"compress_weights: weights is {weights!r}; expected {' or '.join(map(repr, _TYPES))}")
    if isinstance(group, bool) or not isinstance(group, int) or group < 0 or group == 1:
        raise PassError(f"compress_weights: group is {group!r}; expected 2 or more, or 0 for one scale per column")
    clone = model.clone()
    found = candidates(clone)
    mixtures = expert_matrices(clone)
    names = [use.node.friendly_name for each in found for use in each.uses]
    names += [node.friendly_name for each in mixtures for node in each.nodes]
    is_included, is_excluded = _selected(include, names, "include"), _selected(exclude, names, "exclude")
    element_type = _TYPES[weights][0 if symmetric else 1]
    before = weight_bytes(clone)
    layers: list[CompressedLayer] = []
    skipped: list[SkippedLayer] = []
    for each in found:
        uses = tuple(use for use in each.uses if embeddings or not use.is_embedding)
        candidate = CompressibleMatrix(each.constant, uses or each.uses)
        nodes = tuple(use.node.friendly_name for use in candidate.uses)
        if not uses:
            made: CompressedLayer | str = "an embedding; these are compressed only on request"
        elif not all(is_included(use.node) for use in uses):
            made = "not included"
        elif any(is_excluded(use.node) for use in uses):
            made = "excluded"
        else:
            made = _why_not_compressible(candidate, least) or _compress(candidate, nodes, element_type, group)
        if isinstance(made, CompressedLayer):
            layers.append(made)
        else:
            skipped.append(SkippedLayer(nodes, made))
    for mixture in mixtures:
        nodes = tuple(node.friendly_name for node in mixture.nodes)
        if not all(map(is_included, mixture.nodes)):
            made = "not included"
        elif any(map(is_excluded, mixture.nodes)):
            made = "excluded"
        else:
            made = _compress_experts(mixture, nodes, element_type, group, least)
        if isinstance(made, CompressedLayer):
            layers.append(made)
        else:
            skipped.append(SkippedLayer(nodes, made))
    return CompressedModel(clone, tuple(layers), tuple(skipped), before, weight_bytes(clone))


def _selected(selection: Selection, names: Iterable[str], argument: str) -> Callable[[Node], bool]:
    """The predicate of a selection. Raises `PassError` for a pattern that no name matches."""
    if callable(selection):
        return selection
    patterns = [selection] if isinstance(selection, str) else list(selection)
    known = sorted(set(names))
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in known):
            shown = ", ".join(known[:_FEW]) + (", ..." if len(known) > _FEW else "")
            raise PassError(
                f"compress_weights: no node that reads a matrix matches {pattern!r} of {argument}; these nodes are: "
                f"{shown or 'none'}"
            )
    return lambda node: any(fnmatchcase(node.friendly_name, pattern) for pattern in patterns)


def _why_not_compressible(candidate: CompressibleMatrix, least: int) -> str | None:
    """Why a matrix cannot be compressed; None if it can."""
    constant = candidate.constant
    if len(constant.shape) != 2:
        return f"it has shape {list(constant.shape)}; expected a matrix"
    if constant.element_type not in _REALS:
        return f"it is {constant.element_type}; expected {', '.join(map(str, _REALS))}"
    if candidate.axis is None:
        return "it is read both as it is and transposed"
    if min(constant.shape) < least:
        return f"it has shape {list(constant.shape)}; smaller than {least}"
    return None


def _compress(
    candidate: CompressibleMatrix, nodes: tuple[str, ...], element_type: ElementType, group: int
) -> CompressedLayer | str:
    """Replace a matrix; or the reason why not."""
    constant, axis = candidate.constant, candidate.axis
    assert axis is not None
    data = constant.data
    matrix = data if axis == 0 else data.T
    rows, columns = matrix.shape
    block = min(group, rows) if group else rows
    size = _byte_size(rows, columns, block, element_type, constant.element_type)
    if size >= constant.byte_size:
        return f"it would take {byte_count(size)} instead of {byte_count(constant.byte_size)}"
    if not _are_moderate(data, largest := _LARGEST[constant.element_type]):
        constant.release()
        return f"it has elements that are NaN, infinite or larger than {largest:.2g}"
    found = search_blocks(matrix, element_type, block, data.dtype, symmetric=element_type.is_signed)
    constant.release()
    _replace(candidate, _dequantized(found, constant, axis, block))
    return CompressedLayer(
        nodes,
        (rows, columns),
        element_type,
        block,
        constant.byte_size,
        size + (constant.byte_size if candidate.has_other_readers else 0),
        math.sqrt(found.squared_error / found.squared_sum) if found.squared_sum else 0.0,
        found.largest_error,
    )


def _compress_experts(
    mixture: ExpertMatrices, nodes: tuple[str, ...], element_type: ElementType, group: int, least: int
) -> CompressedLayer | str:
    """Replace the matrices of experts; or the reason why not."""
    constant = mixture.constant
    experts, rows, columns = shape = constant.shape
    if constant.element_type not in _REALS:
        return f"it is {constant.element_type}; expected {', '.join(map(str, _REALS))}"
    if min(rows, columns) < least:
        return f"it has shape {list(shape)}; its matrices are smaller than {least}"
    if reason := why_not_packable(shape, element_type):
        return reason
    block = min(group, columns) if group else columns
    size = _byte_size(columns, experts * rows, block, element_type, constant.element_type)
    if size >= constant.byte_size:
        return f"it would take {byte_count(size)} instead of {byte_count(constant.byte_size)}"
    if not _are_moderate(constant.data, largest := _LARGEST[constant.element_type]):
        constant.release()
        return f"it has elements that are NaN, infinite or larger than {largest:.2g}"
    found = search_experts(constant.data, element_type, block)
    constant.release()
    replace_experts(mixture, found, element_type, block)
    return CompressedLayer(
        nodes,
        (columns, experts * rows),
        element_type,
        block,
        constant.byte_size,
        size + (constant.byte_size if mixture.has_other_readers else 0),
        math.sqrt(found.squared_error / found.squared_sum) if found.squared_sum else 0.0,
        found.largest_error,
    )


def _byte_size(rows: int, columns: int, block: int, element_type: ElementType, scale_type: ElementType) -> int:
    parameters = -(-rows // block) * columns
    zero_points = 0 if element_type.is_signed else element_type.byte_size(parameters)
    return element_type.byte_size(rows * columns) + scale_type.byte_size(parameters) + zero_points


def _are_moderate(data: Array, largest: float) -> bool:
    """Whether all elements are numbers of at most `largest`, so that decoded numbers also are."""
    flat = data.reshape(-1)
    return all((np.abs(flat[start : start + _STRIP]) <= largest).all() for start in range(0, flat.size, _STRIP))


def _dequantized(found: BlockCodes, constant: Constant, axis: int, block: int) -> Node:
    """The DequantizeLinear of the codes, stored as the matrix was; without blocks if a column is one."""
    is_blocked = block < found.codes.shape[0]

    def stored(array: Array, what: str) -> Constant:
        if not is_blocked and what != "codes":
            array = array.reshape(-1)
        made = _packed(np.ascontiguousarray(array) if axis == 0 or array.ndim == 1 else transposed_matrix(array))
        if constant.has_own_name:
            made.friendly_name = f"{constant.friendly_name}.{what}"
        return made

    operands = [stored(found.codes, "codes"), stored(found.scales, "scale")]
    if found.zero_points is not None:
        operands.append(stored(found.zero_points, "zero_point"))
    attributes = {"axis": axis, "block_size": block} if is_blocked else {"axis": 1 - axis}
    return ops.create("DequantizeLinear", operands, attributes)


def _packed(array: Array) -> Constant:
    """A constant that keeps elements of 4 bits packed until they are read."""
    element_type = ElementType.from_numpy(array.dtype)
    if not element_type.is_packed:
        return Constant(array)
    raw, shape = tensor_to_raw(array), array.shape
    return Constant.lazy(
        TensorType(element_type, PartialShape(shape)), lambda: tensor_from_raw(raw, element_type, shape)
    )


def _replace(candidate: CompressibleMatrix, made: Node) -> None:
    users = [use.node for use in candidate.uses]
    made.friendly_name = f"{users[0].friendly_name}.weights"
    copy_runtime_info(users[:1], made)
    for source in {use.source for use in candidate.uses}:
        source.replace_source_output(made)
