"""If, Loop, Scan and SequenceMap: types from their bodies, and evaluation of their bodies.

A body's captures read the node's inputs after the formal ones (`Node.captured_values`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError, TypeInferenceError
from engine.ir import (
    UNKNOWN,
    Constant,
    Dimension,
    Model,
    Node,
    OptionalType,
    Output,
    Parameter,
    PartialShape,
    SequenceType,
    TensorType,
    ValueType,
    as_dimension,
    boolean,
    i64,
    undefined,
)
from engine.ir.walk import CANNOT_RUN
from engine.ops.evaluator import ModelEvaluator
from engine.ops.loop import LoopForm, formal_inputs
from engine.ops.registry import Evaluator, compiles, counts_outputs, infers
from engine.ops.rules import fail, normalize_axis
from engine.ops.scan import ScanSpec
from engine.ops.stacks import Stacks, empty_stacks

_MAX_ROUNDS = 4

# -- types ------------------------------------------------------------------------------------------------


@infers("If")
def _infer_if(node: Node) -> Sequence[ValueType]:
    if node.num_formal_inputs != 1:
        fail(node, f"If takes its condition and the values that its bodies capture, got {node.num_inputs} inputs")
    then, otherwise = (_branch_types(node, name) for name in ("then_branch", "else_branch"))
    if isinstance(then, TypeInferenceError):
        if isinstance(otherwise, TypeInferenceError):
            raise otherwise if _taken(node) == "else_branch" else then
        return otherwise
    if isinstance(otherwise, TypeInferenceError):
        return then
    return [_join_or_fail(node, index, a, b) for index, (a, b) in enumerate(zip(then, otherwise, strict=True))]


def _branch_types(node: Node, name: str) -> list[ValueType] | TypeInferenceError:
    """The types of a branch's results, or why it cannot run.

    An If chooses between branches, only one of which fits the given shapes: PyTorch writes a `squeeze` as one of a
    Squeeze and an Identity. The other one is an error only if it is taken. A branch that fails for all shapes is an
    error, unless the condition is known to decide against it.
    """
    body = _body(node, name, 0, node.num_outputs)
    taken = _taken(node)
    if taken not in (None, name):
        body.rt_info[CANNOT_RUN] = f"its condition is the constant {taken == 'then_branch'}"
        return TypeInferenceError(f"{node}, {name}: {body.rt_info[CANNOT_RUN]}")
    try:
        types = infer_body(node, name, body, [])
    except TypeInferenceError as e:
        if not _is_due_to_shapes(e):
            raise
        body.rt_info[CANNOT_RUN] = str(e)
        return e
    body.rt_info.pop(CANNOT_RUN, None)
    return types


def _is_due_to_shapes(error: BaseException) -> bool:
    """Whether the node that an error is about would accept its inputs if they had other shapes."""
    node: Any = None
    while error is not None:
        node, error = getattr(error, "node", None) or node, error.__cause__  # type: ignore[assignment]
    if not isinstance(node, Node) or node.has_bodies:
        return True
    inputs = [None if source is None else Parameter(_without_shape(source.type)) for source in node.sources]
    try:
        Node(node.op_type, inputs, node.attributes, domain=node.domain, num_outputs=node.num_outputs)
    except ModelError:
        return False
    return True


def _taken(node: Node) -> str | None:
    """The branch that an If takes; None if its condition is not known."""
    condition = node.input_value(0).node
    if not isinstance(condition, Constant) or condition.data.size != 1:
        return None
    return "then_branch" if bool(condition.data.reshape(-1)[0]) else "else_branch"


@infers("Loop")
def _infer_loop(node: Node) -> Sequence[ValueType]:
    form = LoopForm.of(node)
    num_carried = form.num_carried
    if num_carried > node.num_outputs:
        fail(node, f"{num_carried} loop-carried inputs do not fit {node.num_outputs} outputs")
    if form.count is None and form.condition is None:
        fail(node, "it has neither a number of iterations nor a condition, so it would never end; give one of them")
    body = _body(node, "body", 2 + num_carried, 1 + node.num_outputs)
    scalar = PartialShape([])
    fixed: list[ValueType] = [TensorType(i64, scalar), TensorType(boolean, scalar)]
    given = _types(node, 2, 2 + num_carried)
    try:
        results, carried = _infer_repeated(node, body, fixed, given, [], 1)
    except TypeInferenceError as e:
        if not form.never_runs or not _is_due_to_shapes(e):
            raise
        body.rt_info[CANNOT_RUN] = str(e)
        results, carried = [result.type for result in body.results], given
    else:
        body.rt_info.pop(CANNOT_RUN, None)
    count = _trip_count(form, body)
    return [*carried, *(_stacked(node, t, count, 0) for t in results[1 + num_carried :])]


@infers("Scan")
def _infer_scan(node: Node) -> Sequence[ValueType]:
    spec = ScanSpec.of(node)
    num_state = spec.num_states
    body = _body(node, "body", node.num_formal_inputs, node.num_outputs)
    length = as_dimension(None)
    elements: list[ValueType] = []
    scanned = _types(node, num_state, node.num_formal_inputs)
    for position, (value_type, axis) in enumerate(zip(scanned, spec.scan_input_axes, strict=True)):
        element, dim = _without_axis(node, value_type, axis, num_state + position)
        elements.append(element)
        if not length.compatible(dim):
            fail(node, f"the scan inputs have sequence lengths {length} and {dim}; expected equal lengths")
        length = length.merge(dim)
    results, states = _infer_repeated(node, body, [], _types(node, 0, num_state), elements, 0)
    stacked = results[num_state:]
    out_axes = zip(stacked, spec.scan_output_axes, strict=True)
    return [*states, *(_stacked(node, t, length, axis) for t, axis in out_axes)]


@infers("SequenceMap")
def _infer_sequence_map(node: Node) -> Sequence[ValueType]:
    formal = node.num_formal_inputs
    body = _body(node, "body", formal, node.num_outputs)
    given = [
        (t.element or UNKNOWN) if isinstance(t, SequenceType) else UNKNOWN if index == 0 else t
        for index, t in enumerate(_types(node, 0, formal))
    ]
    return [SequenceType(t) for t in infer_body(node, "body", body, given)]


def _body(node: Node, name: str, num_parameters: int, num_results: int) -> Model:
    body = node.attributes.get(name)
    if not isinstance(body, Model):
        fail(node, f"body {name!r} is missing; pass a Model")
    if len(body.parameters) != num_parameters or len(body.results) != num_results:
        fail(
            node,
            f"body `{body.name}` ({name}) has {len(body.parameters)} inputs and {len(body.results)} outputs; "
            f"expected {num_parameters} and {num_results}",
        )
    return body


def _types(node: Node, start: int, stop: int) -> list[ValueType]:
    return [UNKNOWN if source is None else source.type for source in node.input_values[start:stop]]


def infer_body(node: Node, name: str, body: Model, given: Sequence[ValueType]) -> list[ValueType]:
    """The types of the body's results if its parameters have the `given` types."""
    captured = [value.type for value in node.captured_values(name)]
    for parameter, value_type in zip([*body.parameters, *body.captures], [*given, *captured], strict=True):
        _set_type(parameter, value_type)
    try:
        body.validate()
    except ModelError as e:
        raise TypeInferenceError(f"{node}, {name}: {e}") from e
    return [result.type for result in body.results]


def _set_type(parameter: Parameter, value_type: ValueType) -> None:
    # If the type of the outer value is unknown, the type that the file declares is kept.
    if value_type != UNKNOWN and parameter.type != value_type:
        parameter.type = value_type


def _infer_repeated(
    node: Node,
    body: Model,
    fixed: Sequence[ValueType],
    states: Sequence[ValueType],
    elements: Sequence[ValueType],
    first_state: int,
) -> tuple[list[ValueType], list[ValueType]]:
    """The result types of a loop's body, and the types of its states that hold in every iteration.

    A dimension that changes between iterations becomes unknown; if the rank changes, the whole shape does.
    """
    current = list(states)
    for _ in range(_MAX_ROUNDS):
        results = infer_body(node, "body", body, [*fixed, *current, *elements])
        produced = results[first_state : first_state + len(current)]
        joined = [
            _join_or_fail(node, index, a, b, widen=True)
            for index, (a, b) in enumerate(zip(current, produced, strict=True))
        ]
        if joined == current:
            return results, joined
        current = joined
    # Types that still change, such as ranks of sequences' elements.
    current = [_without_shape(t) for t in current]
    return infer_body(node, "body", body, [*fixed, *current, *elements]), current


def _join_or_fail(node: Node, index: int, a: ValueType, b: ValueType, widen: bool = False) -> ValueType:
    joined = _join(a, b, widen)
    if joined is None:
        what = "state" if widen else "output"
        fail(node, f"{what} {index} is {a} in one case and {b} in another; expected equal element types")
    return joined


def _join(a: ValueType | None, b: ValueType | None, widen: bool) -> ValueType | None:
    """A type that includes both; None if they differ in kind or element type."""
    if a is None or a in (UNKNOWN, b):
        return b
    if b is None or b == UNKNOWN:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if undefined not in (a.element_type, b.element_type) and a.element_type is not b.element_type:
            return None
        element_type = a.element_type if a.element_type is not undefined else b.element_type
        return TensorType(element_type, _join_shapes(a.shape, b.shape, widen))
    if isinstance(a, OptionalType) != isinstance(b, OptionalType):
        # A loop may start with an optional and continue with its content.
        a = a if isinstance(a, OptionalType) else OptionalType(a)
        b = b if isinstance(b, OptionalType) else OptionalType(b)
    for kind in (SequenceType, OptionalType):
        if isinstance(a, kind) and isinstance(b, kind):
            element = _join(a.element, b.element, widen)
            return None if element is None and a.element is not None and b.element is not None else kind(element)
    return None


def _join_shapes(a: PartialShape, b: PartialShape, widen: bool) -> PartialShape:
    if a.rank.is_dynamic or b.rank.is_dynamic or len(a) != len(b):
        return PartialShape.dynamic()
    return PartialShape([_join_dims(x, y, widen) for x, y in zip(a, b, strict=True)])


def _join_dims(x: Dimension, y: Dimension, widen: bool) -> Dimension:
    if x == y:
        return x
    if widen:
        return as_dimension(None)
    if x.max is None or y.max is None:
        return Dimension.at_least(min(x.min, y.min))
    return Dimension(min(x.min, y.min), max(x.max, y.max))


def _without_shape(value_type: ValueType) -> ValueType:
    if isinstance(value_type, TensorType):
        return TensorType(value_type.element_type, PartialShape.dynamic())
    if isinstance(value_type, (SequenceType, OptionalType)) and value_type.element is not None:
        return type(value_type)(_without_shape(value_type.element))
    return value_type


def _trip_count(form: LoopForm, body: Model) -> Dimension:
    """The number of iterations: if the first input is constant, its value, or less if a condition may end the loop."""
    source = form.count
    if source is None or not isinstance(source.node, Constant) or source.node.data.size != 1:
        return as_dimension(None)
    most = max(0, int(source.node.data.reshape(-1)[0]))
    goes_on = form.condition is None or (
        _is_constant_true(form.condition)
        and (_is_constant_true(result := _origin(body.results[0])) or result.node is body.parameters[1])
    )
    return Dimension(most if goes_on else 0, most)


def _origin(result: Node) -> Output:
    """The value that a result is, before any Identity."""
    value = result.input_value(0)
    while value.node.op_type == "Identity":
        value = value.node.input_value(0)
    return value


def _is_constant_true(value: Output) -> bool:
    return isinstance(value.node, Constant) and value.node.data.size == 1 and bool(value.node.data.reshape(-1)[0])


def _stacked(node: Node, value_type: ValueType, length: Dimension, axis: int) -> ValueType:
    if not isinstance(value_type, TensorType):
        fail(node, f"a scan output must be a tensor, got {value_type}")
    if value_type.shape.rank.is_dynamic:
        return value_type
    dims = list(value_type.shape.dims)
    dims.insert(normalize_axis(node, axis, len(dims) + 1, "scan output axis", "the output"), length)
    return TensorType(value_type.element_type, PartialShape(dims))


def _without_axis(node: Node, value_type: ValueType, axis: int, index: int) -> tuple[ValueType, Dimension]:
    if not isinstance(value_type, TensorType):
        fail(node, f"scan input {index} must be a tensor, got {value_type}")
    if value_type.shape.rank.is_dynamic:
        return value_type, as_dimension(None)
    dims = list(value_type.shape.dims)
    dim = dims.pop(normalize_axis(node, axis, len(dims), "scan input axis", f"input {index}"))
    return TensorType(value_type.element_type, PartialShape(dims)), dim


# -- evaluation -------------------------------------------------------------------------------------------


@compiles("If")
def _compile_if(node: Node) -> Evaluator:
    branches = []
    position = node.num_formal_inputs
    for name, body in node.bodies.items():
        branches.append((name == "then_branch", ModelEvaluator(body), position, position + len(body.captures)))
        position += len(body.captures)

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        condition = _as_bool(inputs[0])
        for is_then, body, start, stop in branches:
            if is_then == condition:
                return tuple(body.run(inputs[start:stop]))
        raise ModelError(f"the {'then' if condition else 'else'} branch is missing")

    return run


@compiles("Loop")
def _compile_loop(node: Node) -> Evaluator:
    model: Model = node.attributes["body"]
    body = ModelEvaluator(model)
    title, formal, form = str(node), node.num_formal_inputs, LoopForm.of(node)
    num_carried, is_conditional = form.num_carried, form.condition is not None
    num_stacks, outer = node.num_outputs - num_carried, node.captured_values("body")

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        count, given, *carried = formal_inputs(inputs, formal)
        limit = math.inf if count is None else int(np.asarray(count).reshape(-1)[0])
        condition = _as_bool(given) if is_conditional else True
        captured = inputs[formal:]
        stacks = Stacks(title, num_stacks)
        iteration = 0
        while condition and iteration < limit:
            outputs = body.run([np.asarray(iteration, np.int64), np.asarray(condition), *carried, *captured])
            condition = _as_bool(outputs[0]) if is_conditional else True
            carried = outputs[1 : 1 + num_carried]
            stacks.append(outputs[1 + num_carried :])
            iteration += 1
        if iteration == 0:
            shapes = [(), (), *map(_shape, carried), *map(_captured_shape, outer, captured)]
            return (*carried, *empty_stacks(model, shapes, [0] * num_stacks))
        return (*carried, *(np.stack(stack) for stack in stacks.columns))

    return run


@compiles("Scan")
def _compile_scan(node: Node) -> Evaluator:
    model: Model = node.attributes["body"]
    body = ModelEvaluator(model)
    spec = ScanSpec.of(node)
    title, formal, num_state = str(node), node.num_formal_inputs, spec.num_states
    outer = node.captured_values("body")
    in_axes, in_reversed = spec.scan_input_axes, spec.scan_input_directions
    out_axes, out_reversed = spec.scan_output_axes, spec.scan_output_directions

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        states, captured = list(inputs[:num_state]), inputs[formal:]
        sequences = [
            np.moveaxis(value, axis, 0)[:: -1 if is_reversed else 1]
            for value, axis, is_reversed in zip(inputs[num_state:formal], in_axes, in_reversed, strict=True)
        ]
        lengths = {len(sequence) for sequence in sequences}
        if len(lengths) != 1:
            raise ModelError(f"the scan inputs have sequence lengths {sorted(lengths)}; expected equal lengths")
        if lengths == {0}:
            shapes = [*map(_shape, states), *(each.shape[1:] for each in sequences)]
            shapes += map(_captured_shape, outer, captured)
            return (*states, *empty_stacks(model, shapes, out_axes))
        stacks = Stacks(title, len(out_axes))
        for elements in zip(*sequences, strict=True):
            outputs = body.run([*states, *(np.asarray(element) for element in elements), *captured])
            states = outputs[:num_state]
            stacks.append(outputs[num_state:])
        stacked = [
            np.stack(stack[::-1] if is_reversed else stack, axis=axis)
            for stack, axis, is_reversed in zip(stacks.columns, out_axes, out_reversed, strict=True)
        ]
        return (*states, *stacked)

    return run


@compiles("SequenceMap")
def _compile_sequence_map(node: Node) -> Evaluator:
    body = ModelEvaluator(node.attributes["body"])
    title, formal, num_outputs = str(node), node.num_formal_inputs, node.num_outputs

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        length = len(inputs[0])
        for value in inputs[1:formal]:
            if isinstance(value, list) and len(value) != length:
                raise ModelError(
                    f"sequences of lengths {len(value)} and {length} are mapped together; expected equal lengths"
                )
        stacks = Stacks(title, num_outputs, is_sequence=True)
        for position in range(length):
            elements = [value[position] if isinstance(value, list) else value for value in inputs[:formal]]
            stacks.append(body.run([*elements, *inputs[formal:]]))
        return tuple(stacks.columns)

    return run


def _as_bool(value: Any) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


def _shape(value: Any) -> tuple[int, ...] | None:
    return value.shape if isinstance(value, (np.ndarray, np.generic)) else None


def _captured_shape(source: Output, value: Any) -> Any:
    return source.node.data if isinstance(source.node, Constant) else _shape(value)


def _count_results(body_name: str, skipped: int) -> Any:
    def count(inputs: Sequence[Any], attributes: dict[str, Any]) -> int:
        return len(attributes[body_name].results) - skipped

    return count


counts_outputs("If")(_count_results("then_branch", 0))
counts_outputs("Loop")(_count_results("body", 1))
counts_outputs("Scan", "SequenceMap")(_count_results("body", 0))
