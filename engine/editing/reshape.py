"""`reshape` and `set_batch`: other shapes for a model's inputs, from which all other types follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from engine.errors import GraphError, ModelError, TypeInferenceError
from engine.ir import DECLARED_LENGTHS, UNKNOWN, Constant, Model, Node, Parameter, PartialShape, TensorType, ValueType
from engine.ir.shape import Dimension, ShapeLike, as_dimension, as_shape
from engine.passes import PassConfig
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.shape_simplification import ShapeSimplification

Shapes = Mapping[str | int, ShapeLike]

_MAX_FOLDED_BYTES: Final = 1 << 16
"""Bytes of the constants that may decide a shape; folding weights as well would only cost time."""


def reshape(model: Model, shapes: Shapes | ShapeLike) -> None:
    """The implementation of `Model.reshape`, which documents it."""
    wanted = _by_parameter(model, shapes)
    stated = ", ".join(f"`{parameter.friendly_name}` {shape}" for parameter, shape in wanted.items())
    _set_shapes(model, wanted, f"model `{model.name}` cannot be reshaped to {stated}")


def set_batch(model: Model, size: int | str | Dimension | None, axes: Mapping[str | int, int] | None = None) -> None:
    """The implementation of `Model.set_batch`, which documents it."""
    batched = _common_axes(model) if axes is None else _given_axes(model, axes)
    before = {_length(parameter, axis) for parameter, axis in batched.items()}
    if len(before) > 1:
        listed = ", ".join(f"`{p.friendly_name}` {_length(p, axis)}" for p, axis in batched.items())
        raise GraphError(f"model `{model.name}`: the inputs differ in their batch: {listed}")
    batch = as_dimension(size)
    wanted = {p: _with_length(p, axis, batch) for p, axis in batched.items()}
    why = f"model `{model.name}` cannot have a batch of {batch}"
    old = before.pop()

    def check(types: Mapping[Node, list[ValueType]]) -> None:
        for result in model.results:
            value = result.input_value(0)
            now = types[value.node][value.index] if value.node in types else value.type
            if _leads(value.type, old) and not _leads(now, batch):
                raise TypeInferenceError(
                    f"{why}: output `{result.friendly_name}` would be {now}, because "
                    f"{_fixing_node(model, types, old, batch)} fixes the batch at {old}; if the output has no batch, "
                    "use reshape instead"
                )

    _set_shapes(model, wanted, why, check)


def _by_parameter(model: Model, shapes: Shapes | ShapeLike) -> dict[Parameter, PartialShape]:
    if not isinstance(shapes, Mapping):
        inputs = model.parameters
        if len(inputs) != 1:
            names = ", ".join(f"`{p.friendly_name}`" for p in inputs) or "none"
            raise GraphError(
                f"model `{model.name}` has {len(inputs)} inputs ({names}); pass shapes by name: {{name: shape}}"
            )
        shapes = {0: shapes}
    wanted: dict[Parameter, PartialShape] = {}
    by_name: dict[str | int, Parameter] = {parameter.friendly_name: parameter for parameter in model.parameters}
    for key, shape in cast("Mapping[str | int, ShapeLike]", shapes).items():
        parameter = by_name[key] if key in by_name else model.parameter(key)
        if not isinstance(parameter.type, TensorType):
            raise GraphError(
                f"input `{parameter.friendly_name}` of model `{model.name}` is a {parameter.type}; only tensors have "
                "shapes"
            )
        wanted[parameter] = as_shape(shape)
    return wanted


def _set_shapes(
    model: Model,
    shapes: Mapping[Parameter, PartialShape],
    why: str,
    check: Callable[[Mapping[Node, list[ValueType]]], None] | None = None,
) -> None:
    """Give inputs these shapes, and all other values the types that follow; `model` is unchanged if that fails."""
    types = _types_for(model, shapes, why)
    if check is not None:
        check(types)
    for node in model.ordered_nodes():
        if node in types:
            for index, value_type in enumerate(types[node]):
                node.set_output_type(index, value_type)
            node.settle_types()
        for body in node.bodies.values():
            _forget(body)
        if node.has_bodies:
            node.infer_types()
    # Lengths that only the file declared belonged to the former shapes.
    model.rt_info.pop(DECLARED_LENGTHS, None)
    for result in model.results:
        result.declare(None)


def _types_for(model: Model, shapes: Mapping[Parameter, PartialShape], why: str) -> dict[Node, list[ValueType]]:
    """The types of all operations, for inputs of these shapes. They are found in a copy, in which values that are
    computed from shapes become constants."""
    copies: dict[Node, Node] = {}
    graph = model.clone(copies)
    _forget(graph)
    # Nodes are replaced in the copy, but a result that reads a value then reads what replaces it.
    probes = {
        node: [graph.add_result(value, f"{node.id}:{value.index}") for value in copy.outputs]
        for node, copy in copies.items()
        if not isinstance(node, (Constant, Parameter))
    }
    for parameter, shape in shapes.items():
        copy = copies[parameter]
        assert isinstance(copy, Parameter)
        assert isinstance(copy.type, TensorType)
        copy.type = TensorType(copy.type.element_type, shape)
    try:
        changed = True
        while changed:
            _infer(graph)
            changed = _fold(graph)
        graph.validate()
        for variable in graph.variables:
            variable.check(graph.parameter(variable.parameter).type, graph.result(variable.result).type)
    except ModelError as e:
        raise TypeInferenceError(f"{why}: {e}") from e
    types = {node: [result.type for result in results] for node, results in probes.items()}
    return types | {parameter: list(copies[parameter].output_types) for parameter in model.parameters}


def _forget(graph: Model) -> None:
    for node in graph.ordered_nodes():
        node.forget_inferred_types()
        for body in node.bodies.values():
            _forget(body)


def _infer(graph: Model) -> None:
    """Infer types; outputs of unknown operators, whose shapes the file declared for the former inputs, keep their
    element types only."""
    for node in graph.ordered_nodes():
        before = node.output_types
        node.infer_types()
        for index, (old, new) in enumerate(zip(before, node.output_types, strict=True)):
            if new == UNKNOWN and isinstance(old, TensorType):
                node.set_output_type(index, TensorType(old.element_type, PartialShape.dynamic()))


def _fold(graph: Model) -> bool:
    config = PassConfig()
    config.set_callback(ConstantFolding, callback=_reads_much)
    changed = False
    for item in (ShapeSimplification(), ConstantFolding(_MAX_FOLDED_BYTES)):
        item.set_pass_config(config)
        # Not run by a Manager, which would report that the pass broke the model.
        changed |= item.run_on_model(graph)
    return changed


def _reads_much(node: Node) -> bool:
    sources = [source.node for source in node.sources if source is not None]
    return sum(source.byte_size for source in sources if isinstance(source, Constant)) > _MAX_FOLDED_BYTES


# -- the batch --------------------------------------------------------------------------------------------------


def _common_axes(model: Model) -> dict[Parameter, int]:
    """The inputs that have a batch: their first length equals the first length of the first input that has any."""
    ranked = [p for p in model.parameters if isinstance(p.type, TensorType) and p.type.shape.rank != 0]
    unranked = [p for p in ranked if _shape(p.type).rank.is_dynamic]
    if unranked:
        raise GraphError(
            f"model `{model.name}`: the rank of input `{unranked[0].friendly_name}` is unknown; reshape it first, or "
            "name the axes of the batch: set_batch(n, {name: axis})"
        )
    if not ranked:
        raise GraphError(f"model `{model.name}` has no batch: no input is a tensor with dimensions")
    first = _length(ranked[0], 0)
    return {p: 0 for p in ranked if _length(p, 0) == first}


def _given_axes(model: Model, axes: Mapping[str | int, int]) -> dict[Parameter, int]:
    found = {}
    for key, axis in axes.items():
        parameter = model.parameter(key)
        value_type = parameter.type
        is_ranked = isinstance(value_type, TensorType) and value_type.shape.rank.is_static
        rank = len(_shape(value_type)) if is_ranked else 0
        if not 0 <= axis < rank:
            raise GraphError(
                f"model `{model.name}`: input `{parameter.friendly_name}` ({value_type}) has no axis {axis}"
            )
        found[parameter] = axis
    if not found:
        raise GraphError(f"set_batch of model `{model.name}`: axes names no input")
    return found


def _length(parameter: Parameter, axis: int) -> Dimension:
    return _shape(parameter.type)[axis]


def _with_length(parameter: Parameter, axis: int, length: Dimension) -> PartialShape:
    dims = list(_shape(parameter.type))
    dims[axis] = length
    return PartialShape(dims)


def _shape(value_type: ValueType) -> PartialShape:
    assert isinstance(value_type, TensorType)
    return value_type.shape


def _leads(value_type: ValueType, batch: Dimension) -> bool:
    """Whether the first length of a tensor is the batch, or may be."""
    if not isinstance(value_type, TensorType):
        return False
    shape = value_type.shape
    return shape.rank.is_dynamic or (len(shape) > 0 and (shape[0] == batch or shape[0].is_dynamic))


def _fixing_node(model: Model, types: Mapping[Node, list[ValueType]], old: Dimension, batch: Dimension) -> Node | str:
    """The first node that reads values with the new batch and gives one without it, such as a Reshape to constants."""
    for node in model.ordered_nodes():
        if node not in types or not any(map(_leads, node.output_types, [old] * node.num_outputs)):
            continue
        reads = any(
            source is not None and source.node in types and _leads(types[source.node][source.index], batch)
            for source in node.sources
        )
        if reads and not any(_leads(now, batch) for now in types[node]):
            return node
    return "a constant"
