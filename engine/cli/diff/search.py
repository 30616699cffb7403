"""`find_difference`: every value of a model on two sides, or, if they do not fit into memory, a search by halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from engine.cli.diff.comparison import Progress, SideComparison
from engine.cli.diff.sides import Side
from engine.cli.diff.statistics import NodeDifference
from engine.errors import InputError
from engine.ir import Model, Output, TensorType
from engine.passes.runtime_info import is_operation
from engine.passes.work import byte_size
from engine.startup import dataclass

_SAME: Final = 4.0
"""The factor by which an output's error may change when inner values become outputs."""


@dataclass(slots=True)
class Difference:
    """The comparison of two sides on one model and the same inputs.

    Attributes:
        labels: of the examined side and of the reference.
        outputs: the model's own outputs, without further outputs, as users get them.
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
        """Whether outputs differ by more than accumulated rounding of floating-point numbers."""
        return any(each.is_suspect for each in self.outputs)

    @property
    def is_propagated(self) -> bool:
        """Whether every value that is off is so by its node's inputs, and outputs are as far off as without probing.

        This happens in quantized models, where a rounding becomes a whole step of the values behind it.
        """
        beyond = [each for each in self.nodes if each.is_beyond]
        inside = {each.node: _SAME * each.total.units for each in self.nodes}
        far = [each for each in self.outputs if each.is_suspect]
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
    fit into one group, some of them are compared, and the search continues between the last one that agrees and the
    first that does not. A node whose value is off runs once more alone, on the examined side, with the reference's
    values as its inputs: that is its own error, the rest is propagated. `factor` multiplies all tolerances.

    Neither model nor inputs are changed. Raises `InputError` if a side's inputs differ, and the errors of both sides.
    """
    fixed = _fixed(model, inputs)
    comparison = SideComparison(fixed, examined, reference, inputs, factor)
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
    comparison: SideComparison, values: Sequence[Output], memory_bytes: int, progress: Progress
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
        wrong = [index for index in sorted(found) if index > low and found[index].is_suspect]
        if wrong:
            high = wrong[0]
            low = max((index for index in found if index < high), default=-1)
        elif len(chosen) == len(open_):
            break
        else:  # all agree: what is left is after the last one, whose output is an output of the model
            low = max(chosen)
            high = len(values) - 1
    return [found[index] for index in sorted(found)]


def _spread(indices: Sequence[int], values: Sequence[Output], memory_bytes: int) -> list[int]:
    """As many evenly spaced indices as fit into the memory, the last one among them; all if they do."""
    if sum(2 * byte_size(values[index]) for index in indices) <= memory_bytes:
        return list(indices)
    for step in range(2, len(indices) + 1):
        chosen = list(indices[::-1][::step])[::-1]
        if sum(2 * byte_size(values[index]) for index in chosen) <= memory_bytes:
            return chosen
    return [indices[len(indices) // 2]]
