"""`divide_model`: a model as consecutive parts that read about equally many bytes of weights, for several machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.drawing.table import byte_count
from engine.errors import PassError
from engine.ir import (
    DECLARED_LENGTHS,
    Constant,
    Dimension,
    Model,
    Node,
    Output,
    Parameter,
    PartialShape,
    Result,
    TensorType,
    ValueType,
    Variable,
)
from engine.ir.element_type import string
from engine.ir.walk import all_nodes
from engine.ops import find_op
from engine.ops.creation import ShapeSpec
from engine.ops.traits import traits_of
from engine.passes.runtime_info import is_operation
from engine.passes.work import byte_size
from engine.startup import dataclass, paused_collector

Floats: TypeAlias = NDArray[np.float64]

_EVEN: Final = 1.2
"""By default, the largest part may read as many times its even share of the weights."""
_BAND: Final = 1.1
"""Within how many times the smallest possible largest part the places with the fewest crossing bytes are chosen."""
_SMALL_SHARE: Final = 1000
"""Constants of a smaller share of all weights do not matter: this is its divisor."""
_SMALL: Final = 64
"""The most elements of a constant of shape arithmetic."""
_MAX_NAMED: Final = 3
_REPEATED: Final = frozenset({"Range", "ConstantOfShape", "CumSum", "ReduceSum", "ReduceMax", "ReduceMin", "Trilu"})
"""Cheap operations without traits that say so; they make masks and positions."""


@dataclass(frozen=True, slots=True)
class LengthsOf:
    """Lengths of a variable's value before an inference: its shape from `start` to `end`, or its number of elements."""

    variable: str
    start: int | None
    end: int | None
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One part of a divided model.

    Attributes:
        model: an ordinary model. Its inputs are inputs of the whole model, values of earlier parts, and `lengths`; its
            outputs are outputs of the whole model, and values for later parts. Each input has the name of the output
            that it comes from.
        weight_bytes: of the constants that it reads.
        lengths: the inputs that are lengths of variables of other parts, which whoever runs the parts knows.
    """

    model: Model
    weight_bytes: int
    lengths: Mapping[str, LengthsOf]


@dataclass(frozen=True, slots=True)
class DividedModel:
    """The result of `divide_model`.

    Attributes:
        parts: in the order in which they run.
        weight_bytes: of the constants of the whole model, each counted once.
    """

    parts: tuple[ModelPart, ...]
    weight_bytes: int

    @property
    def largest_share(self) -> float:
        """The share of the weights that the largest part reads."""
        return max(part.weight_bytes for part in self.parts) / max(self.weight_bytes, 1)


def divide_model(model: Model, parts: int, *, largest: float | None = None) -> DividedModel:
    """Cut a model into consecutive parts of about equally many bytes of weights; the model is not changed.

    Each variable stays in one part. Among the places where the parts are about equally large, those are chosen where
    the fewest bytes cross, as between two layers. Shape arithmetic, masks and positions are computed in each part that
    reads them. A weight that several parts read, such as an embedding table that is also the output matrix, is in each
    of them.

    `largest`: the largest share of all weights that a part may have, by default 1.2 times an even share (60 % for two
    parts).

    Raises `PassError` if the model cannot be divided into so many parts, or only into larger ones.
    """
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise PassError(f"divide_model: parts is {parts!r}; expected 1 or more")
    limit = min(1.0, _EVEN / parts) if largest is None else largest
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= 1:
        raise PassError(f"divide_model: largest is {largest!r}; expected a share of the weights, such as 0.6")
    with paused_collector():
        order = _Order(model)
        places = _places(order, parts, limit * order.total)
        ends = [0, *places, len(order.nodes)]
        ranges = [order.nodes[start:end] for start, end in itertools.pairwise(ends)]
        sizes = [order.bytes_of(nodes) for nodes in ranges]
        if max(sizes) > limit * order.total:
            raise _too_large(order, ranges, sizes, limit)
        divider = _Divider(order, ranges)
        made = [divider.part(number, size) for number, size in enumerate(sizes)]
    return DividedModel(tuple(made), order.total)


class _Order:
    """The operations of a model in the order in which they run, and what each reads.

    Attributes:
        nodes: the operations that belong to one part each.
        at: the position of each of them.
        repeated: the operations that every part which reads them computes.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.variables = {variable.parameter: variable for variable in model.variables}
        self.total = sum(node.byte_size for node in _distinct(all_nodes(model)) if isinstance(node, Constant))
        self._read: dict[Node, frozenset[Constant]] = {}
        self._fixed: set[Node] = set()
        self.repeated: set[Node] = set()
        self.nodes: list[Node] = []
        kept = set(model.sinks)
        for node in model.ordered_nodes():
            if not is_operation(node):
                continue
            if node not in kept and self._is_repeated(node):
                self.repeated.add(node)
            else:
                self.nodes.append(node)
        self._move_states()
        self.at = {node: position for position, node in enumerate(self.nodes)}

    def _move_states(self) -> None:
        """Let operations that only lead to variables come right after those that they read.

        An order may have them behind all others, so that a variable would be read in the first part and written in the
        last one.
        """
        states = {variable.result for variable in self.model.variables}
        stack: list[Node] = [each for each in self.model.results if each.friendly_name not in states]
        stack += self.model.sinks
        main = set(stack)
        while stack:
            for source in _sources(stack.pop()):
                if source not in main:
                    main.add(source)
                    stack.append(source)
        keys: dict[Node, int] = {}
        for position, node in enumerate(self.nodes):
            before = [keys[value.node] for value in _values(self, node) if value.node in keys]
            keys[node] = position if node in main else max(before, default=position)
        self.nodes.sort(key=keys.__getitem__)

    def constants_of(self, node: Node) -> frozenset[Constant]:
        """The constants that a node reads, by itself, by its bodies, and by operations that are repeated for it."""
        if node not in self._read:
            found: set[Constant] = {
                each for body in node.bodies.values() for each in all_nodes(body) if isinstance(each, Constant)
            }
            for source in _sources(node):
                if isinstance(source, Constant):
                    found.add(source)
                elif source in self.repeated:
                    found |= self.constants_of(source)
            self._read[node] = frozenset(found)
        return self._read[node]

    def bytes_of(self, nodes: Iterable[Node]) -> int:
        """The bytes of the constants that operations read, each counted once."""
        read: set[Constant] = set().union(*(self.constants_of(node) for node in nodes))
        return sum(each.byte_size for each in read)

    def is_light(self, node: Node) -> bool:
        """Whether the weights that a node reads do not matter: numbers, axes, lengths, and what is small."""
        read = [each for each in self.constants_of(node) if not _is_shape_like(each)]
        return sum(each.byte_size for each in read) * _SMALL_SHARE <= self.total

    def takes_lengths(self, node: Node) -> bool:
        """Whether an operation takes lengths of a variable, which are known before an inference."""
        source = node.input_value(0).node if node.op_type in ("Shape", "Size") and not node.domain else None
        return isinstance(source, Parameter) and source.friendly_name in self.variables

    def _is_repeated(self, node: Node) -> bool:
        """Whether a node is computed from constants alone, or cheaply from inputs and from lengths of variables."""
        op = find_op(node.op_type, node.domain)
        if op is None or not op.is_deterministic or node.has_bodies or not node.num_inputs:
            return False
        if self.takes_lengths(node):
            return True
        sources = _sources(node)
        if all(isinstance(source, Constant) or source in self._fixed for source in sources):
            self._fixed.add(node)
            return True
        traits = traits_of(node)
        is_cheap = traits.pointwise or traits.moves is not None or traits.shape_only or node.op_type in _REPEATED
        if node.domain or not is_cheap or not all(self._is_given(source) for source in sources):
            return False
        return self.is_light(node)

    def _is_given(self, node: Node) -> bool:
        is_input = isinstance(node, Parameter) and node.friendly_name not in self.variables
        return is_input or isinstance(node, Constant) or node in self.repeated


def _places(order: _Order, parts: int, limit: float) -> list[int]:
    """The positions at which all parts but the first begin. Raises `PassError` if there are too few."""
    count = len(order.nodes)
    crossing, is_allowed = _crossing(order)
    allowed = [place for place in range(1, count) if is_allowed[place]]
    if len(allowed) < parts - 1:
        raise PassError(
            f"model `{order.model.name}` has {len(allowed)} places to divide it where no variable, and no value other "
            f"than a tensor of numbers, would belong to two parts; expected {parts - 1} for {parts} parts"
        )
    # Between two layers, fewer bytes cross than before and after; a bias or an activation stays with its product.
    low = [
        place
        for place in allowed
        if crossing[place] <= crossing[place - 1]
        and (crossing[place] < crossing[place + 1] or not order.is_light(order.nodes[place]))
    ]
    found = _cheapest(order, low, crossing, parts, limit) if len(low) >= parts - 1 else None
    if found is None or found[1] > limit:
        found = min(
            found or (low, math.inf), _cheapest(order, allowed, crossing, parts, limit), key=lambda each: each[1]
        )
    return found[0]


def _crossing(order: _Order) -> tuple[Floats, NDArray[np.bool_]]:
    """For each position, the bytes that cross it, and whether a part may begin there."""
    count = len(order.nodes)
    steps = np.zeros(count + 1)
    refused = np.zeros(count + 1, np.int64)

    def forbid(positions: Sequence[int]) -> None:
        if positions and min(positions) < max(positions):
            refused[min(positions) + 1] += 1
            refused[max(positions) + 1] -= 1

    for value, last in _last_reads(order).items():
        start = order.at[value.node]
        if isinstance(value.type, TensorType) and value.element_type is not string:
            steps[start + 1] += max(byte_size(value), 1)
            steps[last + 1] -= max(byte_size(value), 1)
        else:
            forbid([start, last])
    for variable in order.model.variables:
        forbid(list(_users(order, variable.parameter, variable.result)))
    return np.cumsum(steps), np.cumsum(refused) == 0


def _last_reads(order: _Order) -> dict[Output, int]:
    """For each value that an operation of a later position reads, the last such position."""
    found: dict[Output, int] = {}
    for position, node in enumerate(order.nodes):
        for value in _values(order, node):
            if value.node in order.at:
                found[value] = position
    return found


def _values(order: _Order, node: Node) -> Iterator[Output]:
    """The values that a node reads, also by the operations that are repeated for it."""
    stack, seen = [node], {node}
    while stack:
        for value in stack.pop().input_values:
            if value is None or value.node in seen:
                continue
            if value.node in order.repeated:
                seen.add(value.node)
                stack.append(value.node)
            else:
                yield value


def _users(order: _Order, parameter: str, result: str) -> Iterator[int]:
    """The positions of the operations that read a variable's value, or compute the next one."""
    for target in order.model.parameter(parameter).output(0).target_inputs:
        if target.node in order.at:
            yield order.at[target.node]
    maker = order.model.result(result).input_value(0).node
    if maker in order.at:
        yield order.at[maker]


def _cheapest(
    order: _Order, places: Sequence[int], crossing: Floats, parts: int, limit: float
) -> tuple[list[int], float]:
    """The positions with the fewest crossing bytes among the even ones, and the bytes of the largest part."""
    ends = [0, *places, len(order.nodes)]
    sizes = _sizes(order, ends)
    smallest = float(_best(sizes, np.zeros(len(ends)), parts, np.maximum)[0])
    # A part that is larger than the largest is never chosen; beside the bytes that cross, even parts are better.
    evenness = np.square(sizes / max(order.total, 1)) / parts
    costs = np.where(sizes <= (min(smallest * _BAND, limit) if smallest <= limit else smallest), evenness, np.inf)
    _, chosen = _best(costs, crossing[ends], parts, np.add)
    largest = max(sizes[a, b] for a, b in zip([0, *chosen], [*chosen, len(ends) - 1], strict=True))
    return [ends[index] for index in chosen], float(largest)


def _sizes(order: _Order, ends: Sequence[int]) -> Floats:
    """For each pair of positions, the bytes of the constants that the operations between them read."""
    sizes = np.full((len(ends), len(ends)), np.inf)
    for first in range(len(ends) - 1):
        read: set[Constant] = set()
        size = 0
        for last in range(first + 1, len(ends)):
            for node in order.nodes[ends[last - 1] : ends[last]]:
                for constant in order.constants_of(node) - read:
                    size += constant.byte_size
                    read.add(constant)
            sizes[first, last] = size
    return sizes


def _best(costs: Floats, place_costs: Floats, parts: int, combine: Any) -> tuple[float, list[int]]:
    """The least cost of so many parts, and the indices of their beginnings; `costs` has those of each part.

    Dynamic programming over the number of parts: O(parts * places^2).
    """
    count = len(costs)
    best = costs[0]
    froms = []
    for _ in range(parts - 1):
        candidates = combine((best + place_costs)[:, None], costs)
        froms.append(candidates.argmin(axis=0))
        best = candidates.min(axis=0)
    chosen: list[int] = []
    end = count - 1
    for origin in reversed(froms):
        end = int(origin[end])
        chosen.insert(0, end)
    return float(best[-1]), chosen


def _too_large(order: _Order, ranges: Sequence[Sequence[Node]], sizes: Sequence[int], limit: float) -> PassError:
    """The error for parts that are larger than the limit, with the reason."""
    read = [set().union(*(order.constants_of(node) for node in nodes)) for nodes in ranges]
    counts: dict[Constant, int] = {}
    for constant in (each for found in read for each in found):
        counts[constant] = counts.get(constant, 0) + 1
    shared = sorted((c for c, n in counts.items() if n > 1), key=lambda c: -c.byte_size)[:_MAX_NAMED]
    large = sorted(read[sizes.index(max(sizes))], key=lambda c: -c.byte_size)[:1]
    if shared and sum(c.byte_size for c in shared) * 100 > order.total:
        why = "weights that several parts read are in each of them: " + _listed(shared)
    else:
        why = "the operations of the largest part cannot be divided further; its largest weight is " + _listed(large)
    share = max(sizes) / order.total
    return PassError(
        f"model `{order.model.name}` has {byte_count(order.total)} of weights, of which the largest of {len(sizes)} "
        f"parts would have {share:.1%}; expected {limit:.1%} at most: {why}; pass "
        f"largest={math.ceil(share * 100) / 100:g}, or another number of parts"
    )


def _listed(constants: Iterable[Constant]) -> str:
    return ", ".join(f"`{each.output(0).name}` ({byte_count(each.byte_size)})" for each in constants)


class _Divider:
    """Builds the parts: copies of their operations, and of the constants and repeated operations that they read."""

    def __init__(self, order: _Order, ranges: Sequence[Sequence[Node]]) -> None:
        self.order, self.ranges = order, ranges
        self.part_of = {node: number for number, nodes in enumerate(ranges) for node in nodes}
        self.owner = {variable.name: self._owner(variable.parameter, variable.result) for variable in self._variables}
        self.names = self._names()
        self.read = [list(dict.fromkeys(v for node in nodes for v in _values(order, node))) for nodes in ranges]
        self.is_tied = not any(node.op_type in ("Loop", "Scan") for node in order.nodes)
        """Whether symbols of crossing values say the truth: lengths may be 0 where a loop runs zero iterations."""

    @property
    def _variables(self) -> Sequence[Variable]:
        return self.order.model.variables

    def _owner(self, parameter: str, result: str) -> int:
        """The part of a variable; one that only shape arithmetic reads, and that never changes, is in the first."""
        users = [self.part_of[self.order.nodes[position]] for position in _users(self.order, parameter, result)]
        return users[0] if users else 0

    def _names(self) -> dict[Output, str]:
        """A name for each value that crosses, which no other value, and no input of the model, has."""
        model = self.order.model
        found: dict[Output, str] = {}
        taken = {node.friendly_name for node in (*model.parameters, *model.results)}
        states = {variable.result for variable in model.variables}
        for result in model.results:
            if result.friendly_name not in states:
                found.setdefault(result.input_value(0), result.friendly_name)
        for value in (output for node in (*self.order.nodes, *self.order.repeated) for output in node.outputs):
            if value not in found:
                name, count = value.name, 1
                while name in taken:
                    count += 1
                    name = f"{value.name}:{count}"
                found[value] = name
                taken.add(name)
        return found

    def part(self, number: int, size: int) -> ModelPart:
        """The part as a model."""
        model = self.order.model
        made: dict[Output, Output] = {}
        parameters: dict[str, Parameter] = {}
        lengths: dict[str, LengthsOf] = {}
        own = set(self.ranges[number])

        def take(value: Output) -> Output:
            """The copy of a value in this part: made here, a constant, or an input."""
            if value not in made:
                node = value.node
                variable = self._variable_of(node)
                if isinstance(node, Parameter):
                    made[value] = add(node.clone_with_new_inputs([]))
                elif variable is not None and (twin := self._twin(node, number)) is not None:
                    copy = node.clone_with_new_inputs([take(twin)])
                    copy.output_names, copy.id = node.output_names, node.id
                    made[value] = copy.output(0)
                elif variable is not None and self.owner[variable.name] != number:
                    lengths[self.names[value]] = _lengths(node, variable.name)
                    made[value] = add(Parameter(value.type, friendly_name=self.names[value]))
                elif isinstance(node, Constant) or node in own or node in self.order.repeated:
                    copy = node.clone_with_new_inputs(taken(node))
                    copy.output_names, copy.id = node.output_names, node.id
                    made.update(zip(node.outputs, copy.outputs, strict=True))
                else:
                    made[value] = add(Parameter(self._crossing_type(value), friendly_name=self.names[value]))
            return made[value]

        def taken(node: Node) -> list[Output | None]:
            return [None if value is None else take(value) for value in node.input_values]

        def add(parameter: Parameter) -> Output:
            parameters[parameter.friendly_name] = parameter
            return parameter.output(0)

        for node in self.ranges[number]:  # in their order, which keeps the calls from nesting deeply
            for value in node.outputs[:1]:
                take(value)
        results = [Result(take(value), name) for name, value in self._outputs(number)]
        variables = [variable for variable in self._variables if self.owner[variable.name] == number]
        for variable in variables:
            take(model.parameter(variable.parameter).output(0))
        sinks = [
            made[sink.output(0)].node if sink.num_outputs else sink.clone_with_new_inputs(taken(sink))
            for sink in model.sinks
            if sink in own
        ]
        inputs = [parameters[name] for name in self._in_order(parameters)]
        inputs += self._symbols(inputs, [parameters[variable.parameter] for variable in variables])
        part = Model(results, inputs, sinks, name=f"{model.name}.{number}")
        part.opset_imports, part.metadata = dict(model.opset_imports), dict(model.metadata)
        if model.rt_info.get(DECLARED_LENGTHS):
            part.rt_info[DECLARED_LENGTHS] = True
        for variable in variables:
            part.add_variable(variable)
        return ModelPart(part, size, lengths)

    def _outputs(self, number: int) -> Iterator[tuple[str, Output]]:
        """The values that a part gives, with their names: outputs and variables of the model, and what later parts
        read.
        """
        model, found = self.order.model, set()
        owners = {variable.result: self.owner[variable.name] for variable in self._variables}
        for result in model.results:
            value = result.input_value(0)
            if owners.get(result.friendly_name, self.part_of.get(value.node, 0)) == number:
                found.add(result.friendly_name)
                yield result.friendly_name, value
        for later in range(number + 1, len(self.ranges)):
            for value in self.read[later]:
                name = self.names.get(value)
                if name is not None and self.part_of.get(value.node) == number and name not in found:
                    found.add(name)
                    yield name, value

    def _in_order(self, parameters: Mapping[str, Parameter]) -> Iterator[str]:
        """The inputs of the model in its order, then the others."""
        own = [parameter.friendly_name for parameter in self.order.model.parameters]
        yield from (name for name in own if name in parameters)
        known = set(own)
        yield from (name for name in parameters if name not in known)

    def _symbols(self, inputs: Sequence[Parameter], states: Sequence[Parameter]) -> Iterator[Parameter]:
        """Further inputs of the model, whose lengths tell those of the initial values, such as the batch."""
        names = {parameter.friendly_name for parameter in states}
        known = {symbol for each in inputs if each.friendly_name not in names for symbol in _symbols_of(each.type)}
        needed = {symbol for each in states for symbol in _symbols_of(each.type)} - known
        for parameter in self.order.model.parameters:
            if parameter.friendly_name in self.order.variables or parameter.friendly_name in {
                each.friendly_name for each in inputs
            }:
                continue
            if needed & (given := set(_symbols_of(parameter.type))):
                needed -= given
                yield parameter.clone_with_new_inputs([])

    def _variable_of(self, node: Node) -> Variable | None:
        """The variable of which a node takes lengths; None for other nodes."""
        if not self.order.takes_lengths(node):
            return None
        return self.order.variables[node.input_value(0).node.friendly_name]

    def _twin(self, node: Node, number: int) -> Output | None:
        """A variable of a part that has the same lengths as the other part's variable of which a node takes some."""
        lengths = _chosen(node, node.input_value(0))
        if any(dim.is_dynamic and dim.symbol is None for dim in lengths):
            return None
        for variable in self._variables:
            value = self.order.model.parameter(variable.parameter).output(0)
            if self.owner[variable.name] == number and _chosen(node, value) == lengths:
                return value
        return None

    def _crossing_type(self, value: Output) -> ValueType:
        """The type of a value in another part."""
        if self.is_tied or not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
            return value.type
        dims = [dim if dim.symbol is None else None for dim in value.shape.dims]
        return TensorType(value.element_type, PartialShape(dims))


def _lengths(node: Node, variable: str) -> LengthsOf:
    if node.op_type == "Size":
        return LengthsOf(variable, None, None, is_size=True)
    spec = ShapeSpec.of(node)
    return LengthsOf(variable, spec.start, spec.end)


def _chosen(node: Node, value: Output) -> list[Dimension]:
    """The dimensions of a value that the result of a `Shape` or `Size` of it depends on."""
    dims = list(value.shape.dims)
    if node.op_type == "Size":
        return dims
    spec = ShapeSpec.of(node)
    return list(spec.at(dims))


def _is_shape_like(constant: Constant) -> bool:
    """Whether a constant is a number, or axes, lengths or places, as shape arithmetic reads them."""
    count, is_integer = constant.output(0).shape.size(), constant.element_type.numpy.kind in "biu"
    return count <= 1 or (is_integer and count <= _SMALL)


def _symbols_of(value_type: ValueType) -> Iterator[str]:
    if isinstance(value_type, TensorType) and value_type.shape.rank.is_static:
        yield from (dim.symbol for dim in value_type.shape if dim.symbol is not None)


def _sources(node: Node) -> list[Node]:
    return [value.node for value in node.input_values if value is not None]


def _distinct(nodes: Iterable[Node]) -> Iterable[Node]:
    return dict.fromkeys(nodes)
