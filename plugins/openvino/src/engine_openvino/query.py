"""What OpenVINO runs: its own answer for each kind of node, and the types that it would narrow without a word."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.errors import EngineError
from engine.ir import Constant, Model, Node, Output, TensorType
from engine.lowering import NodeAnswers
from engine.ops.traits import traits_of
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Config, QueryResult, RefusalCause, Support
from engine_openvino.runtime import Runtime

_WIDE: Final = frozenset({"i64", "u64", "u32"})
"""Integers that OpenVINO computes in 32 bits with a sign."""
_GROWING: Final = frozenset({
    "Add", "BitShift", "CumProd", "CumSum", "Einsum", "Gemm", "MatMul", "Max", "Mean", "Min", "Mul", "Pow", "Range",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Sub", "Sum",
})  # fmt: skip
"""Operators whose results may need more bits than 32, if the data has more or fewer."""
_ADDRESSED: Final = frozenset({
    "ConstantOfShape", "Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Unsqueeze",
})  # fmt: skip
"""Operators whose integer parameters are lengths, axes or indices, which always fit."""
_WAY_OUT: Final = "set ALLOW_NARROW_TYPES to accept that, or run it on another device (HETERO:OPENVINO,CPU)"


def query(model: Model, runtime: Runtime, config: Config, answers: NodeAnswers[str]) -> QueryResult:
    """The support of each operation of `model`, alone; `answers` are OpenVINO's."""
    precision = config["INFERENCE_PRECISION_HINT"]

    def support(node: Node) -> Support:
        refused = refusal(node, runtime, is_narrow=config["ALLOW_NARROW_TYPES"])
        if refused is not None:
            return refused
        why = answers.answer(node)
        if why:
            return Support.refused(RefusalCause.OP, why)
        return Support.native(precision if any(output.element_type.is_real for output in node.outputs) else "")

    return QueryResult({node.friendly_name: support(node) for node in filter(is_operation, model.ordered_nodes())})


def ask(model: Model, runtime: Runtime, device: str, config: Config) -> str:
    """Why OpenVINO does not run the only node of `model`; empty if it does."""
    try:
        runtime.compile(model, device, runtime.settings(device, config), as_file=False)
    except EngineError as e:
        return str(e)
    return ""


def refusal(node: Node, runtime: Runtime, *, is_narrow: bool) -> Support | None:
    """Why a node is refused, or a node in its bodies, without asking OpenVINO; None if it may run."""
    for value in (*node.input_values, *node.outputs):
        if value is not None and not isinstance(value.type, TensorType):
            return Support.refused(RefusalCause.ELEMENT_TYPE, f"{value} is {value.type}; OpenVINO takes tensors only")
        if value is not None and runtime.type_of(value.element_type) is None:
            why = f"{value} is {value.element_type}, which OpenVINO {runtime.version} does not have"
            return Support.refused(RefusalCause.ELEMENT_TYPE, why)
    for body in node.bodies.values():
        for inner in filter(is_operation, body.ordered_nodes()):
            found = refusal(inner, runtime, is_narrow=is_narrow)
            if found is not None:
                return Support.refused(found.cause or RefusalCause.OP, f"in its body, {inner}: {found.reason}")
    narrowed = None if is_narrow else _narrowed(node)
    return Support.refused(RefusalCause.ELEMENT_TYPE, f"{narrowed}; {_WAY_OUT}") if narrowed else None


def _narrowed(node: Node) -> str | None:
    """How the node's results may differ because OpenVINO computes in narrower types; None if they do not."""
    data = [value for value in node.input_values[: traits_of(node).data] if value is not None]
    for value in (*data, *node.outputs):
        if value.element_type.name == "f64":
            return f"{value} is f64, which OpenVINO computes in f32"
        if isinstance(value.node, Constant) and _is_wide(value) and not _fits(value.node.data):
            return f"{value} has integers beyond 32 bits, which OpenVINO would clip"
    for value in filter(_is_wide, node.outputs):
        from_real = node.op_type in ("Cast", "CastLike") and data[0].element_type.is_real
        adds = node.op_type.startswith("Scatter") and node.attributes.get("reduction", "none") != "none"
        if (node.op_type in _GROWING or from_real or adds) and not _only_addresses(value):
            return f"{node.op_type} of {value.element_type}, which OpenVINO computes in 32 bits"
    return None


def _only_addresses(value: Output) -> bool:
    """Whether a value is used for lengths, axes and indices only, perhaps after further computations."""
    readers = value.target_inputs
    return bool(readers) and all(
        (reader.node.op_type in _ADDRESSED and (reader.index > 0 or reader.node.op_type == "ConstantOfShape"))
        or (reader.node.num_outputs > 0 and all(_is_wide(out) and _only_addresses(out) for out in reader.node.outputs))
        for reader in readers
    )


def _is_wide(value: Output) -> bool:
    return isinstance(value.type, TensorType) and value.element_type.name in _WIDE


def _fits(data: Any) -> bool:
    limits = np.iinfo(np.int32)
    return not data.size or bool(limits.min <= data.min() and data.max() <= limits.max)
