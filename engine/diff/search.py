"""`find_difference`: every value of a model on two sides, or, if they do not fit into memory, a search by halves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from engine.diff.sides import Side
from engine.diff.statistics import Gap, NodeDifference, gap, is_random, scale_of, tolerance_of
from engine.errors import EngineError, InputError
from engine.ir import Constant, Model, Node, Output, Parameter, PartialShape, Result, TensorType, ValueType
from engine.passes.runtime_info import is_operation
from engine.passes.work import byte_size

Progress: TypeAlias = Callable[[str, float], None]

_SUSPECT: Final = 16.0
"""Times the tolerance: a value that is further off is searched above by halves. Rounding that adds up stays below."""
_ALONE: Final = 500
_SAME: Final = 4.0
"""`_ALONE`: the most nodes that are run alone. `_SAME`: an output is off by the same, with values inside as outputs or
not, within this factor."""


@dataclass(slots=True)
class Difference:
    """What two sides make of one model and the same inputs.

    Attributes:
        labels: of the examined side and of the reference.
        outputs: the model's own outputs, with nothing else as an output: as users get them.
        nodes: the values that were compared, in topological order.
        first: the first whose node goes wrong by itself; None if there is none.
        skipped: values between which the search by halves did not look.
        problems: nodes that could not be run alone, with the reason.
    """

    labels: tuple[str, str]
    outputs: list[NodeDifference]
    nodes: list[NodeDifference] = field(default_factory=list)
    first: NodeDifference | None = None
    skipped: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_suspect(self) -> bool:
        """Whether outputs are further apart than rounding that adds up in floating-point numbers."""
        return any(_is_suspect(each) for each in self.outputs)

    @property
    def is_propagated(self) -> bool:
        """Whether every value that is off is so by its node's inputs, and outputs are as far off as without probing.

        So it is in quantized models, where a rounding becomes a whole step of the values behind it.
        """
        beyond = [each for each in self.nodes if each.is_beyond]
        inside = {each.node: _SAME * each.total.units for each in self.nodes}
        far = [each for each in self.outputs if _is_suspect(each)]
        return (
            not self.skipped
            and all(each.own is not None and not each.parts for each in beyond)
            and all(each.total.units <= inside.get(each.node, 0.0) for each in far)
        )

    @property
    def differs(self) -> bool:
        """Whether there is a difference that rounding does not explain."""
        return self.first is not None or (self.is_suspect and not self.is_propagated)


def find_difference(
    model: Model,
    examined: Side,
    reference: Side,
    inputs: Mapping[str, Any],
    *,
    memory_bytes: int = 1 << 30,
    factor: float = 1.0,
    progress: Progress = lambda what, share: None,
) -> Difference:
    """Run a model on two sides and compare every value by its name; find the first node that goes wrong by itself.

    Values inside the model are made outputs, in groups of at most `memory_bytes` on both sides together. If all do not
    fit into one group, some of them are compared, and the search goes on between the last one that agrees and the first
    that does not. A node whose value is off runs once more alone, on the examined side, with the reference's values as
    its inputs: that is its own error, the rest is propagated. `factor` multiplies all tolerances.

    Neither model nor inputs are changed. Raises `InputError` if a side's inputs differ, and the errors of both sides.
    """
    fixed = _fixed(model, inputs)
    comparison = _Comparison(fixed, examined, reference, inputs, factor)
    outputs = comparison.compare([result.input_value(0) for result in fixed.results], is_plain=True)
    found = Difference((examined.label, reference.label), outputs)
    values = _comparable(fixed)
    groups = _groups(values, memory_bytes)
    if len(groups) <= 1:
        progress("compare all values", 0.1)
        compared = comparison.compare(values)
    else:
        compared = _searched(comparison, values, memory_bytes, progress)
        found.skipped = len(values) - len(compared)
    found.nodes, found.first = comparison.with_own(compared, progress)
    found.problems = comparison.problems
    return found


def _fixed(model: Model, inputs: Mapping[str, Any]) -> Model:
    """A copy for inputs of these shapes, so that the sizes of its values are known."""
    names = [parameter.friendly_name for parameter in model.parameters]
    if set(names) != set(inputs):
        raise InputError(
            f"model `{model.name}` has the inputs {', '.join(names) or 'none'}; got {', '.join(inputs) or 'none'}"
        )
    copy = model.clone()
    shapes = {
        parameter.friendly_name: inputs[parameter.friendly_name].shape
        for parameter in copy.parameters
        if isinstance(parameter.type, TensorType) and parameter.type.shape.is_dynamic
    }
    if shapes:
        copy.reshape(shapes)
    return copy


def _comparable(model: Model) -> list[Output]:
    """The tensors that operations of the main graph compute, in topological order."""
    nodes = [node for node in model.ordered_nodes() if is_operation(node)]
    return [
        value for node in nodes for value in node.outputs if isinstance(value.type, TensorType) and value.num_consumers
    ]


def _groups(values: Sequence[Output], memory_bytes: int) -> list[list[Output]]:
    """Values in order, divided into groups of at most this size on both sides together; a larger one is alone."""
    groups: list[list[Output]] = []
    size = memory_bytes + 1
    for value in values:
        more = 2 * byte_size(value)
        if size + more > memory_bytes:
            groups.append([])
            size = 0
        groups[-1].append(value)
        size += more
    return groups


def _searched(
    comparison: _Comparison, values: Sequence[Output], memory_bytes: int, progress: Progress
) -> list[NodeDifference]:
    """Compare some values, then some between the last one that agrees and the first that does not, and so on."""
    found: dict[int, NodeDifference] = {}
    low, high = -1, len(values) - 1
    while True:
        open_ = [index for index in range(low + 1, high + 1) if index not in found]
        if not open_:
            break
        progress(f"search among {len(open_)} values", 1 - len(open_) / len(values))
        chosen = _spread(open_, values, memory_bytes)
        compared = comparison.compare([values[index] for index in chosen])
        found |= zip(chosen, compared, strict=True)
        wrong = [index for index in sorted(found) if index > low and _is_suspect(found[index])]
        if wrong:
            high = wrong[0]
            low = max((index for index in found if index < high), default=-1)
        elif len(chosen) == len(open_):
            break
        else:  # all agree: what is left is after the last one, whose output is an output of the model
            low = max(chosen)
            high = len(values) - 1
    return [found[index] for index in sorted(found)]


def _is_suspect(found: NodeDifference) -> bool:
    return found.is_judged and found.total.units > _SUSPECT * found.tolerance


def _spread(indices: Sequence[int], values: Sequence[Output], memory_bytes: int) -> list[int]:
    """As many evenly spaced indices as fit into the memory, the last one among them; all if they do."""
    if sum(2 * byte_size(values[index]) for index in indices) <= memory_bytes:
        return list(indices)
    for step in range(2, len(indices) + 1):
        chosen = list(indices[::-1][::step])[::-1]
        if sum(2 * byte_size(values[index]) for index in chosen) <= memory_bytes:
            return chosen
    return [indices[len(indices) // 2]]


class _Comparison:
    """Runs both sides with chosen values as outputs, and single nodes alone."""

    def __init__(self, model: Model, examined: Side, reference: Side, inputs: Mapping[str, Any], factor: float) -> None:
        self._model, self._examined, self._reference = model, examined, reference
        self._inputs, self._factor = inputs, factor
        self._kept: dict[Output, Any] = {}
        self._values: dict[str, Output] = {}
        self.problems: list[str] = []

    def compare(self, values: Sequence[Output], *, is_plain: bool = False) -> list[NodeDifference]:
        """Run both sides with these values as outputs, or as the model is, and compare them."""
        probed, names = self._probed(values, is_plain)
        actual = self._examined.run(probed, self._inputs)
        expected = self._reference.run(probed, self._inputs)
        self._kept = {} if is_plain else {value: expected[name] for value, name in zip(values, names, strict=True)}
        return [
            self._compared(value, name, actual[name], expected[name]) for value, name in zip(values, names, strict=True)
        ]

    def _probed(self, values: Sequence[Output], is_plain: bool) -> tuple[Model, list[str]]:
        if is_plain:
            return self._model, [result.friendly_name for result in self._model.results]
        mapping: dict[Node, Node] = {}
        probed = self._model.clone(mapping)
        taken = {result.friendly_name for result in probed.results}
        at_end = {result.input_value(0): result.friendly_name for result in self._model.results}
        names: list[str] = []
        for value in values:
            name = at_end.get(value)
            if name is None:
                name = _unique(_name_of(value), taken)
                probed.add_result(mapping[value.node].output(value.index), name)
            names.append(name)
        return probed, names

    def _compared(self, value: Output, name: str, actual: Any, expected: Any) -> NodeDifference:
        node = value.node
        self._values[name] = value
        known = [self._kept.get(source) if source is not None else None for source in node.sources]
        is_tensor = isinstance(expected, np.ndarray)
        return NodeDifference(
            name=name,
            node=node.friendly_name,
            op_type=node.op_type,
            element_type=str(expected.dtype) if is_tensor else type(expected).__name__,
            shape=tuple(expected.shape) if is_tensor else (),
            total=gap(actual, expected, scale_of(node, known)),
            own=None,
            tolerance=self._factor * tolerance_of(node, value, known),
            non_finite=(_non_finite(actual), _non_finite(expected)),
            is_judged=not is_random(node),
        )

    def with_own(
        self, compared: Sequence[NodeDifference], progress: Progress
    ) -> tuple[list[NodeDifference], NodeDifference | None]:
        """Run the nodes alone whose values are off; the first in order that goes wrong by itself.

        Those that are far off come first: there may be many others, by rounding that adds up.
        """
        found = list(compared)
        beyond = [index for index, each in enumerate(found) if each.is_beyond]
        far = [index for index in beyond if _is_suspect(found[index])]
        first: int | None = None
        done: set[int] = set()
        for index in [*far, *beyond]:
            if index in done or (first is not None and index >= first):
                continue
            if len(done) == _ALONE:
                self.problems.append(f"{len(beyond) - len(done)} more nodes whose values are off were not run alone")
                break
            progress(f"run {found[index].node} alone", len(done) / len(beyond))
            found[index] = self._with_own(found[index])
            done.add(index)
            if found[index].parts:
                first = index
        return found, None if first is None else found[first]

    def _with_own(self, each: NodeDifference) -> NodeDifference:
        value = self._values[each.name]
        node = value.node
        try:
            fed = self._reference_values([source for source in node.sources if source is not None])
            own = self._alone(value, fed)
        except EngineError as e:
            self.problems.append(f"{each.node} ({each.op_type}) could not be run alone: {e}")
            return each
        data = [None if source is None else fed[source] for source in node.sources]
        return NodeDifference(
            each.name, each.node, each.op_type, each.element_type, each.shape, each.total,
            self._own_gap(own, value, data), self._factor * tolerance_of(node, value, data), each.non_finite,
            each.is_judged,
        )  # fmt: skip

    def _own_gap(self, own: tuple[Any, Any], value: Output, data: Sequence[Any]) -> Gap:
        actual, expected = own
        return gap(actual, expected, scale_of(value.node, data))

    def _alone(self, value: Output, fed: Mapping[Output, Any]) -> tuple[Any, Any]:
        """The value from the node alone, with the reference's inputs, on both sides."""
        node = value.node
        parameters: dict[Output, Parameter] = {}
        sources: list[Output | None] = []
        feed: dict[str, Any] = {}
        for source in node.sources:
            if source is None:
                sources.append(None)
            elif isinstance(source.node, Constant):
                sources.append(Constant(source.node.data).output(0))
            else:
                if source not in parameters:
                    name = f"in{len(parameters)}"
                    parameters[source] = Parameter(_type_of(source, fed[source]), friendly_name=name)
                    feed[name] = fed[source]
                sources.append(parameters[source].output(0))
        copy = node.clone_with_new_inputs(sources)
        alone = Model([Result(copy.output(value.index), "out")], list(parameters.values()), name=node.friendly_name)
        alone.opset_imports = dict(self._model.opset_imports)
        return self._examined.run(alone, feed)["out"], self._reference.run(alone, feed)["out"]

    def _reference_values(self, values: Iterable[Output]) -> dict[Output, Any]:
        """The reference's values: kept, given, constant, or from another run of it."""
        found: dict[Output, Any] = {}
        missing: list[Output] = []
        for value in dict.fromkeys(values):
            if isinstance(value.node, Constant):
                found[value] = value.node.data
            elif isinstance(value.node, Parameter):
                found[value] = self._inputs[value.node.friendly_name]
            elif value in self._kept:
                found[value] = self._kept[value]
            else:
                missing.append(value)
        if missing:
            probed, names = self._probed(missing, is_plain=False)
            results = self._reference.run(probed, self._inputs)
            found |= {value: results[name] for value, name in zip(missing, names, strict=True)}
        return found


def _type_of(source: Output, value: Any) -> ValueType:
    """The type of a value, with the shape that it has."""
    if isinstance(source.type, TensorType):
        return TensorType(source.element_type, PartialShape(value.shape))
    return source.type


def _name_of(value: Output) -> str:
    return value.name or f"{value.node.friendly_name}:{value.index}"


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _non_finite(value: Any) -> int:
    if not isinstance(value, np.ndarray) or value.dtype.kind in "biuOTUSM":
        return 0
    try:
        return int(
            np.count_nonzero(~np.isfinite(value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)))
        )
    except (TypeError, ValueError):
        return 0
