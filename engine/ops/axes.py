"""How the axes of a node's results follow from its inputs' axes, declared in the file of the operator's family.

    declare_axes("InstanceNormalization", axes="N C ..., C, C -> N C ...'")

`AxisMapping` explains the notation. A pointwise operator needs no declaration. Nothing is known about other operators
without one. Names may also say more of lengths, for the checks of `engine.ops.agreement`: "4*H" is four times H, and
"4" is 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Dimension, Node, Output, TensorType
from engine.ops.families import Declarations
from engine.ops.traits import traits_of

Labels: TypeAlias = "tuple[str, ...] | None"
"""A name for each axis, "" for an axis without one; None for an omitted input, and one of unknown rank."""

_MIXED: Final = "'"


class AxisMapping(NamedTuple):
    """The names of the axes of all inputs and outputs of a node, which are written "N C ..., M *, M -> N M ...'".

    A name that an input and an output share is one axis, whose indices are independent: index i of the output depends
    on index i of all inputs with that name alone, and on i itself not at all, so that slices may be reordered, added or
    computed apart. (An input of length 1 broadcasts.) A name with a prime, "H'", is the same axis, but its elements
    depend on several ones of the input, or on their places. `...` stands for any number of axes, aligned at the last
    one, `*` for any number without names. Axes that are not named have no relation to the others.

    Attributes:
        inputs: for each input.
        outputs: for each output.
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]

    def output_axis(self, axis: int, index: int = 0, output: int = 0) -> int | None:
        """The axis of an output that has the indices of an axis of input `index`; None if there is none."""
        name = self._name(axis, index)
        return _place(self.outputs[output], name) if name else None

    def place(self, axis: int, index: int = 0, output: int = 0) -> int | None:
        """As `output_axis`, but also if elements along the axis are moved or combined, as by a convolution."""
        name = self._name(axis, index)
        if not name:
            return None
        found = _place(self.outputs[output], name)
        return _place(self.outputs[output], name + _MIXED) if found is None else found

    def _name(self, axis: int, index: int) -> str:
        labels = self.inputs[index] if index < len(self.inputs) else None
        return labels[axis] if labels is not None and -len(labels) <= axis < len(labels) else ""


Axes: TypeAlias = str | AxisMapping | None
AxesFunction: TypeAlias = Callable[[Node], Axes]


class AxisParameter(NamedTuple):
    """Where an operator states the axes along which it computes; it treats all others alike.

    Attributes:
        attribute: the attribute with an axis.
        axes: the input with a list of axes.
        amounts: the input with numbers for each axis, the ones before all others, as of Pad.
    """

    attribute: str = ""
    axes: int | None = None
    amounts: int | None = None


def declare_axes(*op_types: str, axes: str | AxesFunction, domain: str = "") -> None:
    """Declare the axes of operators: in the notation above, or by a function of the node.

    The function returns the notation, a mapping, or None for a node without known axes.
    """
    for op_type in op_types:
        if _AXES.setdefault((domain, op_type), axes) != axes:
            raise ModelError(f"operator {domain}.{op_type}: its axes are declared twice")


def maps_axes(*op_types: str, domain: str = "") -> Callable[[AxesFunction], AxesFunction]:
    """Decorator: the function gives the axes of nodes of these operators; see `declare_axes`."""

    def register(function: AxesFunction) -> AxesFunction:
        declare_axes(*op_types, axes=function, domain=domain)
        return function

    return register


def declare_parameter(*op_types: str, parameter: AxisParameter) -> None:
    """Declare where operators of ONNX state their axes."""
    _PARAMETERS.update({("", op_type): parameter for op_type in op_types})


def parameter_of(node: Node) -> AxisParameter | None:
    """The parameter that states a node's axes; None if it is not declared."""
    return _PARAMETERS[node.domain, node.op_type]


def axes_of(node: Node) -> AxisMapping | None:
    """The axes of a node; None if nothing is known of them."""
    declared = _AXES[node.domain, node.op_type]
    if declared is None:
        return _pointwise(node)
    found = declared(node) if callable(declared) else declared
    return _expanded(node, found) if isinstance(found, str) else found


def notation_of(node: Node) -> tuple[tuple[str, ...], ...]:
    """The names of the axes of each input as its operator declares them; no names for one without relations."""
    declared = _AXES[node.domain, node.op_type]
    found = declared(node) if callable(declared) else declared
    return _parsed(found)[0] if isinstance(found, str) else ()


def has_axes(op_type: str, domain: str = "") -> bool:
    """Whether the axes of an operator that is not pointwise are declared."""
    return _AXES[domain, op_type] is not None


def is_axis_shared(op_type: str, domain: str = "") -> bool:
    """Whether the declaration of an operator may name an axis of inputs and outputs whose indices are independent."""
    declared = _AXES[domain, op_type]
    if not isinstance(declared, str):
        return declared is not None
    inputs, outputs = ({name for term in side for name in term} for side in _parsed(declared))
    return any(name in outputs and name != "*" for name in inputs)


# -- for the functions of families --------------------------------------------------------------------------------


def along(node: Node, axes: Sequence[int] | None, *, keeps: bool = True) -> AxisMapping | None:
    """The first input keeps its axes, but the node computes along some; None if these or the rank are unknown.

    Args:
        axes: the axes, negative ones from the end.
        keeps: whether the results have these axes.
    """
    rank = rank_of_value(node.input_value(0))
    if rank is None or axes is None:
        return None
    names = axis_names(rank)
    mixed = {axis % rank for axis in axes} if rank else set()
    made = tuple(
        name + _MIXED if axis in mixed else name for axis, name in enumerate(names) if keeps or axis not in mixed
    )
    return AxisMapping((names, *(None,) * (node.num_inputs - 1)), (made,) * node.num_outputs)


def axis_names(rank: int) -> tuple[str, ...]:
    """Names as `...` has them, so that tensors of other ranks are aligned at the last axis."""
    return tuple(str(axis - rank) for axis in range(rank))


def rank_of_value(value: Output | None) -> int | None:
    """The rank of a tensor; None if it is not known."""
    if value is None or not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return None
    return len(value.shape)


def constant_axes(node: Node, index: int) -> list[int] | None:
    """The integers of a constant input; None if they are computed, and for an omitted input."""
    source = node.input_value(index).node if node.has_input(index) else None
    return [int(x) for x in np.ravel(source.data)] if isinstance(source, Constant) else None


def is_equal(a: Dimension, b: Dimension) -> bool:
    """Whether two lengths are known to be equal."""
    return a == b and (a.is_static or a.symbol is not None)


# -- the notation -------------------------------------------------------------------------------------------------


def _pointwise(node: Node) -> AxisMapping | None:
    traits = traits_of(node)
    if not traits.pointwise:
        return None
    inputs = [
        axis_names(rank) if index < traits.data and (rank := rank_of_value(value)) is not None else None
        for index, value in enumerate(node.input_values)
    ]
    ranks = [rank_of_value(output) for output in node.outputs]
    return AxisMapping(tuple(inputs), tuple(None if rank is None else axis_names(rank) for rank in ranks))


def _expanded(node: Node, notation: str) -> AxisMapping | None:
    inputs, outputs = _parsed(notation)
    values = [None if value is None else rank_of_value(value) for value in node.input_values]
    results = [rank_of_value(output) for output in node.outputs]
    return AxisMapping(_labelled(inputs, values), _labelled(outputs, results))


@cache
def _parsed(notation: str) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    sides = [tuple(tuple(term.split()) for term in side.split(",")) for side in notation.split("->")]
    if len(sides) != 2:
        raise ModelError(f"axes {notation!r}: expected inputs -> outputs, such as 'N C ... -> N C ...'")
    return sides[0], sides[1]


def _labelled(terms: Sequence[tuple[str, ...]], ranks: Sequence[int | None]) -> tuple[Labels, ...]:
    padded = [*terms, *((),) * len(ranks)]
    return tuple(None if rank is None else _labels(term, rank) for term, rank in zip(padded, ranks, strict=False))


def _labels(term: tuple[str, ...], rank: int) -> Labels:
    """None for a tensor that has not the number of axes of its notation."""
    count = rank - sum(name[0] not in ".*" for name in term)
    if count < 0 or (count and not any(name[0] in ".*" for name in term)):
        return None
    found: list[str] = []
    for name in term:
        if name[0] == "*":
            found.extend([""] * count)
        elif name[0] == ".":
            found.extend(each + name[3:] for each in axis_names(count))
        else:
            found.append(name)
    return tuple(found)


def _place(labels: Labels, name: str) -> int | None:
    return labels.index(name) if labels is not None and name in labels else None


_AXES: Final[Declarations[str | AxesFunction]] = Declarations()
_PARAMETERS: Final[Declarations[AxisParameter]] = Declarations()
