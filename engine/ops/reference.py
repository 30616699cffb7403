"""Reference evaluation of single nodes, by the engine's own evaluator if any, otherwise by `onnx.reference`.

`onnx.reference` runs at the canonical opset. Values are numpy arrays (strings as object arrays of str), lists
(sequences), dicts (maps) and None (an empty optional). Outputs may alias inputs; inputs are never modified.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from engine.errors import DeviceError, EngineError, InferError, InputError, OutOfMemoryError, UnsupportedError
from engine.ir import Node, Output, TensorType, string, undefined
from engine.limits import LARGE_BYTES, check_bytes, check_growth, current_limits
from engine.ops.late_lengths import contradiction_of
from engine.ops.protos import attribute_to_proto
from engine.ops.refusal import refusal_of
from engine.ops.registry import CANONICAL_VERSIONS, Evaluator, find_op
from engine.ops.result_size import guard, value_bytes
from engine.ops.suspect_values import suspicion_of
from engine.ops.tensors import Array
from engine.startup.onnx_library import onnx

_HOMES: Final[dict[str, str]] = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}
"""The modules that load the operators of a domain; they take 11 MB, which most models do not need."""
_RUN_PARAMS: Final[dict[str, Any]] = {
    "log": lambda pattern, *arguments: None,
    "opsets": CANONICAL_VERSIONS,
    "verbose": 0,
    "new_ops": None,
}


def evaluate(node: Node, inputs: Sequence[Any], max_bytes: int | None = None) -> tuple[Any, ...]:
    """The outputs of one node for the values of its inputs; None is an omitted input.

    `max_bytes` is the largest allowed size of the outputs, by default the limit of the compilation in progress.

    Raises `UnsupportedError` if there is no evaluation, `OutOfMemoryError` before outputs that are too large are
    allocated, `InputError` with node and inputs if the operator does not allow their values or lengths, `DeviceError`
    likewise if it fails for another reason.
    """
    return compile_node(node, max_bytes)(inputs)


def compile_node(node: Node, max_bytes: int | None = None) -> Evaluator:
    """An evaluator of `node` for many calls: attributes are read once; safe for concurrent calls.

    Raises `UnsupportedError` if there is no evaluation. The evaluator raises the other errors of `evaluate`, and does
    not keep the node alive.
    """
    op = find_op(node.op_type, node.domain)
    if op is None:
        raise UnsupportedError(
            f"{node}: operator {node.op_type!r} of domain {node.domain!r} has no reference evaluation; "
            "replace it by operators of ONNX, add an extension that defines it (core.add_extension), or compile for a "
            "device that supports it"
        )
    run = (op.evaluator or compile_onnx)(node)
    refusal = refusal_of(node)
    title, names = str(node), [op.input_name(i) if i < op.max_inputs else f"{i}" for i in range(node.num_inputs)]
    num_outputs = node.num_outputs
    limit = current_limits().tensor_bytes if max_bytes is None else max_bytes
    check_size = guard(node, limit)
    is_suspect, contradicts = suspicion_of(node), contradiction_of(node)

    def call(inputs: Sequence[Any]) -> tuple[Any, ...]:
        try:
            if contradicts is not None and contradicts(inputs):
                raise ValueError("the operator does not allow the lengths of its inputs")
            if check_size is not None:
                check_size(inputs)
            with np.errstate(all="ignore"):
                if is_suspect is not None and is_suspect(inputs):
                    raise ValueError("the operator does not allow the values of its inputs")
                outputs = run(inputs)
        except (InferError, OutOfMemoryError, TimeoutError):
            raise  # an error of a node of a body, which it names, or an interruption, as by the handler of a signal
        except Exception as e:
            given = ", ".join(f"{name} {describe(v)}" for name, v in zip(names, inputs, strict=False)) or "none"
            why = None if isinstance(e, (UnsupportedError, NotImplementedError, MemoryError)) else refusal(inputs, e)
            if why is not None:
                raise InputError(f"{title} cannot take inputs {given}: {why}") from e
            raise _kind(e)(f"{title}: evaluation failed for inputs {given}: {e}") from e
        settled = tuple([_settle(value) for value in outputs[:num_outputs]])
        if limit:  # also for the results that `check_size` does not predict
            check_bytes(sum(map(value_bytes, settled)), title, limit)
        _growth.count(settled, title)
        return settled if len(settled) == num_outputs else settled + (None,) * (num_outputs - len(settled))

    return call


def constant_value(data: Array) -> Array:
    """The data of a constant as an evaluator reads it: contiguous and aligned, a copy if need be.

    The layout decides in which order numpy and its BLAS add up. A folded Transpose is a view of other data, and a
    tensor of a file begins at any byte, where numpy does not call BLAS; but an exported network stores elements in
    order and aligned, and gives the same results, bit for bit.
    """
    return np.asarray(data, order="C") if data.flags.aligned else np.array(data, order="C")


class _Growth:
    """Bytes of results since the available memory was last compared with a reserve.

    Many results that are small enough one by one may fill the memory, as in an endless loop.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def count(self, values: Sequence[Any], what: str) -> None:
        """Add results of the operation `what`. Raises `OutOfMemoryError`."""
        for value in values:
            if type(value) is np.ndarray:
                self._bytes += value.nbytes
        if self._bytes >= LARGE_BYTES:
            self._bytes = 0
            check_growth(what)


_growth: Final = _Growth()
"""Shared by all threads; it need not be exact."""


def _kind(error: Exception) -> type[EngineError]:
    if isinstance(error, (UnsupportedError, NotImplementedError)):
        return UnsupportedError
    return OutOfMemoryError if isinstance(error, MemoryError) else DeviceError


def describe(value: Any) -> str:
    """The description of a value in messages: `float32[2,3]`, `a list of 3`."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "none" if value is None else type(value).__name__


def compile_onnx(node: Node) -> Evaluator:
    """The evaluator of `onnx.reference`, for evaluators that check or normalize its inputs; see `compile_node`."""
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.friendly_name)
    proto.input.extend("" if s is None else f"x{i}" for i, s in enumerate(node.input_values))
    proto.output.extend(f"y{i}" for i in range(node.num_outputs))
    op = find_op(node.op_type, node.domain)
    for name, value in node.attributes.items():
        definition = op.attributes.get(name) if op else None
        proto.attribute.append(attribute_to_proto(name, value, definition.kind if definition else None))
    try:
        run = load_onnx_implementation(node.op_type, node.domain)(proto, _RUN_PARAMS).run
    except Exception as e:
        raise UnsupportedError(f"{node}: operator {op} has no reference evaluation: {e}") from e
    dtypes = [_dtype(output) for output in node.outputs]
    return lambda inputs: tuple([_typed(v, dtype) for v, dtype in zip(run(*inputs), dtypes, strict=False)])


def _dtype(output: Output) -> np.dtype[Any] | None:
    """The numpy dtype of an output; None if it is not a numeric tensor, or its type is unknown."""
    if not isinstance(output.type, TensorType) or output.element_type in (undefined, string):
        return None
    return np.dtype(output.element_type.numpy)


def _typed(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """`value` converted to the operator's output type: for example, numpy's sums of i32 are i64."""
    if dtype is None or not isinstance(value, (np.ndarray, np.generic)):
        return value
    return value.astype(dtype, copy=False)


def load_onnx_implementation(op_type: str, domain: str) -> Any:
    """The class of `onnx.reference` that evaluates an operator; if there is none, the exception of `onnx` passes."""
    found = import_module(_HOMES[domain]).load_op(domain, op_type, CANONICAL_VERSIONS[domain])
    better = _BETTER.get(op_type) if domain == "ai.onnx.ml" else None
    if better is not None:
        module, names = better
        return type(op_type, (*(getattr(import_module(module), name) for name in names), found), {})
    return found


_BETTER: Final = {
    "SVMClassifier": ("engine.ops.support_vectors", ("CoupledProbabilities", "Votes")),
    "SVMRegressor": ("engine.ops.support_vectors", ("Sums",)),
}
"""Operators of ai.onnx.ml, some of whose methods are replaced by classes of a module that imports the package's own."""


def _settle(value: Any) -> Any:
    """`value` in the representation described above."""
    if type(value) is np.ndarray:
        return value.astype(object) if value.dtype.kind in "US" else value
    if isinstance(value, (list, tuple)):
        return [_settle(item) for item in value]
    if value is None or isinstance(value, dict):
        return value
    return _settle(np.asarray(value))
