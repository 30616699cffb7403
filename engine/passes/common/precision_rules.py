"""Rules for the operations that stay in f32 when a model is computed in a narrower type."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, Result, TensorType, f32
from engine.ops.traits import Growth, traits_of

KEEP_PRECISION: Final = "keep_precision"
"""The rt_info key that, if True, keeps a node in its original type."""

_QUOTIENTS: Final = ("Div", "Reciprocal")
_EXACT: Final = ("ConstantOfShape", "EyeLike", "Range")
"""They compute numbers from sizes, and f16 holds integers exactly only up to 2048."""
_OF_COORDINATES: Final = ("GridSample", "RoiAlign")


def moves(node: Node) -> bool:
    """Whether a node, unless it trains, only moves elements, so that its results have no rounding."""
    return traits_of(node).moves is not None or (node.op_type == "Dropout" and not node.domain)


def is_real(value: Output | None) -> bool:
    """Whether a value is a tensor of f32."""
    return value is not None and isinstance(value.type, TensorType) and value.type.element_type is f32


def kept_nodes(model: Model, target: ElementType) -> set[Node]:
    """The operations that stay in f32:

    - those listed or marked: casts, quantization, GridSample and RoiAlign for their coordinates, numbers computed from
      sizes, operations with bodies, `KEEP_PRECISION`;
    - those that read a constant which `target` cannot hold (`holds`);
    - powers, exponentials and sums, and elementwise functions of them, up to a root, logarithm or quotient;
    - elementwise functions of only integers and constants: positions, angles, masks;
    - values from which integers are computed elementwise: indices;
    - elementwise operations, data movements and reductions between such nodes and the model's inputs and outputs.
    """
    nodes = [n for n in model.ordered_nodes() if not isinstance(n, (Parameter, Constant, Result))]
    kept = {node for node in nodes if _is_stated(node) or not _holds_constants(node, target)}
    wide: set[Node] = set()
    exact: set[Node] = set()
    for node in nodes:
        real = [value.node for value in node.input_values if value is not None and is_real(value)]
        is_local = _is_local(node)
        reads_wide = is_local and any(source in wide for source in real)
        if reads_wide or _is_widening(node):
            kept.add(node)
            if _is_widening(node) or not _has_moderate_results(node):
                wide.add(node)
        if _makes_exact(node) or (is_local and _is_of(real, exact)):
            kept.add(node)
            exact.add(node)
    kept |= _sources_of_integers(nodes)
    return kept | _islands(nodes, kept)


def holds(target: ElementType, data: NDArray[Any]) -> bool:
    """Whether a type can hold a constant: no finite number overflows, and not all of them underflow or lose digits."""
    limits = np.finfo(target.numpy)
    sizes = np.abs(data[np.isfinite(data)])
    largest = float(sizes.max(initial=0.0))
    return largest <= float(limits.max) and (largest == 0 or largest >= float(limits.smallest_normal))


def _is_stated(node: Node) -> bool:
    is_listed = node.op_type in (*_EXACT, *_OF_COORDINATES, "Cast", "CastLike") or traits_of(node).quantizes
    return is_listed or bool(node.bodies) or node.annotations.get(KEEP_PRECISION) is True


def _is_local(node: Node) -> bool:
    """Whether a node computes real numbers, and no more than it moves."""
    traits = traits_of(node)
    return (traits.pointwise or traits.reduces or moves(node)) and is_real(node.output(0))


def _holds_constants(node: Node, target: ElementType) -> bool:
    if node.op_type == "Clip":
        return True  # values beyond the type's limits are used as "unbounded"
    for value in node.input_values:
        if value is not None and is_real(value) and isinstance(value.node, Constant):
            fits = holds(target, value.node.data)
            value.node.release()
            if not fits:
                return False
    return True


def _is_widening(node: Node) -> bool:
    is_square = node.op_type == "Mul" and node.input_value(0) == node.input_value(1)
    grows = traits_of(node).growth is Growth.GROWS or (is_square and not node.domain)
    return grows and is_real(node.output(0))


def _has_moderate_results(node: Node) -> bool:
    """Whether the results are moderate even if the inputs are not."""
    traits = traits_of(node)
    is_bounded = traits.range is not None and all(map(math.isfinite, traits.range))
    return is_bounded or traits.growth is Growth.SHRINKS or node.op_type in _QUOTIENTS


def _makes_exact(node: Node) -> bool:
    if node.op_type == "Cast" and is_real(node.output(0)):
        source = node.input_value(0).type
        return isinstance(source, TensorType) and source.element_type.is_integral
    return node.op_type in _EXACT and is_real(node.output(0))


def _is_of(real: Iterable[Node], exact: set[Node]) -> bool:
    """Whether a node reads exact numbers, and otherwise only constants."""
    others = [source for source in real if not isinstance(source, Constant)]
    return bool(others) and all(source in exact for source in others)


def _sources_of_integers(nodes: list[Node]) -> set[Node]:
    found: set[Node] = set()
    for node in reversed(nodes):
        if not _is_local(node):
            continue
        targets = [target.node for output in node.outputs if is_real(output) for target in output.target_inputs]
        if any(target in found or _makes_integers(target) for target in targets):
            found.add(node)
    return found


def _makes_integers(node: Node) -> bool:
    if node.op_type != "Cast":
        return False
    made = node.output(0).type
    return isinstance(made, TensorType) and made.element_type.is_integral


def _islands(nodes: list[Node], kept: set[Node]) -> set[Node]:
    """Groups of converted operations without any that computes more than it moves."""
    found: set[Node] = set()
    seen: set[Node] = set()
    candidates = {n for n in nodes if n not in kept and any(map(is_real, (*n.input_values, *n.outputs)))}
    for start in nodes:
        if start not in candidates or start in seen:
            continue
        island, stack = {start}, [start]
        while stack:
            for each in _neighbours(stack.pop()):
                if each in candidates and each not in island:
                    island.add(each)
                    stack.append(each)
        seen |= island
        if all(map(_is_local, island)):
            found |= island
    return found


def _neighbours(node: Node) -> list[Node]:
    sources = [value.node for value in node.input_values if value is not None and is_real(value)]
    return sources + [t.node for output in node.outputs if is_real(output) for t in output.target_inputs]
