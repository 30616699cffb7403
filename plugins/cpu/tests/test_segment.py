"""Segments: which values are copied, with lowerings whose only kernel copies bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_cpu.assignment import assign_layouts
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption
from engine_cpu.lowering.registry import OpLowering
from engine_cpu.segment import LoweredSegment, SegmentBuilder, lower_segment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

from engine import ops
from engine.ir import Constant, Node, Output, Parameter, f32, i64
from engine.lowering import Refusal
from engine.native import Context, default_isa
from engine.ops.spec import OperatorSpec


class Copying(OpLowering):
    """Output 0 is input 0."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return None

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        source = b.input(x)
        b.step(node, "copy", [source], [b.output(y)])


class Reusing(Copying):
    """Ones in the shape of input 0, written over it: the softmax of single elements."""

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        source = b.input(x)
        target = b.output(y, in_place_of=x)
        b.step(node, "softmax_f32", [source], [target], outer=x.shape.size(), axis=1, inner=1)


class Aliasing(Copying):
    def alias_of(self, spec: OperatorSpec) -> int | None:
        return 0

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        b.alias(node.output(0), node.input_value(0))


class Joining(Copying):
    """A Concat over axis 0."""

    def placements(self, spec: OperatorSpec, option: LayoutOption) -> Sequence[int | None]:
        offsets, end = [], 0
        for value in spec.node.input_values:
            assert value is not None
            offsets.append(end)
            end += 4 * value.shape.size()
        return offsets

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        whole = b.output(node.output(0))
        for index, offset in enumerate(self.placements(spec, b.option(node))):
            if not b.is_placed(node, index):
                value = node.input_value(index)
                assert offset is not None
                b.step(node, "copy", [b.input(value)], [b.part(whole, offset, 4 * value.shape.size())])


KINDS = {"Relu": Copying(), "Abs": Reusing(), "Reshape": Aliasing(), "Concat": Joining()}


def build(inputs: Sequence[Parameter], outputs: Sequence[Node]) -> LoweredSegment:
    wanted = [node.output(0) for node in outputs]
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for value in node.input_values:
            if value is not None and value.node not in order:
                visit(value.node)
        order[node] = None

    for node in outputs:
        visit(node)
    items = [Item.of(OperatorSpec.of(node), KINDS[node.op_type]) for node in order if node.op_type in KINDS]
    options = assign_layouts(items, wanted)
    sources = [parameter.output(0) for parameter in inputs]
    return lower_segment(items, options, sources, wanted, WeightStore(default_isa()), CpuTuner(1))


def run(segment: LoweredSegment, *inputs: np.ndarray) -> list[np.ndarray]:
    outputs = [np.full(value.shape.get_shape(), np.nan, np.float32) for value in segment.outputs]
    Context(segment.plan).run(list(inputs), outputs)
    return outputs


def parameter(name: str, *shape: int) -> Parameter:
    return Parameter(f32, list(shape), name)


def reshape(x: Node | Output, *shape: int) -> Node:
    return ops.Reshape(x, Constant(np.array(shape), i64))


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_what_an_alias_reads_is_written_to_the_network_output() -> None:
    x = parameter("x", 3, 4)
    segment = build([x], [reshape(ops.Relu(x), 12)])
    assert len(segment.plan.steps) == 1
    np.testing.assert_array_equal(run(segment, X)[0], X.reshape(12))


def test_an_input_that_is_an_output_too_is_copied() -> None:
    x = parameter("x", 3, 4)
    segment = build([x], [reshape(x, 4, 3)])
    np.testing.assert_array_equal(run(segment, X)[0], X.reshape(4, 3))


def test_a_value_that_is_two_outputs_is_computed_once() -> None:
    x = parameter("x", 3, 4)
    y = ops.Relu(x)
    segment = build([x], [reshape(y, 12), reshape(y, 2, 6)])
    assert len(segment.plan.steps) == 2
    for result in run(segment, X):
        np.testing.assert_array_equal(result.reshape(3, 4), X)


def test_the_parts_of_a_concat_are_written_in_place() -> None:
    """Nested, through aliases, and one that is a network input, which must be copied."""
    x = parameter("x", 3, 4)
    inner = ops.Concat(ops.Relu(x), ops.Relu(x), axis=0)
    outer = ops.Concat(inner, reshape(ops.Relu(x), 3, 4), x, axis=0)
    segment = build([x], [ops.Relu(outer)])
    assert [step.kernel for step in segment.plan.steps] == ["copy"] * 5
    np.testing.assert_array_equal(run(segment, X)[0], np.concatenate([X] * 4))


def test_a_value_in_two_concats_is_in_both() -> None:
    x = parameter("x", 3, 4)
    y = ops.Relu(x)
    segment = build([x], [ops.Concat(y, y, axis=0), ops.Concat(y, x, axis=0)])
    for result in run(segment, X):
        np.testing.assert_array_equal(result, np.concatenate([X, X]))


@pytest.mark.parametrize("is_read_again", [False, True])
def test_memory_is_reused_only_where_nothing_reads_it_any_more(is_read_again: bool) -> None:
    x = parameter("x", 3, 4)
    first = ops.Relu(x)
    second = ops.Abs(first)
    segment = build([x], [ops.Relu(second), *([ops.Relu(first)] if is_read_again else [])])
    assert (segment.plan.naive_bytes > 48) == is_read_again
    for result, expected in zip(run(segment, X), [np.ones_like(X), X], strict=False):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_concat_is_not_written_over_while_one_of_its_parts_is_read(is_read_again: bool, is_nested: bool) -> None:
    x = parameter("x", 3, 4)
    part = ops.Relu(x)
    whole = ops.Concat(part, ops.Relu(x), axis=0)
    if is_nested:
        whole = ops.Concat(whole, ops.Relu(x), axis=0)
    segment = build([x], [ops.Relu(ops.Abs(whole)), *([ops.Relu(part)] if is_read_again else [])])
    size = 48 * (3 if is_nested else 2)
    assert (segment.plan.naive_bytes >= 2 * size) == is_read_again
    for result, expected in zip(run(segment, X), [np.ones(size // 4).reshape(-1, 4), X], strict=False):
        np.testing.assert_array_equal(result, expected)


def test_neither_inputs_nor_outputs_are_reused() -> None:
    x = parameter("x", 3, 4)
    kept = ops.Relu(x)
    segment = build([x], [kept, ops.Abs(kept), ops.Abs(x)])
    given = X.copy()
    for result, expected in zip(run(segment, given), [X, np.ones_like(X), np.ones_like(X)], strict=True):
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(given, X)


class Either(Copying):
    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        return [LayoutOption.uniform(layout, 1) for layout in (Layout.PLAIN, Layout.BLOCKED)]


class Blocked(Copying):
    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        return [LayoutOption.uniform(Layout.BLOCKED, 1)]


def assigned(*lowerings: OpLowering) -> str:
    """The layouts of a chain, one letter each."""
    x: Node = parameter("x", 1, 32, 4, 4)
    items = []
    for lowering in lowerings:
        node = ops.Relu(x)
        items.append(Item.of(OperatorSpec.of(node), lowering))
        x = node
    options = assign_layouts(items, [x.output(0)])
    return "".join("P" if options[item].outputs[0] is Layout.PLAIN else "B" for item in items)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ((Either(), Either()), "PP"),
        ((Blocked(), Either(), Either(), Blocked()), "BBBB"),
        ((Blocked(), Either(), Copying(), Either(), Blocked()), "BBPPB"),
        ((Copying(), Either(), Either(), Either(), Copying()), "PPPPP"),
    ],
)
def test_layouts_change_at_the_borders_of_regions_only(chain: tuple[OpLowering, ...], expected: str) -> None:
    assert assigned(*chain) == expected
