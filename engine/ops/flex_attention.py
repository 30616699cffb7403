"""FlexAttention: attention with bodies that modify scores and probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ir import ElementType, Model, Node, PartialShape, TensorType, ValueType, bf16, f16, f32
from engine.ops.attention import check_scale, default_scale, softmax, softmax_type
from engine.ops.control_flow import infer_body
from engine.ops.cost import lengths_of, more_time
from engine.ops.evaluator import ModelEvaluator
from engine.ops.registry import Evaluator, compiles, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, check_rank, specifies
from engine.ops.tensors import Array
from engine.startup import dataclass

_DOMAIN: Final = "ai.onnx.preview"
_BODIES: Final = ("score_mod", "prob_mod")


@specifies("FlexAttention", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class FlexAttentionSpec(OperatorSpec):
    """The attributes of FlexAttention except its bodies.

    Attributes:
        scale: the factor of the scores; None is 1 / sqrt(head size).
        softmax_precision: the type in which the softmax is computed; None means Q's type, but f32 for narrower ones.
    """

    scale: float | None
    softmax_precision: ElementType | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        for index in range(3):
            check_rank(node, index, 4)
        check_scale(node, given["scale"])
        given["scale"] = given["scale"] or None
        given["softmax_precision"] = softmax_type(node, given["softmax_precision"])

    def softmax_type(self, element_type: ElementType) -> ElementType:
        """The type in which the softmax is computed for queries of `element_type`."""
        return self.softmax_precision or (f32 if element_type in (f16, bf16) else element_type)


@infers("FlexAttention", domain=_DOMAIN)
def _infer_flex_attention(node: Node) -> Sequence[ValueType]:
    op = get_op("FlexAttention", _DOMAIN)
    query, key, value = (tensor_type(node, index) for index in range(3))
    check_inputs(node, op, node.num_formal_inputs)
    spec = FlexAttentionSpec.of(node)
    shapes = [t.shape if t.shape.rank.is_static else PartialShape.dynamic(4) for t in (query, key, value)]
    q, k, v = shapes
    scores = TensorType(spec.softmax_type(query.element_type), PartialShape([q[0], q[1], q[2], k[2]]))
    for name in _BODIES:
        body = node.attributes.get(name)
        if isinstance(body, Model):
            if len(body.parameters) != 1 or len(body.results) != 1:
                fail(node, f"body {name!r} must have one input and one output")
            infer_body(node, name, body, [scores])
    return (TensorType(value.element_type, PartialShape([q[0], q[1], q[2], v[3]])),)


@compiles("FlexAttention", domain=_DOMAIN)
def _compile_flex_attention(node: Node) -> Evaluator:
    modifiers: dict[str, tuple[ModelEvaluator, int, int]] = {}
    position = formal = node.num_formal_inputs
    for name, body in node.bodies.items():
        modifiers[name] = ModelEvaluator(body), position, position + len(body.captures)
        position += len(body.captures)
    scale, softmax_type = (spec := FlexAttentionSpec.of(node)).scale, spec.softmax_type

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        def modified(name: str) -> Callable[[Array], Array]:
            if name not in modifiers:
                return lambda x: x
            body, start, stop = modifiers[name]
            return lambda x: np.asarray(body.run([x, *inputs[start:stop]])[0], dtype=x.dtype)

        precision = softmax_type(ElementType.from_numpy(inputs[0].dtype)).numpy
        query, key, value = inputs[:formal]
        return (_flex_attention(query, key, value, scale, precision, *map(modified, _BODIES)),)

    return run


def _flex_attention(
    query: Array,
    key: Array,
    value: Array,
    scale: float | None,
    precision: np.dtype[Any],
    score_mod: Callable[[Array], Array],
    prob_mod: Callable[[Array], Array],
) -> Array:
    """ONNX FlexAttention-1: query [B, Hq, L, E], key [B, Hkv, S, E], value [B, Hkv, S, Ev]."""
    heads, shared = query.shape[1], key.shape[1]
    if heads % shared or value.shape[1] != shared:
        raise ModelError(f"{heads} query, {shared} key and {value.shape[1]} value heads do not fit each other")
    key, value = (np.repeat(x, heads // shared, axis=1) for x in (key, value))
    # The specification multiplies Q and K by the root each, so that narrow types do not overflow.
    root = np.sqrt(np.float32(scale or default_scale(query.shape[-1]))).astype(query.dtype)
    scores = score_mod(np.matmul(query * root, np.swapaxes(key * root, -1, -2)).astype(precision))
    probabilities = prob_mod(softmax(scores))
    result: Array = np.matmul(probabilities, value.astype(precision))
    return result.astype(value.dtype)


@more_time("FlexAttention", domain=_DOMAIN)
def _time(node: Node) -> float:
    """A score for each query and key, computed in several passes, and two products."""
    query, key, value = (lengths_of(node.input_value(index)) for index in range(3))
    keys = key[-2] if len(key) > 1 else 1
    return math.prod(query[:-1]) * keys * (128 + sum(query[-1:]) + sum(value[-1:]))
