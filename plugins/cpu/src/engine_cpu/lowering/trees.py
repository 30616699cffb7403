"""Lowers the tree ensembles of `ai.onnx.ml`."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir.element_type import f32, f64, i32, i64
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.ops.flat_trees import LEAF, LEQ, LT, NAN_IS_NEXT, FlatTrees
from engine.ops.trees import ML, TreeSpec
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import Array, SegmentBuilder

_INPUTS: Final = frozenset({f32, f64, i32, i64})
_OUTPUTS: Final = frozenset({f32, f64, i64})
_COMPARED: Final = {LEQ: "leq", LT: "less"}


@lowers("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble", domain=ML, spec=TreeSpec)
class TreesLowering(OpLowering[TreeSpec]):
    """All modes of nodes, aggregations and transformations; labels that are numbers."""

    def check(self, spec: TreeSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        return first_refusal(check_types([x], _INPUTS), check_types(spec.node.outputs, _OUTPUTS), _check_finite(spec))

    def lower(self, spec: TreeSpec, b: SegmentBuilder) -> None:
        node, trees = spec.node, spec.trees
        x, scores = node.input_value(0), node.output(node.num_outputs - 1)
        shape = b.shape(x)
        is_single = spec.targets == 1 and _has_one_weight(trees)
        inputs = [b.input(x), b.constant(_nodes(trees, is_single)), b.constant(trees.roots)]
        if not is_single:
            inputs.append(b.constant(_weights(trees)))
        if spec.base:
            inputs.append(b.constant(np.array(spec.base, trees.dtype)))
        outputs = [b.output(scores)]
        if spec.labels:
            inputs.append(b.constant(np.array(spec.labels, np.int64)))
            outputs.append(b.output(node.output(0)))
        kinds = set((trees.kind[trees.feature != LEAF] & (NAN_IS_NEXT - 1)).tolist()) or {LEQ}
        b.step(
            node,
            "trees",
            inputs,
            outputs,
            type=x.element_type.name,
            compute="f64" if trees.dtype == np.float64 else "f32",
            result=scores.element_type.name,
            rows=shape[0] if len(shape) == 2 else 1,
            features=shape[-1],
            nodes=len(trees.kind),
            trees=len(trees.roots),
            weights=len(trees.weights),
            targets=spec.targets,
            columns=spec.columns,
            compare=_COMPARED.get(kinds.pop(), "any") if len(kinds) == 1 else "any",
            fold=spec.aggregate.lower() if spec.aggregate in ("MIN", "MAX") else "sum",
            complement=spec.complement or "none",
            transform=spec.transform.lower(),
            single=int(is_single),
            average=int(spec.aggregate == "AVERAGE"),
            base=int(bool(spec.base)),
            labels=int(bool(spec.labels)),
            share=int(spec.is_share),
        )


def _check_finite(spec: TreeSpec) -> Refusal | None:
    """The kernel uses infinity as the minimum of an empty set."""
    if spec.aggregate in ("MIN", "MAX") and not np.isfinite(spec.trees.weights).all():
        return Refusal(RefusalCause.ATTRIBUTE, f"a weight is not finite; expected finite ones for {spec.aggregate}")
    return None


def _has_one_weight(trees: FlatTrees) -> bool:
    return bool((trees.kind[trees.feature == LEAF] == 1).all())


def _nodes(trees: FlatTrees, is_single: bool) -> Array:
    """The nodes in the form that the kernel reads: `TreeNode` of trees.hpp."""
    fields = [("threshold", trees.dtype), ("feature", np.uint32), ("skip", np.uint32), ("kind", np.uint32)]
    nodes = np.zeros(len(trees.kind), np.dtype(fields, align=True))
    nodes["threshold"], nodes["feature"] = trees.threshold, trees.feature
    nodes["skip"], nodes["kind"] = trees.skip, trees.kind
    if is_single:
        leaves = trees.feature == LEAF
        nodes["threshold"][leaves] = trees.weights[trees.skip[leaves]]
    return nodes.view(np.uint8)


def _weights(trees: FlatTrees) -> Array:
    """The weights in the form that the kernel reads: `TreeWeight` of trees.hpp."""
    weights = np.zeros(len(trees.weights), np.dtype([("value", trees.dtype), ("target", np.uint32)], align=True))
    weights["value"], weights["target"] = trees.weights, trees.weight_targets
    return weights.view(np.uint8)
