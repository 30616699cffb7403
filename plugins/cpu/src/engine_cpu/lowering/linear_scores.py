"""Lowers the linear classifiers and regressors of `ai.onnx.ml`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ir.element_type import f32, f64, i32, i64
from engine.lowering import Refusal, RefusalCause, check_types
from engine.ops.classical_specs import LinearClassifierSpec, LinearRegressorSpec
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import Array, SegmentBuilder

_ML: Final = "ai.onnx.ml"
_INPUTS: Final = frozenset({f32, f64, i32, i64})
ROW_BLOCK: Final = 16
"""Vectors that are stored side by side: kRowBlock of row_blocks.hpp."""


@lowers("LinearRegressor", domain=_ML, spec=LinearRegressorSpec)
class LinearRegressorLowering(OpLowering[LinearRegressorSpec]):
    """In f32, whatever the type of the rows."""

    def check(self, spec: LinearRegressorSpec) -> Refusal | None:
        if spec.post_transform not in ("NONE", "LOGISTIC", "SOFTMAX"):
            return Refusal(
                RefusalCause.ATTRIBUTE, f"post_transform is {spec.post_transform}; expected NONE, LOGISTIC or SOFTMAX"
            )
        return check_types([spec.node.input_value(0)], _INPUTS)

    def lower(self, spec: LinearRegressorSpec, b: SegmentBuilder) -> None:
        _lower(spec, b, np.dtype(np.float32), spec.targets)


@lowers("LinearClassifier", domain=_ML, spec=LinearClassifierSpec)
class LinearClassifierLowering(OpLowering[LinearClassifierSpec]):
    """In f32, or f64 for rows of f64, with labels that are numbers."""

    def check(self, spec: LinearClassifierSpec) -> Refusal | None:
        if spec.classlabels_ints is None:
            return Refusal(RefusalCause.ATTRIBUTE, "the labels are strings; expected integers")
        if len(spec.classlabels_ints) < 2:
            return Refusal(RefusalCause.ATTRIBUTE, "there is one class; expected two or more")
        x = spec.node.input_value(0)
        if not x.shape.rank.is_static or not x.shape[-1].is_static:
            return Refusal(RefusalCause.DYNAMIC_SHAPE, "the number of features is not known")
        if len(spec.intercepts or ()) not in (0, _targets(spec, x.shape[-1].min)):
            return Refusal(RefusalCause.ATTRIBUTE, "there are two intercepts for one row of coefficients; expected one")
        return check_types([spec.node.input_value(0)], _INPUTS)

    def lower(self, spec: LinearClassifierSpec, b: SegmentBuilder) -> None:
        labels = np.array(spec.classlabels_ints, np.int64)
        x = spec.node.input_value(0)
        dtype = np.dtype(np.float64 if x.element_type is f64 else np.float32)
        _lower(spec, b, dtype, _targets(spec, b.shape(x)[-1]), labels)


def _targets(spec: LinearClassifierSpec, features: int) -> int:
    return len(spec.coefficients) // max(features, 1)


def _lower(
    spec: LinearRegressorSpec | LinearClassifierSpec,
    b: SegmentBuilder,
    dtype: np.dtype[Any],
    targets: int,
    labels: Array | None = None,
) -> None:
    node = spec.node
    x, shape = node.input_value(0), b.shape(node.input_value(0))
    features = shape[-1]
    vectors = np.array(spec.coefficients, np.float32).reshape(targets, features)
    base = np.array(spec.intercepts or [0.0] * targets, np.float32).reshape(targets, 1)
    inputs = [b.input(x), *(b.constant(row_blocks(each).astype(dtype)) for each in (vectors, base))]
    has_two = labels is not None and targets == 1
    if labels is not None:
        inputs.append(b.constant(labels))
    b.step(
        node,
        "linear_scores",
        inputs,
        [b.output(value) for value in reversed(node.outputs)],
        type=x.element_type.name,
        compute=f64.name if dtype == np.float64 else f32.name,
        result=f32.name,
        rows=shape[0] if len(shape) == 2 else 1,
        features=features,
        targets=targets,
        complement="negative" if has_two else "none",
        transform=spec.post_transform.lower(),
        labels=int(labels is not None),
    )


def row_blocks(rows: Array) -> Array:
    """Rows [vectors, width] in blocks [width, 16], with zeros behind the last row."""
    count, width = rows.shape
    padded = np.zeros((-(-count // ROW_BLOCK) * ROW_BLOCK, width), rows.dtype)
    padded[:count] = rows
    return np.ascontiguousarray(padded.reshape(-1, ROW_BLOCK, width).transpose(0, 2, 1))
