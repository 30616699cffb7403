"""Layout assignment: the layout in which each item of a segment reads and writes, minimizing reorders.

The cost of an assignment is the bytes that its reorders move plus the costs of the chosen options. Initially, items
follow their producers; then single items, values with their producer and consumers, and whole regions of items that can
run in several layouts, switch layout as long as that reduces the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from engine.ir import Constant, Output
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption, layout_bytes, static_shape

_MAX_ROUNDS = 8


def assign_layouts(
    items: Sequence[Item], outputs: Collection[Output], precision: str = "f32"
) -> dict[Item, LayoutOption]:
    """The option of each item. Values from outside are PLAIN, and `outputs` must be PLAIN at the end."""
    return _Assignment(items, outputs, precision).solve()


class _Value:
    """A non-constant value: its producer and consumers, as (item, port), and the bytes that reordering it moves.

    `changed` is the number of the last change of the option of one of these items.
    """

    __slots__ = ("changed", "is_output", "moved", "producer", "readers")

    def __init__(self, value: Output, is_output: bool) -> None:
        self.producer: tuple[int, int] | None = None
        self.readers: list[tuple[int, int]] = []
        self.is_output = is_output
        self.moved = 2.0 * layout_bytes(static_shape(value), value.element_type, Layout.PLAIN)
        self.changed = 0


class _Move:
    """A change that may be an improvement, and depends only on the items around `values`."""

    __slots__ = ("make", "tried", "values")

    def __init__(self, values: Collection[_Value], make: Callable[[], bool]) -> None:
        self.values = values
        self.make = make
        self.tried = -1
        """The number of the last change of an option before it was tried."""


class _Assignment:
    def __init__(self, items: Sequence[Item], outputs: Collection[Output], precision: str) -> None:
        self.items = items
        self.options = [
            tuple(option for option in item.lowering.item_layouts(item) if option.precision in ("", precision))
            for item in items
        ]
        self.chosen = [options[0] for options in self.options]
        self.changes = 0
        wanted = frozenset(outputs)
        values: dict[Output, _Value] = {}
        self.inputs: list[list[tuple[int, _Value]]] = []
        for index, item in enumerate(items):
            read = []
            for port, output in enumerate(item.inputs):
                if output is None or isinstance(output.node, Constant):
                    continue
                value = values.get(output)
                if value is None:
                    value = values[output] = _Value(output, output in wanted)
                value.readers.append((index, port))
                read.append((port, value))
            self.inputs.append(read)
        made: list[list[_Value]] = []
        for index, item in enumerate(items):
            made.append([])
            for port, output in enumerate(item.outputs):
                value = values.get(output)
                if value is None and output in wanted:
                    value = values[output] = _Value(output, True)
                if value is not None:
                    value.producer = (index, port)
                    made[-1].append(value)
        self.values = list(values.values())
        self.touched = [
            tuple(dict.fromkeys([*(value for _, value in read), *written]))
            for read, written in zip(self.inputs, made, strict=True)
        ]

    def solve(self) -> dict[Item, LayoutOption]:
        free = [index for index, options in enumerate(self.options) if len(options) > 1]
        for index in free:
            self.chosen[index] = min(self.options[index], key=lambda option: self._input_cost(index, option))
        moves = self._moves(free)
        for _ in range(_MAX_ROUNDS):
            if not sum(self._improves(move) for move in moves):
                break
        return dict(zip(self.items, self.chosen, strict=True))

    def _moves(self, free: list[int]) -> list[_Move]:
        moves = [_Move(self.touched[index], partial(self._improve, index)) for index in free]
        for value in self.values:
            if value.producer is not None and not value.is_output and len(self._layouts_of(value.producer)) > 1:
                items = {value.producer[0], *(index for index, _ in value.readers)}
                moves.append(_Move(self._touched(items), partial(self._improve_value, value, value.producer)))
        for region in self._regions(free):
            moves.append(_Move(self._touched(region), partial(self._improve_region, region)))
        return moves

    def _improves(self, move: _Move) -> bool:
        """Make a move if that reduces the cost, which it cannot if nothing around it has changed since it was tried."""
        if move.tried >= max((value.changed for value in move.values), default=0):
            return False
        move.tried = self.changes
        return move.make()

    def _touched(self, indices: Iterable[int]) -> set[_Value]:
        return {value for index in indices for value in self.touched[index]}

    def _layout(self, value: _Value) -> Layout:
        at = value.producer
        return Layout.PLAIN if at is None else self.chosen[at[0]].outputs[at[1]]

    def _input_cost(self, index: int, option: LayoutOption) -> float:
        moved = (v.moved for port, v in self.inputs[index] if self._layout(v) is not option.inputs[port])
        return option.cost + sum(moved)

    def _value_cost(self, value: _Value) -> float:
        """The cost of one reorder for each layout that is read but not written."""
        made = self._layout(value)
        others = [Layout.PLAIN] if value.is_output and made is not Layout.PLAIN else []
        for index, port in value.readers:
            layout = self.chosen[index].inputs[port]
            if layout is not made and layout not in others:
                others.append(layout)
        return value.moved * len(others)

    def _cost(self, indices: Iterable[int], values: Iterable[_Value]) -> float:
        return sum(map(self._value_cost, values)) + sum(self.chosen[index].cost for index in indices)

    def _improve(self, index: int) -> bool:
        """Give one item its cheapest option."""
        return self._try([index], [{index: option} for option in self.options[index]], self.touched[index])

    def _layouts_of(self, producer: tuple[int, int]) -> dict[Layout, None]:
        """The layouts in which an item can write a value."""
        index, port = producer
        return dict.fromkeys([option.outputs[port] for option in self.options[index]])

    def _improve_value(self, value: _Value, producer: tuple[int, int]) -> bool:
        """Store one value in another layout, which its producer writes and all its consumers read."""
        maker, port = producer
        ports: dict[int, list[int]] = {}
        for index, reader_port in value.readers:
            ports.setdefault(index, []).append(reader_port)
        choices = []
        for layout in self._layouts_of(producer):
            choice = {maker: self._stored_in(maker, layout, outputs=[port])}
            choice |= {index: self._stored_in(index, layout, inputs=read) for index, read in ports.items()}
            if None not in choice.values():
                choices.append({index: option for index, option in choice.items() if option is not None})
        # The options of a choice differ from the chosen ones only in how they store this value.
        return len(choices) > 1 and self._try([maker, *ports], choices, [value])

    def _stored_in(
        self, index: int, layout: Layout, *, inputs: Collection[int] = (), outputs: Collection[int] = ()
    ) -> LayoutOption | None:
        """The option of an item that differs from the chosen one only by the layout at some ports, if there is one."""
        chosen = self.chosen[index]
        wanted = (
            tuple(layout if port in inputs else given for port, given in enumerate(chosen.inputs)),
            tuple(layout if port in outputs else given for port, given in enumerate(chosen.outputs)),
        )
        return next((other for other in self.options[index] if (other.inputs, other.outputs) == wanted), None)

    def _improve_region(self, region: list[int]) -> bool:
        """Give all items of a region the options of one layout."""
        choices = []
        for layout in Layout:
            choice = {}
            for index in region:
                for option in self.options[index]:
                    if all(written is layout for written in option.outputs):
                        choice[index] = option
                        break
            choices.append(choice)
        return self._try(region, choices, self._touched(region))

    def _try(self, indices: list[int], choices: list[dict[int, LayoutOption]], values: Collection[_Value]) -> bool:
        """Make the cheapest choice for some items, if that helps; `values` are those whose cost depends on it."""
        before = {index: self.chosen[index] for index in indices}
        best, best_cost, improved = before, self._cost(indices, values), False
        for choice in choices:
            for index, option in choice.items():
                self.chosen[index] = option
            if (cost := self._cost(indices, values)) < best_cost:
                best, best_cost, improved = {**before, **choice}, cost, True
            for index, option in before.items():
                self.chosen[index] = option
        self.changes += improved
        for index, option in best.items():
            if option is not before[index]:
                for value in self.touched[index]:
                    value.changed = self.changes
            self.chosen[index] = option
        return improved

    def _regions(self, free: list[int]) -> list[list[int]]:
        """The connected sets of at least two items with several options."""
        root = {index: index for index in free}

        def find(index: int) -> int:
            while root[index] != index:
                root[index] = root[root[index]]
                index = root[index]
            return index

        for value in self.values:
            ends = value.readers if value.producer is None else [value.producer, *value.readers]
            joined = [index for index, _ in ends if index in root]
            for index in joined[1:]:
                root[find(index)] = find(joined[0])
        regions: dict[int, list[int]] = {}
        for index in free:
            regions.setdefault(find(index), []).append(index)
        return [region for region in regions.values() if len(region) > 1]
