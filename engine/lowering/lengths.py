"""`Lengths`: the unknown lengths of a model's inputs, and how the lengths of one inference follow from few of them.

The inputs of a network repeat each other's lengths: all past keys have one, a mask has theirs plus the length of the
new tokens. `InputLengths` finds these groups. A `LengthPattern` says for all inputs which lengths are fixed and which
follow from its leading lengths, so that one plan can serve all the lengths that match it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, product
from typing import Final, TypeAlias

from engine.ir import Constant, Model, Node, TensorType
from engine.lowering.checks import SHAPE_SOURCES
from engine.lowering.specialize import Shapes
from engine.startup import dataclass

LengthVector: TypeAlias = "tuple[int, ...]"
"""The length of each group of an `InputLengths`, the length of the past first."""

_IRREGULAR: Final = frozenset(
    ["BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Equal", "Mod", "Xor"]
)
_PAST: Final = 0
"""The group of the variables that grow; its length is 0 in a model without any."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A length as the sum of a constant and of leading lengths, by their index in the pattern."""

    constant: int
    leads: tuple[int, ...] = ()

    def at(self, leads: Sequence[int]) -> int:
        """The length for these leading lengths."""
        return self.constant + sum(leads[index] for index in self.leads)


@dataclass(frozen=True, slots=True)
class LengthPattern:
    """Which lengths of the inputs vary, and how the others follow from them.

    Attributes:
        leads: the groups whose lengths vary independently.
        relations: for each group, how it follows from these.
    """

    leads: tuple[int, ...]
    relations: tuple[Relation, ...]

    def leading(self, vector: LengthVector) -> tuple[int, ...] | None:
        """The leading lengths of a vector; None if it does not match the pattern."""
        leads = tuple(vector[group] for group in self.leads)
        matches = all(relation.at(leads) == length for relation, length in zip(self.relations, vector, strict=True))
        return leads if matches else None

    def vector(self, leads: Sequence[int]) -> LengthVector:
        """The lengths of all groups for these leading lengths."""
        return tuple(relation.at(leads) for relation in self.relations)


class InputLengths:
    """The groups of equal unknown lengths of a model's inputs: the past, and the dimensions with the same symbol."""

    def __init__(self, model: Model) -> None:
        growing = {each.parameter: each.axis for each in model.variables if each.axis is not None}
        self.bounds = [each.bound for each in model.variables if each.axis is not None]
        self.has_past = bool(growing)
        symbols: dict[object, int] = {}
        names = ["the past"]
        rows = {each.parameter: each.batch_axis for each in model.variables}
        sequences: set[int] = set()
        self._places: list[tuple[int, int, int]] = []  # input, axis, group
        for index, parameter in enumerate(model.parameters):
            if not isinstance(parameter.type, TensorType) or parameter.type.shape.rank.is_dynamic:
                continue
            for axis, dim in enumerate(parameter.type.shape):
                if growing.get(parameter.friendly_name) == axis:
                    self._places.append((index, axis, _PAST))
                elif dim.is_dynamic:
                    group = symbols.setdefault(dim.symbol or (index, axis), len(symbols) + 1)
                    self._places.append((index, axis, group))
                    if rows.get(parameter.friendly_name, 0 if len(parameter.type.shape) > 1 else -1) == axis:
                        sequences.add(group)
                    if group == len(names):
                        names.append(dim.symbol or f"dimension {axis} of {parameter.friendly_name}")
        self.sequences = frozenset(sequences)
        """The groups of the number of sequences: the first dimension of inputs, and the one that variables state."""
        self.count = len(symbols) + 1
        self.names = tuple(names)
        """A name for each group: its symbol, or a place where it occurs."""
        self.is_complete = all(
            isinstance(each.type, TensorType) and each.type.shape.rank.is_static for each in model.parameters
        )
        """Whether the lengths of all inputs are known: all are tensors of known rank."""

    def vector(self, shapes: Shapes) -> LengthVector | None:
        """The length of each group; None if lengths of one group differ, or an input has no shape."""
        found: list[int | None] = [None] * self.count
        for index, axis, group in self._places:
            shape = shapes[index]
            if shape is None or found[group] not in (None, shape[axis]):
                return None
            found[group] = shape[axis]
        return tuple(0 if length is None else length for length in found)

    def shapes(self, like: Shapes, vector: LengthVector) -> Shapes:
        """The shapes `like` these, with the lengths of a vector."""
        changed = [None if shape is None else list(shape) for shape in like]
        for index, axis, group in self._places:
            shape = changed[index]
            assert shape is not None
            shape[axis] = vector[group]
        return tuple(None if shape is None else tuple(shape) for shape in changed)

    @property
    def bound(self) -> int | None:
        """The greatest length of the past; None if the variables have no bound."""
        known = [bound for bound in self.bounds if bound is not None]
        return min(known) if known else None


def irregular_node(graph: Model) -> Node | None:
    """An operation whose results a few lengths do not reveal, such as a remainder; None if there is none.

    It computes on what follows from the shapes of inputs alone. Comparing such a number with one below 1, as for an
    unknown dimension of Expand, is not one: lengths that vary are at least 1.
    """
    derived: set[Node] = set()
    for node in graph.ordered_nodes():
        values = [value for value in node.input_values if value is not None]
        if node.op_type in SHAPE_SOURCES and not node.domain:
            derived.add(node)
        elif any(value.node in derived for value in values) and all(
            value.node in derived or isinstance(value.node, Constant) for value in values
        ):
            if not node.domain and node.op_type in _IRREGULAR and not _is_below_one(node):
                return node
            derived.add(node)
    return None


def _is_below_one(node: Node) -> bool:
    constants = [value.node for value in node.input_values if value is not None and isinstance(value.node, Constant)]
    return node.op_type == "Equal" and any(each.data.size and (each.data < 1).all() for each in constants)


def pattern_of_growth(vector: LengthVector) -> LengthPattern:
    """The pattern in which only the past grows, and with it the lengths that are now its length and another one."""
    past, others = vector[_PAST], set(vector[1:])
    relations = [
        Relation(length - past, (0,)) if length > past and length - past in others else Relation(length)
        for length in vector
    ]
    relations[_PAST] = Relation(0, (0,))
    return LengthPattern((_PAST,), tuple(relations))


def pattern_of_sequences(vector: LengthVector, sequences: Collection[int]) -> LengthPattern | None:
    """The pattern of a model of sequences, as one vector shows it: the past varies, and the number of new tokens or,
    for one new token, that of sequences, which the groups `sequences` are.

    Every other length is that of the past and the new tokens, or that of the new tokens. None if it is neither, or if
    nothing but the past varies.
    """
    past, rows = vector[_PAST], {vector[group] for group in sequences}
    others = [group for group in range(len(vector)) if group != _PAST and group not in sequences]
    if not others or len(rows) > 1:
        return None
    new = min(vector[group] for group in others)
    if any(vector[group] not in (new, past + new) for group in others):
        return None
    varying = [group for group in others if vector[group] == new] if new > 1 else sorted(sequences)
    if not varying or vector[varying[0]] < 2:
        return None
    leads = (_PAST, varying[0]) if past else (varying[0],)
    relations = []
    for group, length in enumerate(vector):
        if group in varying:
            relations.append(Relation(0, (len(leads) - 1,)))
        elif group == _PAST:
            relations.append(Relation(0, (0,)) if past else Relation(0))
        elif group in sequences:
            relations.append(Relation(length))
        elif length == past + new and past:
            relations.append(Relation(0, (0, 1)) if new > 1 else Relation(new, (0,)))
        else:
            relations.append(Relation(length))
    return LengthPattern(leads, tuple(relations))


def pattern_between(first: LengthVector, second: LengthVector) -> LengthPattern | None:
    """The pattern with one or two leading lengths that two vectors match, one of which may be the past; None without.

    A length of 0 or 1 does not count as varying, because operators treat both specially.
    """
    differing = [group for group, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
    grows = min(first[_PAST], second[_PAST]) > 0
    own = [group for group in differing if group != _PAST]
    if not differing or (_PAST in differing and not grows):
        return None
    choices: list[tuple[int, ...]] = [*([()] if grows else []), *((lead,) for lead in own)]
    for chosen in choices if grows else [*choices, *combinations(own, 2)]:
        leads = ((_PAST,) if grows else ()) + chosen
        if any(min(first[lead], second[lead]) < 2 for lead in chosen):
            continue
        pairs = [(tuple(each[group] for group in leads), each) for each in (first, second)]
        relations = [_relation(group, leads, pairs) for group in range(len(first))]
        known = [relation for relation in relations if relation is not None]
        if len(known) == len(relations):
            return LengthPattern(leads, tuple(known))
    return None


def _relation(
    group: int, leads: tuple[int, ...], pairs: Sequence[tuple[tuple[int, ...], LengthVector]]
) -> Relation | None:
    """How a group follows from the leading ones in all vectors, without a constant if possible; None if it does not."""
    if group in leads:
        return Relation(0, (leads.index(group),))
    lengths = {vector[group] for _, vector in pairs}
    if len(lengths) == 1:
        return Relation(lengths.pop())
    found: list[Relation] = []
    for chosen in _choices(len(leads)):
        constants = {vector[group] - sum(values[index] for index in chosen) for values, vector in pairs}
        if len(constants) == 1 and min(constants) >= 0:
            found.append(Relation(constants.pop(), chosen))
    # Several may hold: the length of a mask over past and new tokens has a constant if the past has not changed.
    return min(found, key=lambda each: (each.constant != 0, len(each.leads)), default=None)


def _choices(count: int) -> Iterable[tuple[int, ...]]:
    for flags in product((False, True), repeat=count):
        yield tuple(index for index, flag in enumerate(flags) if flag)
