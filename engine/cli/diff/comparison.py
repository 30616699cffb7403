"""`SideComparison`: both sides with chosen values as outputs, and single nodes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from engine.cli.diff.sides import Side
from engine.cli.diff.statistics import Gap, NodeDifference, gap, is_random, scale_of, tolerance_of
from engine.errors import EngineError
from engine.ir import Constant, Model, Node, Output, Parameter, PartialShape, Result, TensorType, ValueType

Progress: TypeAlias = Callable[[str, float], None]

_ALONE: Final = 500
"""The maximum number of nodes that are run alone."""


class SideComparison:
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

        Those with large differences come first, since accumulated rounding may affect many others.
        """
        found = list(compared)
        beyond = [index for index, each in enumerate(found) if each.is_beyond]
        far = [index for index in beyond if found[index].is_suspect]
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
