"""`FunctionDecomposition`: replaces operators by their ONNX function bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from engine import ops
from engine.errors import TypeInferenceError
from engine.ir import Constant, Model, Node, Output, Parameter, TensorType, ValueType, f32, f64
from engine.ops import get_op
from engine.ops.attention import AttentionSpec, default_scale
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.fusion import fits
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_to_steps
from engine.startup.onnx_library import default_value, function_body, onnx

FUNCTIONS: Final = (
    "Attention", "CausalConvWithState", "CenterCropPad", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
    "SwiGLU", "ai.onnx.preview.FlexAttention",
)  # fmt: skip
"""Operators whose definitions have no control flow, and lose nothing in f32; FlexAttention contains its bodies.

HannWindow and its like are excluded: for a negative size, which is an error, their definitions are empty.
"""
_WIDE: Final = ("Attention", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
"""The operators that are computed in at least f32: scores, or sums of losses and of weights, may not fit f16 if results
do."""
_DOMAIN: Final = "engine.definitions"


class FunctionDecomposition(MatcherPass):
    """Replaces an operator that few devices have a kernel for by its ONNX function body."""

    removes = frozenset(FUNCTIONS)

    def __init__(self) -> None:
        super().__init__()

        def callback(m: Matcher) -> bool:
            lowers = None if self.config is None else self.config.lowers
            return _replace(m.match_root, self.transformation_callback, lowers or (lambda made: True))

        self.register_matcher(Matcher(wrap_type(list(FUNCTIONS)), self.name), callback)


def _replace(node: Node, is_kept: Callable[[Node], bool], lowers: Callable[[Sequence[Node]], bool]) -> bool:
    if is_kept(node):
        return False
    given = [value for value in node.input_values if value is not None]
    if not all(isinstance(value.type, TensorType) and value.shape.rank.is_static for value in given):
        return False
    if any(value.shape.is_static and not value.shape.size() for value in given):
        return False  # ONNX's bodies reshape by 0, which copies a length of other data
    types = [_wide_type(node, value) for value in given]
    scale, attributes = None, dict(node.attributes)
    if node.op_type == "Attention" and not node.domain and node.input_value(0).element_type is f64:
        scale = _scale(node)
        if scale is None:
            return False
        attributes["scale"] = 1.0  # the definition computes it in f32
    definition = _definition(node, types, attributes)
    if definition is None:
        return False
    for inner in definition.ordered_nodes():
        if inner.op_type in FUNCTIONS and not inner.domain:
            _replace(inner, is_kept, lowers)
    read = [output for output in node.outputs if output.num_consumers]
    values = [result.input_value(0) for result in definition.results[: len(read)]]
    for index, old in enumerate(read):
        if _wide_type(node, old) != old.type:
            values[index] = ops.Cast(values[index], to=old.element_type.onnx).output(0)
    if not all(map(fits, read, values)):
        return False
    made = [each for each in _whole(values) if each.op_type != "Parameter"]
    if not lowers(made):
        return False
    for parameter, value in zip(definition.parameters, given, strict=True):
        if parameter.type != value.type:
            cast = ops.Cast(value, to=f32.onnx)
            made.insert(0, cast)
            value = cast.output(0)
        if scale is not None and parameter is definition.parameters[0]:
            product = ops.Mul(value, Constant(scale, f64))
            made.insert(0, product)
            value = product.output(0)
        parameter.output(0).replace(value)
    for each in made:
        if not isinstance(each, Constant):  # an error of an inference names the user's node
            each.friendly_name = f"{node.friendly_name}/{each.friendly_name}"
    for index, value in enumerate(values):
        if value.node not in made or isinstance(value.node, Constant) or value in values[:index]:
            values[index] = ops.Identity(value).output(0)
            made.append(values[index].node)
        name = node.friendly_name if node.num_outputs == 1 else f"{node.friendly_name}.{read[index].index}"
        values[index].node.friendly_name = name
    for each in made:
        each.infer_types()
    copy_to_steps(node, [each for each in made if not isinstance(each, Constant)])
    for old, new in zip(read, values, strict=True):
        old.replace(new)
    return True


def _scale(node: Node) -> float | None:
    """The factor of the scores of an Attention; None if the head size, from which it follows, is unknown."""
    spec = AttentionSpec.of(node)
    if spec.scale is not None:
        return spec.scale
    dims = node.input_value(0).shape.dims
    heads = 1 if len(dims) == 4 else spec.q_num_heads or 1
    return default_scale(dims[-1].get_length() // heads) if dims[-1].is_static else None


def _wide_type(node: Node, value: Output) -> ValueType:
    """The type in which the function body of `node` has an input or an output of it."""
    kind = value.type
    is_narrow = node.op_type in _WIDE and isinstance(kind, TensorType) and kind.element_type.is_real
    if not is_narrow or value.element_type.bits >= f32.bits:
        return kind
    return TensorType(f32, value.shape)


def _whole(values: Sequence[Output]) -> list[Node]:
    """The nodes that compute `values`, in order."""
    found: dict[Node, None] = {}
    stack = [(value.node, False) for value in values]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            found[node] = None
        elif node not in found:
            stack.append((node, True))
            stack += [(value.node, False) for value in node.input_values if value is not None]
    return list(found)


def _definition(node: Node, types: list[ValueType], attributes: Mapping[str, Any]) -> Model | None:
    """The function body of `node` for the types of the present inputs and these attributes.

    It has a parameter for each present input, a result for each output that is read, and another result.

    None if there is no body for these types: some need lengths that may be unknown, or equal types.
    """
    from engine.onnx import model_to_proto, read_model  # imported late: most compilations do not need it

    parameters = [Parameter(each, friendly_name=f"input_{index}") for index, each in enumerate(types)]
    left = iter(parameters)
    inputs = [None if value is None else next(left) for value in node.input_values]
    own = {name: value.clone() if isinstance(value, Model) else value for name, value in attributes.items()}
    whole = ops.create(node.op_type, inputs, own, num_outputs=node.num_outputs, domain=node.domain)
    # The model is written in the lowest opset that has its operators; definitions read parts of shapes.
    part = ops.create("Shape", [parameters[0]], {"start": 1})
    read = [whole.output(output.index) for output in node.outputs if output.num_consumers]
    proto = model_to_proto(Model([*read, part.output(0)], parameters))
    (call,) = (each for each in proto.graph.node if each.op_type == node.op_type)
    schema: Any = get_op(node.op_type, node.domain).schema  # the stub lacks the function API
    present = {attribute.name for attribute in call.attribute}
    defaults = (default_value(attribute) for name, attribute in schema.attributes.items() if name not in present)
    call.attribute.extend(default for default in defaults if default.name)
    body = proto.functions.add()
    if schema.has_function:
        body.CopyFrom(function_body(schema))
    else:
        protos = {value.name: value.type for value in proto.graph.input}
        version = schema.context_dependent_function_opset_versions[-1]
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version,
                call.SerializeToString(),
                [protos.get(name, onnx.TypeProto()).SerializeToString() for name in call.input],
            )
        )
    if not body.node:
        return None
    call.domain = body.domain = _DOMAIN
    proto.opset_import.add(domain=_DOMAIN, version=1)
    try:
        definition = read_model(proto)
    except TypeInferenceError:
        return None  # the operator admits two types where its body needs one: values of an Attention, and its scores
    ConstantFolding().run_on_model(definition)
    return definition
