"""Defines internal operators by ports, attributes and a decomposition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from engine.errors import TypeInferenceError, UnknownOperatorError
from engine.ir import Constant, Model, Node, Output, Parameter, ValueType
from engine.ops.evaluator import ModelEvaluator
from engine.ops.families import import_families
from engine.ops.protos import attribute_to_proto
from engine.ops.registry import INTERNAL_DOMAIN, Evaluator, OpDef, find_op, get_op, register_op
from engine.ops.rules import check_inputs, fail
from engine.startup.onnx_library import onnx

FLOATS: Final = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"]

Decomposer = Callable[[Node, Sequence["Output | None"]], list[Output]]
"""Returns the outputs of a node as ONNX operators; the second argument replaces the node's inputs."""

_decomposers: dict[str, Decomposer] = {}


def define(
    name: str,
    inputs: Sequence[tuple[str, bool]],
    attributes: Mapping[str, Any],
    decomposer: Decomposer,
    doc: str,
    types: Mapping[str, Sequence[str]] | None = None,
    results: Sequence[str] | None = None,
    rule: Callable[[Node], Sequence[ValueType] | None] | None = None,
) -> None:
    """Register the operator `name`, which has one output.

    Args:
        inputs: names, and whether each may be omitted; all have the same floating-point type, except those in `types`.
        attributes: defaults by name; an `AttributeProto.AttributeType` means "no default".
        decomposer: the operator's definition by ONNX operators.
        doc: the documentation.
        types: the allowed types of inputs whose type may differ from the others.
        results: the types of the output, unless it has the inputs' type.
        rule: the types of the decomposition without building it, for operators that passes make in large numbers; None
            for a node that it does not support.
    """
    schema = onnx.defs.OpSchema
    option = schema.FormalParameterOption
    others = types or {}
    ports = [
        schema.FormalParameter(
            port, f"T_{port}" if port in others else "T", param_option=option.Optional if omitted else option.Single
        )
        for port, omitted in inputs
    ]
    op = OpDef(
        schema(
            name,
            INTERNAL_DOMAIN,
            1,
            doc,
            inputs=ports,
            outputs=[schema.FormalParameter("Y", "T" if results is None else "T_Y")],
            type_constraints=[
                ("T", FLOATS, "floating-point numbers"),
                *((f"T_{port}", list(allowed), f"the types of {port}") for port, allowed in others.items()),
                *([] if results is None else [("T_Y", list(results), "the types of the result")]),
            ],
            attributes=[_attribute(attribute, default) for attribute, default in attributes.items()],
        )
    )
    _decomposers[name] = decomposer
    op.rule = partial(_infer, rule=rule)
    op.evaluator = _compile
    register_op(op)


def is_internal(node: Node) -> bool:
    """True for a node of an internal operator."""
    return node.domain == INTERNAL_DOMAIN and find_op(node.op_type, INTERNAL_DOMAIN) is not None


def decompose(node: Node) -> list[Output]:
    """The outputs of an internal node as ONNX operators with the same inputs; the graph is not changed.

    The last operator has the node's friendly name, those before it `name.op`; all have its rt_info. Raises
    `UnknownOperatorError` for a node that is not internal.
    """
    if not is_internal(node):
        import_families()
        raise UnknownOperatorError(f"{node} is not an internal operator; these are {', '.join(sorted(_decomposers))}")
    sources = node.input_values
    outputs = _decomposers[node.op_type](node, sources)
    known = {source.node for source in sources if source is not None}
    stack = [output.node for output in outputs]
    while stack:
        made = stack.pop()
        if made in known:
            continue
        known.add(made)
        if isinstance(made, Constant):
            continue
        is_last = any(output.node is made for output in outputs)
        made.friendly_name = node.friendly_name if is_last else f"{node.friendly_name}.{made.op_type}_{len(known)}"
        if node.annotations:
            made.rt_info.update(node.annotations)
        stack.extend(source.node for source in made.input_values if source is not None)
    return outputs


def padded(inputs: Sequence[Output | None], count: int) -> list[Output | None]:
    """`inputs`, extended to `count` by omitted ones."""
    return [*inputs, *[None] * (count - len(inputs))]


def has_internal_nodes(model: Model) -> bool:
    """Whether the model or a body in it has an internal node."""
    return any(
        is_internal(node) or any(has_internal_nodes(body) for body in node.bodies.values())
        for node in model.ordered_nodes()
    )


def as_onnx(model: Model) -> Model:
    """`model` itself if it has no internal nodes; otherwise a clone in which they are decomposed."""
    if not has_internal_nodes(model):
        return model
    clone = model.clone()
    _decompose_all(clone)
    return clone


def _decompose_all(model: Model) -> None:
    for node in model.ordered_nodes():
        for body in node.bodies.values():
            _decompose_all(body)
        if is_internal(node):
            for index, output in enumerate(decompose(node)):
                node.output(index).replace(output)


def _infer(node: Node, rule: Callable[[Node], Sequence[ValueType] | None] | None) -> Sequence[ValueType]:
    """The types of the decomposition."""
    op = get_op(node.op_type, node.domain)
    if node.num_inputs > op.max_inputs:
        fail(node, f"{op} takes at most {op.max_inputs} inputs, got {node.num_inputs}")
    check_inputs(node, op)
    if rule is not None and (types := rule(node)) is not None:
        return types
    try:
        outputs = _decomposers[node.op_type](node, node.input_values)
    except TypeInferenceError as e:
        fail(node, f"its decomposition failed: {e}", e)
    return [output.type for output in outputs]


def _compile(node: Node) -> Evaluator:
    """Evaluate the decomposition, whose inputs are parameters so that the node is not kept alive."""
    parameters: list[Parameter | None] = []
    for index, source in enumerate(node.input_values):
        parameters.append(None if source is None else Parameter(source.type, friendly_name=f"x{index}"))
    values = [None if parameter is None else parameter.output(0) for parameter in parameters]
    given = [parameter for parameter in parameters if parameter is not None]
    evaluator = ModelEvaluator(Model(_decomposers[node.op_type](node, values), given, name=node.friendly_name))
    places = [index for index, parameter in enumerate(parameters) if parameter is not None]
    return lambda inputs: tuple(evaluator.run([inputs[index] for index in places]))


def _attribute(name: str, default: Any) -> onnx.defs.OpSchema.Attribute:
    if isinstance(default, onnx.defs.OpSchema.AttrType):
        return onnx.defs.OpSchema.Attribute(name, default, required=False)
    if isinstance(default, tuple):  # an empty one: its type is the attribute's item type
        return onnx.defs.OpSchema.Attribute(name, onnx.defs.OpSchema.AttrType.FLOATS, required=False)
    return onnx.defs.OpSchema.Attribute(name, attribute_to_proto(name, default))
