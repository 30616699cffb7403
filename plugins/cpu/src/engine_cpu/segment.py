"""`SegmentBuilder`: the interface with which lowerings build the plan of a native segment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import PlanError, UnsupportedError
from engine.ir import Constant, Node, Output
from engine.limits import check_planned, current_limits, report_progress
from engine.native import Attribute, Packing, Plan, PlanBuilder
from engine.ops.spec import OperatorSpec
from engine.startup import dataclass
from engine_cpu.choices import Choices
from engine_cpu.in_place import InPlace
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption, item_size, layout_bytes, static_shape
from engine_cpu.reorder import reorder_attributes, reorder_kernel
from engine_cpu.segments.segment import PlanForm
from engine_cpu.step_names import step_name
from engine_cpu.tuning import Candidate, Candidates, CpuTuner
from engine_cpu.weights import WeightStore

Array = np.ndarray[Any, np.dtype[Any]]


ORDERED: Final = frozenset({
    "attention_bf16", "attention_f32", "gemm_bf16", "gemm_f32", "gemm_weights", "group_norm_f32", "layer_norm_f32",
    "recurrent_f32", "reduce", "rms_norm_f32", "softmax_f32",
})  # fmt: skip
"""Kernels that choose the order of sums by the number of rows, unless the attribute `repeatable` is set."""


@dataclass(frozen=True, slots=True)
class LoweredSegment:
    """The plan of a native segment, the values that it reads and writes, and the node of each of its steps."""

    plan: Plan
    inputs: tuple[Output, ...]
    outputs: tuple[Output, ...]
    step_nodes: tuple[tuple[str, str], ...]
    """Friendly name and op type."""
    largest: str
    """The node of the largest value."""
    largest_bytes: int

    @property
    def form(self) -> PlanForm:
        """The plan with what running it needs."""
        inputs, outputs = (
            tuple((value.element_type.numpy, static_shape(value)) for value in values)
            for values in (self.inputs, self.outputs)
        )
        return PlanForm(self.plan, inputs, outputs, self.step_nodes, self.largest, self.largest_bytes)


def lower_segment(
    items: Sequence[Item],
    options: dict[Item, LayoutOption],
    inputs: Sequence[Output],
    outputs: Sequence[Output],
    weights: WeightStore,
    tuner: CpuTuner,
    precision: str = "f32",
    plan: PlanBuilder | None = None,
    states: Sequence[InPlace] = (),
    choices: Choices | None = None,
) -> LoweredSegment:
    """Lower `items` in order, into `plan` if it is given. `outputs` are values that items produce.

    The values of `states` are neither inputs nor outputs. `choices` are followed, and extended.
    """
    builder = SegmentBuilder(items, options, inputs, outputs, weights, tuner, precision, plan, states, choices)
    try:
        for number, item in enumerate(items):
            report_progress("lower", f"lowering {item.node.op_type}", number / len(items))
            builder._lower(item)
    finally:
        weights.finish()  # also after an error: the store, and what is in it, serves other segments
    return builder._finish()


class SegmentBuilder:
    """The values of a segment as buffers of a plan. Lowerings call the public methods."""

    def __init__(
        self,
        items: Sequence[Item],
        options: dict[Item, LayoutOption],
        inputs: Sequence[Output],
        outputs: Sequence[Output],
        weights: WeightStore,
        tuner: CpuTuner,
        precision: str = "f32",
        plan: PlanBuilder | None = None,
        states: Sequence[InPlace] = (),
        choices: Choices | None = None,
    ) -> None:
        self.isa = weights.isa
        self.precision = precision
        self.is_repeatable = weights.is_repeatable
        self.threads = 1 if self.is_repeatable else tuner.threads
        """For how many threads kernels are chosen."""
        self.is_direct = tuner.is_accurate or tuner.saves_memory
        """Whether convolutions add products directly: Winograd's algorithm rounds more, and has larger weights."""
        self.l2_bytes = tuner.l2_bytes
        self._plan = PlanBuilder(isa=weights.isa, threads=tuner.threads) if plan is None else plan
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._given = frozenset(inputs)
        self.store, self._tuner = weights, tuner
        self._choices = choices or Choices()
        self._options = {node: options[item] for item in items for node in item.nodes}
        self._buffers: dict[Output, dict[Layout, int]] = {}
        self._made: dict[Output, Layout] = {}
        self._step_nodes: list[tuple[str, str]] = []
        self._constants: dict[str, int] = {}
        self._current: Node | str = "a plan"
        """The node that is lowered."""
        for value in inputs:
            nbytes = layout_bytes(static_shape(value), value.element_type, Layout.PLAIN)
            check_planned(nbytes, value.node)
            self._buffers[value] = {Layout.PLAIN: self._plan.add_input(nbytes, item_size(value.element_type))}
            self._made[value] = Layout.PLAIN
        self._limit = current_limits().tensor_bytes
        self._largest: tuple[int, str] = 0, ""
        """The bytes and the node of the largest value."""
        self._states: dict[Output, InPlace] = {}
        for state in states:
            self._states |= dict.fromkeys(state.values, state)
            self._buffers[state.past] = {Layout.PLAIN: self._plan.add_state(state.nbytes, state.format.element_bytes)}
            self._made[state.past] = Layout.PLAIN
        self._output_buffers = [
            self._plan.add_output(self._bytes_of(v, Layout.PLAIN), item_size(v.element_type)) for v in outputs
        ]
        self._similar_steps = Counter(_kind_of(item.node) for item in items)
        self._roots = _alias_roots(items)
        self._uses = Counter(self._root(v) for item in items for v in _read(item))
        self._uses.update(self._root(value) for value in outputs)
        self._shared: set[Output] = set()
        produced = {value for item in items for value in item.outputs}
        self._bound: dict[Output, int] = {}
        for value, buffer in zip(outputs, self._output_buffers, strict=True):
            root = self._root(value)
            if root in produced and root not in self._bound and _same_size(root, value):
                self._bound[root] = buffer
        self._places = self._find_places(items, options, produced)
        self._placed: set[tuple[Node, int]] = set()
        self._parts: dict[Output, list[Output]] = {}
        for part, place in self._places.items():
            self._parts.setdefault(place.node.output(0), []).append(part)

    # -- queries by lowerings --------------------------------------------------------------------------------

    def shape(self, value: Output) -> tuple[int, ...]:
        """The shape of a value; all lengths are known."""
        return static_shape(value)

    def option(self, node: Node) -> LayoutOption:
        """The layouts chosen for `node`, or for its item."""
        return self._options[node]

    def layout(self, value: Output) -> Layout:
        """The layout in which `value` was produced; PLAIN for constants."""
        return self._made.get(value, Layout.PLAIN)

    def is_constant(self, value: Output | None) -> bool:
        """True for a value that is known at compile time."""
        return value is not None and isinstance(value.node, Constant)

    def value(self, value: Output) -> Array:
        """The elements of `value`, which must be the output of a Constant."""
        assert isinstance(value.node, Constant)
        return self.store.data(value.node)

    def values(self, spec: OperatorSpec, *indices: int) -> list[Array | None]:
        """The data of these constant inputs; None for each omitted one."""
        inputs = [spec.input(index) for index in indices]
        return [None if value is None else self.value(value) for value in inputs]

    def is_placed(self, node: Node, index: int) -> bool:
        """True if input `index` was written at its offset from `placements`, so no copy is needed."""
        return (node, index) in self._placed

    # -- variables in place ----------------------------------------------------------------------------------

    def state(self, value: Output | None) -> InPlace | None:
        """The variable whose past or next value this is, if a plan appends to it in place; its memory is strided."""
        return None if value is None else self._states.get(value)

    def append(self, state: InPlace) -> int:
        """The buffer of a variable, to which the caller appends the new positions of the next value."""
        buffer = self._buffers[state.past][Layout.PLAIN]
        for value in state.values:
            self._buffers[value] = {Layout.PLAIN: buffer}
            self._made[value] = Layout.PLAIN
        return buffer

    # -- buffers -------------------------------------------------------------------------------------------

    def input(self, value: Output, layout: Layout = Layout.PLAIN) -> int:
        """The buffer that holds `value` in `layout`; it is reordered, once, if it was produced in another."""
        buffers = self._buffers.setdefault(value, {})
        if layout not in buffers:
            if isinstance(value.node, Constant):
                buffers[layout] = self._constant_buffer(value.node, layout)
            else:
                buffers[layout] = self._reordered(value, layout)
        return buffers[layout]

    def output(self, value: Output, layout: Layout = Layout.PLAIN, in_place_of: Output | None = None) -> int:
        """The buffer to write `value` to, in `layout`.

        It may be the buffer of `in_place_of`, an input in the same layout, if nothing else reads that later; the kernel
        must allow it. Call `input` for all inputs first.
        """
        self._made[value] = layout
        buffers = self._buffers.setdefault(value, {})
        if layout not in buffers:  # a part may already have been written
            reused = None if in_place_of is None else self._reusable(value, in_place_of, layout)
            buffers[layout] = self._new_buffer(value, layout) if reused is None else reused
        return buffers[layout]

    def is_reusable(self, value: Output, source: Output, layout: Layout = Layout.PLAIN) -> bool:
        """True if `output` would write `value` over `source`, an input requested in `layout`."""
        return layout not in self._buffers.get(value, {}) and self._reusable(value, source, layout) is not None

    def alias(self, value: Output, source: Output) -> None:
        """Make `value` share the bytes of `source` in PLAIN layout, without a step."""
        self._made[value] = Layout.PLAIN
        self._buffers.setdefault(value, {})[Layout.PLAIN] = self.input(source)

    def alias_blocked(self, value: Output, source: Output, layout: Layout = Layout.BLOCKED) -> None:
        """Make `value` in `layout` share the bytes of `source` in that layout, without a step."""
        self._made[value] = layout
        self._shared.update((self._root(value), self._root(source)))
        self._buffers.setdefault(value, {})[layout] = self.input(source, layout)

    def view(self, value: Output, source: Output, offset: int, layout: Layout = Layout.PLAIN) -> None:
        """Make `value` the bytes of `source` from `offset` on, both in `layout`, as for a Split, without a step."""
        nbytes = layout_bytes(static_shape(value), value.element_type, layout)
        self._made[value] = layout
        self._shared.update((self._root(value), self._root(source)))
        self._buffers.setdefault(value, {})[layout] = self._plan.add_view(self.input(source, layout), offset, nbytes)

    def part(self, buffer: int, offset: int, nbytes: int) -> int:
        """Add a view of `nbytes` at `offset` in a buffer; returns it as a buffer of its own."""
        return self._plan.add_view(buffer, offset, nbytes)

    def temporary(self, nbytes: int) -> int:
        """A scratch buffer used between steps. Raises `OutOfMemoryError` if the machine lacks memory."""
        check_planned(nbytes, self._current)
        return self._plan.add_buffer(nbytes)

    def constant(self, array: Array) -> int:
        """A buffer that holds a new array; steps read it in place."""
        return self._plan.add_constant(np.ascontiguousarray(array))

    def weights(self, sources: Sequence[Output], recipe: str, make: Callable[[], Array | Packing]) -> int:
        """The buffer of an array computed from constants, once per network, and stored in its blob.

        Args:
            sources: the constants.
            recipe: identifies the computation of `make`, with all parameters that its result depends on.
            make: returns the array, or the kernel that packs it; not called if the network already has it.
        """
        key = self.store.key(sources, recipe)
        if key not in self._constants:
            self._constants[key] = self._plan.add_constant(self.store.get(key, sources, make))
        return self._constants[key]

    # -- steps ---------------------------------------------------------------------------------------------

    def step(
        self, node: Node, kernel: str, inputs: Sequence[int], outputs: Sequence[int], /, **attributes: Attribute
    ) -> None:
        """Append a step that computes `node` or a part of it."""
        name = node.friendly_name
        if self.is_repeatable and kernel in ORDERED:
            attributes["repeatable"] = 1
        try:
            self._plan.add_step(kernel, inputs, outputs, attributes, step_name(node))
        except PlanError as e:
            raise PlanError(f"{node}: {e}") from e
        self._step_nodes.append((name, node.op_type))

    def choose(self, node: Node, key: str, candidates: Candidates, seconds: float) -> Candidate:
        """The fastest measured candidate, or the first if nothing is measured; the earlier choice for other lengths.

        `key` identifies the problem: nodes with the same key and candidates are measured once. `seconds` estimates the
        time of one run.
        """

        def fastest() -> Candidate:
            uses = self._similar_steps[_kind_of(node)]
            return self._tuner.choose(node, key, candidates, self.isa, seconds, uses)

        return self._once(node, candidates, fastest)

    def first(self, node: Node, candidates: Candidates) -> Candidate:
        """The first candidate, for a node of several in one step; the earlier choice for other lengths."""
        return self._once(node, candidates, lambda: candidates[0])

    def _once(self, node: Node, candidates: Candidates, choose: Callable[[], Candidate]) -> Candidate:
        def chosen() -> tuple[str, float]:
            made = choose()
            return str(made), candidates.estimate(made) / candidates.estimate(candidates[0])

        name, ratio = self._choices.once("kernel", node, chosen)
        found = candidates.named(name)
        if found is None:  # the layouts differ from those for the lengths of the earlier choice
            return choose()
        # A choice that was measured to be the best one may be estimated to be slower.
        self._choices.add_times(node, candidates.estimate(found) / ratio, candidates.estimate(candidates[0]))
        return found

    # -- internals ---------------------------------------------------------------------------------

    def _root(self, value: Output) -> Output:
        while value in self._roots:
            value = self._roots[value]
        return value

    def _lower(self, item: Item) -> None:
        self._current = item.node
        item.lowering.lower_item(item, self)
        for value in item.outputs:
            if value not in self._made and (value.num_consumers or value in self._outputs):
                raise UnsupportedError(f"{item.node}: its lowering did not write output {value.index}")
        self._uses.subtract(self._root(value) for value in _read(item))

    def _finish(self) -> LoweredSegment:
        for value, buffer in zip(self._outputs, self._output_buffers, strict=True):
            held = self._buffers[value].get(Layout.PLAIN)
            if held is None:
                held = self._reordered(value, Layout.PLAIN)
            if held != buffer:
                self._plan.add_step("copy", [held], [buffer], {}, value.name)
                self._step_nodes.append((value.node.friendly_name, value.node.op_type))
        plan = self._plan.build()
        check_planned(plan.arena_bytes, f"{self._largest[1]}, with all other values of its plan")
        nbytes, largest = self._largest
        return LoweredSegment(plan, self._inputs, self._outputs, tuple(self._step_nodes), largest, nbytes)

    def _new_buffer(self, value: Output, layout: Layout) -> int:
        if layout is Layout.PLAIN and value in self._bound:
            return self._bound[value]
        place = self._places.get(value)
        if place is not None and place.layout is layout:
            nbytes = layout_bytes(static_shape(value), value.element_type, layout)
            whole = self._whole_buffer(place.node.output(0), layout)
            self._placed.add((place.node, place.index))
            return self._plan.add_view(whole, place.offset, nbytes)
        return self._plan.add_buffer(self._bytes_of(value, layout))

    def _bytes_of(self, value: Output, layout: Layout) -> int:
        """The size of a value. Raises `OutOfMemoryError`, naming its node, if the machine lacks memory."""
        nbytes = layout_bytes(static_shape(value), value.element_type, layout)
        if nbytes > self._largest[0]:
            self._largest = nbytes, str(value.node)
            check_planned(nbytes, value.node, self._limit)
        return nbytes

    def _whole_buffer(self, value: Output, layout: Layout) -> int:
        """The buffer of a value whose parts are written before its own item is lowered."""
        buffers = self._buffers.setdefault(value, {})
        if layout not in buffers:
            buffers[layout] = self._new_buffer(value, layout)
        return buffers[layout]

    def _reordered(self, value: Output, layout: Layout) -> int:
        made = self._made[value]
        source = self._buffers[value][made]
        target = self._new_buffer(value, layout)
        shape = static_shape(value)
        kernel = reorder_kernel(made, layout, value.element_type)
        self._plan.add_step(
            kernel, [source], [target], reorder_attributes(made, layout, shape), f"{value.name} (reorder)"
        )
        self._step_nodes.append((value.node.friendly_name, "Reorder"))
        return target

    def _constant_buffer(self, constant: Constant, layout: Layout) -> int:
        if layout is Layout.PLAIN:
            data = np.ascontiguousarray(self.store.data(constant))
            # A vector in a mapped file keeps up to megabytes around it in memory. Rows may be of a table that plans for
            # other lengths read, too: see `fitting`.
            return self._plan.add_constant(data if data.nbytes > _COPIED_BYTES or data.ndim > 1 else data.copy())
        from engine_cpu.reorder import reordered_array

        return self.weights(
            [constant.output(0)],
            layout.value,
            lambda: reordered_array(self.store.data(constant), layout, self.isa),
        )

    def _reusable(self, value: Output, source: Output, layout: Layout) -> int | None:
        root = self._root(source)
        if value in self._bound or value in self._places or root in self._bound or root in self._places:
            return None
        if root in self._shared or self._uses[root] != 1 or root in self._given or isinstance(root.node, Constant):
            return None
        if root in self._states:
            return None
        if self._is_read_in_parts(root):
            return None
        same = layout_bytes(static_shape(value), value.element_type, layout) == layout_bytes(
            static_shape(source), source.element_type, layout
        )
        return self._buffers.get(source, {}).get(layout) if same else None

    def _is_read_in_parts(self, whole: Output) -> bool:
        """Whether a later item reads a value that was written into a part of `whole`."""
        return any(self._uses[part] or self._is_read_in_parts(part) for part in self._parts.get(whole, ()))

    def _find_places(
        self, items: Sequence[Item], options: dict[Item, LayoutOption], produced: set[Output]
    ) -> dict[Output, _Place]:
        """Find the values that can be written directly into the output of a later item, such as a Concat."""
        places: dict[Output, _Place] = {}
        for item in items:
            if len(item.nodes) > 1 or item.node.output(0) in self._states:
                continue
            option = options[item]
            for index, offset in enumerate(item.lowering.placements(item.spec, option)):
                value = item.inputs[index]
                if offset is None or value is None:
                    continue
                root = self._root(value)
                if root in produced and root not in places and root not in self._bound and _same_size(root, value):
                    places[root] = _Place(item.node, index, offset, option.outputs[0])
        return places


_COPIED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Place:
    node: Node
    index: int
    offset: int
    layout: Layout


def _alias_roots(items: Sequence[Item]) -> dict[Output, Output]:
    """The value whose bytes each alias shares."""
    roots: dict[Output, Output] = {}
    for item in items:
        if len(item.nodes) > 1:
            continue
        index = item.lowering.alias_of(item.spec)
        source = None if index is None else item.inputs[index]
        if source is not None:
            roots[item.node.output(0)] = source
    return roots


def _kind_of(node: Node) -> Hashable:
    """Equal for nodes whose steps take about the same time."""
    return node.op_type, *(value and value.type for value in node.sources), *node.output_types


def _read(item: Item) -> list[Output]:
    """The values whose memory an item's steps read; an alias has no steps and reads nothing."""
    alias = item.lowering.alias_of(item.spec) if len(item.nodes) == 1 else None
    return [v for i, v in enumerate(item.inputs) if v is not None and i != alias and not isinstance(v.node, Constant)]


def _same_size(a: Output, b: Output) -> bool:
    return math.prod(static_shape(a)) == math.prod(static_shape(b)) and a.element_type is b.element_type
