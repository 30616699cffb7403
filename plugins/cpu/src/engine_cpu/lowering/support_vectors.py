"""Lowers the support vector machines of `ai.onnx.ml`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ir.element_type import f32, f64, i32, i64
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.ops.classical_specs import SvmClassifierSpec, SvmRegressorSpec
from engine_cpu.lowering.linear_scores import row_blocks
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import Array, SegmentBuilder

_ML: Final = "ai.onnx.ml"
_INPUTS: Final = frozenset({f32, f64, i32, i64})
_KERNELS: Final = {"LINEAR": "linear", "POLY": "polynomial", "RBF": "rbf", "SIGMOID": "sigmoid"}
_LARGEST_DEGREE: Final = 16


@lowers("SVMRegressor", domain=_ML, spec=SvmRegressorSpec)
class RegressorLowering(OpLowering[SvmRegressorSpec]):
    """Sums over support vectors, or their signs."""

    def check(self, spec: SvmRegressorSpec) -> Refusal | None:
        return first_refusal(_check(spec), None if spec.n_supports else _without_vectors("n_supports"))

    def lower(self, spec: SvmRegressorSpec, b: SegmentBuilder) -> None:
        _lower(spec, b, [spec.n_supports], "sign" if spec.one_class else "sum")


@lowers("SVMClassifier", domain=_ML, spec=SvmClassifierSpec)
class ClassifierLowering(OpLowering[SvmClassifierSpec]):
    """Margins or probabilities of classes, with labels that are numbers."""

    def check(self, spec: SvmClassifierSpec) -> Refusal | None:
        if spec.classlabels_ints is None:
            return Refusal(RefusalCause.ATTRIBUTE, "the labels are strings; expected integers")
        if len(spec.classlabels_ints) < 2:
            return Refusal(RefusalCause.ATTRIBUTE, "there is one class; expected two or more")
        if not spec.prob_a and min(spec.coefficients or (0.0,)) >= 0:
            return Refusal(RefusalCause.ATTRIBUTE, "no coefficient is negative, so the votes do not decide")
        return first_refusal(_check(spec), None if spec.vectors_per_class else _without_vectors("vectors_per_class"))

    def lower(self, spec: SvmClassifierSpec, b: SegmentBuilder) -> None:
        inputs = [b.constant(np.array(spec.classlabels_ints, np.int64))]
        if spec.prob_a:
            curves = np.array([spec.prob_a, spec.prob_b], np.float32)
            inputs.append(b.constant(curves.astype(np.float64)))
        _lower(spec, b, spec.vectors_per_class or (), "probability" if spec.prob_a else "vote", inputs)


def _check(spec: SvmRegressorSpec | SvmClassifierSpec) -> Refusal | None:
    degree = spec.kernel_params[2] if spec.kernel_params and spec.kernel_type == "POLY" else 0
    if degree != int(degree) or not 0 <= degree <= _LARGEST_DEGREE:
        return Refusal(RefusalCause.ATTRIBUTE, f"the degree is {degree}; expected an integer from 0 to "
                                               f"{_LARGEST_DEGREE}")  # fmt: skip
    if spec.post_transform != "NONE":
        return Refusal(RefusalCause.ATTRIBUTE, f"post_transform is {spec.post_transform}; expected NONE")
    return check_types([spec.node.input_value(0)], _INPUTS)


def _without_vectors(name: str) -> Refusal:
    return Refusal(RefusalCause.ATTRIBUTE, f"{name} gives no support vectors; expected one or more")


def _lower(
    spec: SvmRegressorSpec | SvmClassifierSpec, b: SegmentBuilder, spans: Any, mode: str, last: Any = ()
) -> None:
    node = spec.node
    x, shape = node.input_value(0), b.shape(node.input_value(0))
    dtype = np.dtype(np.float64 if x.element_type is f64 else np.float32)
    features = shape[-1]
    vectors = np.array(spec.support_vectors, np.float32).reshape(sum(spans), features)
    coefficients = np.array(spec.coefficients, np.float32).reshape(-1, sum(spans)).T
    gamma, coef0, degree = spec.kernel_params or (0.0, 0.0, 0.0)
    packed = _blocks(vectors, spans)
    inputs = [
        b.input(x),
        b.constant(packed.astype(dtype)),
        b.constant(_blocks(coefficients, spans).astype(dtype)),
        b.constant(np.array(spans, np.int32)),
        b.constant(np.array(spec.rho, np.float32).astype(dtype)),
        *last,
    ]
    outputs = [b.output(value) for value in reversed(node.outputs)]
    b.step(
        node,
        "support_vectors",
        inputs,
        outputs,
        type=x.element_type.name,
        compute=f64.name if dtype == np.float64 else f32.name,
        kernel=_KERNELS[spec.kernel_type],
        mode=mode,
        gamma=float(gamma),
        coef0=float(coef0),
        degree=int(degree) if spec.kernel_type == "POLY" else 0,
        rows=shape[0] if len(shape) == 2 else 1,
        features=features,
        blocks=len(packed),
        classes=len(spans),
    )


def _blocks(rows: Array, spans: Any) -> Array:
    """The rows of each class in blocks of their own."""
    ends = np.cumsum(spans)
    return np.concatenate([row_blocks(rows[end - span : end]) for end, span in zip(ends, spans, strict=True)])
