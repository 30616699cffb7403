"""The operator set: ONNX's at one canonical opset, with type inference and reference evaluation.

`ops.Relu(x)`, `ops.Conv(x, w, strides=[2, 2])`: every operator of ONNX's own domain has a constructor here, which
takes inputs positionally in the schema's order, and attributes by keyword. `create` supports every known domain.
"""

from collections.abc import Callable

from engine.ir import Constant, Node, Parameter, Result
from engine.ops import (  # noqa: F401  they attach their rules and evaluations to the registry
    activations,
    agreement,
    conversions,
    creation,
    direct,
    elementwise,
    gather,
    index_values,
    inference,
    pad,
    quantize,
    reduce,
    reshape,
    select,
    slice,
    transpose,
)
from engine.ops.axes import AxisMapping, axes_of
from engine.ops.create import create, make_constructor
from engine.ops.evaluator import ModelEvaluator, evaluate_model
from engine.ops.reference import compile_node, evaluate
from engine.ops.registry import (
    CANONICAL_OPSET,
    CANONICAL_VERSIONS,
    INTERNAL_DOMAIN,
    ML_OPSET,
    TRAINING_OPSET,
    AttributeDef,
    OpDef,
    OpPort,
    all_ops,
    attribute,
    find_op,
    get_op,
)
from engine.ops.spec import OperatorSpec, spec_of, specifies
from engine.ops.traits import Growth, Moves, Traits, operators_with, traits_of

__all__ = [
    "CANONICAL_OPSET", "CANONICAL_VERSIONS", "INTERNAL_DOMAIN", "ML_OPSET", "TRAINING_OPSET", "AttributeDef",
    "AxisMapping", "Constant", "Growth", "ModelEvaluator", "Moves", "OpDef", "OpPort", "OperatorSpec", "Parameter",
    "Result", "Traits", "all_ops", "attribute", "axes_of", "compile_node", "create", "evaluate", "evaluate_model",
    "find_op", "get_op", "operators_with", "spec_of", "specifies", "traits_of",
]  # fmt: skip


def __getattr__(name: str) -> Callable[..., Node]:
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    constructor = make_constructor(get_op(name))
    globals()[name] = constructor
    return constructor


def __dir__() -> list[str]:
    return sorted({*globals(), *(op.name for op in all_ops() if not op.domain)})
