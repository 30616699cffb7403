"""Evaluating operations whose inputs are all constants at compile time."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from engine.errors import DeclarationError, DeviceError, EngineError, InferError, InputError
from engine.ir import (
    Constant,
    ElementType,
    Node,
    Output,
    Parameter,
    Result,
    TensorType,
    ValueType,
    undefined,
)
from engine.limits import current_budget
from engine.ops import find_op
from engine.ops.cost import evaluation_time
from engine.ops.reference import evaluate
from engine.ops.result_size import value_bytes

MAX_OUTPUT_BYTES: Final = 64 << 20
"""Results above this size that are larger than their inputs are not folded: a folded Expand would inflate a blob."""
PROTECTED: Final = frozenset({"DequantizeLinear"})
"""Operators that the pass never folds: folding the DequantizeLinear of weights destroys the integer path."""
_RAISED_BY: Final = frozenset({"PIL", "builtins", "engine", "google", "numpy", "onnx", "re", "zlib"})
"""The packages whose classes of exceptions evaluators raise."""


def is_foldable(node: Node) -> bool:
    """True if `node` can be folded and all its inputs are constants."""
    is_constant = False
    for source in node.sources:
        if source is not None:
            if not isinstance(source.node, Constant):
                return False  # of almost all nodes
            is_constant = True
    return is_constant and is_foldable_operation(node)


def is_foldable_operation(node: Node) -> bool:
    """True if `node` is a deterministic ONNX operation."""
    if isinstance(node, (Parameter, Constant, Result)) or node.op_type in PROTECTED or node.bodies:
        return False
    op = find_op(node.op_type, node.domain)
    return op is not None and op.is_deterministic and all(type(t) is TensorType for t in node.output_types)


def constant_fold(node: Node, max_bytes: int | None = None) -> list[Output] | None:
    """The outputs of `node` as constants; None if it cannot be folded.

    The graph is not changed: `replace_node(node, folded)` does that. The constants take the node's friendly name.
    `max_bytes` bounds the size of the outputs: larger results are not folded, and results that exceed the budget of the
    compilation are not, either (`engine.limits.current_budget`), which the result and the work are counted against.
    """
    if not is_foldable(node):
        return None
    budget, work = current_budget(), evaluation_time(node)
    known = known_bytes(node)
    most = min(budget.bytes_left, sys.maxsize if max_bytes is None else max_bytes)
    if known > most or not budget.allows(known, work):
        return None
    budget.spend(0, work)
    try:
        values = evaluate(node, [s.node.data if s is not None else None for s in node.sources], max(1, most))  # type: ignore[attr-defined]
    except EngineError as e:
        if _is_foreign(node, e):
            raise
        return None  # an operation that fails on constants fails at run time, with the node's name
    if any(
        type(value) is not np.ndarray or not _fits(value, t) for value, t in zip(values, node.output_types, strict=True)
    ):
        return None  # an omitted output, or a type that consumers did not expect
    nbytes = sum(map(value_bytes, values))
    if nbytes > most:
        return None
    budget.spend(nbytes, 0)
    return [Constant(value, friendly_name=_name(node, index)).output(0) for index, value in enumerate(values)]


def _is_foreign(node: Node, error: EngineError) -> bool:
    """Whether an exception in an evaluation is not of it, but of the handler of a signal, by its class.

    Operators of extensions may raise any class.
    """
    op, cause = find_op(node.op_type, node.domain), error.__cause__
    if isinstance(error, InferError) and not isinstance(error, (InputError, DeviceError, DeclarationError)):
        return True  # an interruption
    known = cause is None or type(cause).__module__.partition(".")[0] in _RAISED_BY
    return not known and (op is None or op.definition is None)


def bytes_allowed(node: Node, limit: int = MAX_OUTPUT_BYTES) -> int:
    """The size limit for the folded outputs of `node`: `limit`, or the size of its constant inputs if larger.

    An input that is read twice counts once: otherwise each Concat of a constant with itself would double it.
    """
    inputs = {s.node for s in node.sources if s is not None}
    return max(limit, sum(source.byte_size for source in inputs if isinstance(source, Constant)))


def _fits(value: np.ndarray[Any, Any], value_type: ValueType) -> bool:
    if not isinstance(value_type, TensorType):
        return False
    known = value_type.element_type
    return known in (undefined, ElementType.from_numpy(value.dtype)) and value_type.shape.accepts(value.shape)


def _name(node: Node, index: int) -> str | None:
    if not node.has_own_name:
        return None
    return node.friendly_name if node.num_outputs == 1 else f"{node.friendly_name}.{index}"


def known_bytes(node: Node) -> int:
    """Bytes of the outputs of `node` as far as their shapes are known."""
    total = 0
    for value_type in node.output_types:
        if isinstance(value_type, TensorType) and value_type.shape.is_static:
            total += value_type.element_type.byte_size(value_type.shape.size())
    return total
