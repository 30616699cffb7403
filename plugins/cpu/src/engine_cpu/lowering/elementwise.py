"""Elementwise operators: connected ones of equal shape become one step, which reads memory once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import bf16, f32
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.ops.quantize import QuantizeSpec
from engine.ops.spec import OperatorSpec
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption, static_shape
from engine_cpu.lowering.elementwise_instructions import Value
from engine_cpu.lowering.elementwise_operands import (
    BLOCKED_TYPES,
    blocked_constant,
    blocked_read,
    is_kept_plain,
    space,
    strides,
)
from engine_cpu.lowering.elementwise_ops import BOOLEANS, BYTES, NUMBERS, OPS
from engine_cpu.lowering.elementwise_program import ElementwiseProgram
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

_MAX_RANK: Final = 8
_MAX_INPUTS: Final = 32


@lowers(*OPS)
class ElementwiseLowering(OpLowering[OperatorSpec]):
    """Operators that compute each element of their output from one element of each input."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return first_refusal(_check_inputs(spec.node), _check_attributes(spec), _check_sizes(spec.node))

    def group_key(self, spec: OperatorSpec) -> Hashable | None:
        """Nodes with the same output shape run together."""
        return static_shape(spec.output())

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        return self.item_layouts(Item.of(spec, self))

    def item_layouts(self, item: Item) -> Sequence[LayoutOption]:
        """Plain; or blocked, if all inputs can be read in blocks."""
        plain = LayoutOption.uniform(Layout.PLAIN, len(item.inputs), len(item.outputs))
        rank = len(static_shape(item.outputs[0]))
        if not 3 <= rank < _MAX_RANK or any(value.element_type not in BLOCKED_TYPES for value in item.outputs):
            return (plain,)
        reads = [Layout.PLAIN if value is None else blocked_read(value, rank) for value in item.inputs]
        if any(read is None for read in reads):
            return (plain,)
        inputs = tuple(read for read in reads if read is not None)
        blocked = LayoutOption(inputs, (Layout.BLOCKED,) * len(item.outputs))
        read = (value for value in item.inputs if value is not None)
        if any(value.element_type is not f32 for value in (*read, *item.outputs)):
            return (plain, blocked)
        halves = tuple(Layout.BLOCKED_BF16 if read is Layout.BLOCKED else read for read in inputs)
        return (
            plain,
            blocked,
            LayoutOption(halves, (Layout.BLOCKED_BF16,) * len(item.outputs), precision="bf16"),
        )

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        self.lower_item(Item.of(spec, self), b)

    def lower_item(self, item: Item, b: SegmentBuilder) -> None:
        """Add one step that computes all nodes of the item in a single pass over the elements."""
        _StepBuilder(item, b).add()


class _StepBuilder:
    """A step under construction."""

    def __init__(self, item: Item, b: SegmentBuilder) -> None:
        self.item, self.b = item, b
        self.shape = static_shape(item.node.output(0))
        option = b.option(item.node)
        self.layout = option.outputs[0]
        self.read_as = dict(zip(item.inputs, option.inputs, strict=True))
        self.program = ElementwiseProgram()
        self.values: dict[Output, Value] = {}
        self.buffers: list[int] = []
        self.strides: list[int] = []
        self.reusable: dict[Output, None] = {}

    def add(self) -> None:
        for spec in self.item.specs:
            sources = [self._value(value) for value in _read_inputs(spec.node)]
            self.values[spec.output()] = OPS[spec.op_type].emit(self.program, spec, sources)
        outputs = [value for value in self.item.outputs if value in self.values]
        buffers = [self._output(value) for value in outputs]
        self.b.step(
            self.item.node,
            "elementwise",
            self.buffers,
            buffers,
            dims=space(self.shape, self.layout),
            input_strides=self.strides,
            **self.program.attributes([self._stored(value) for value in outputs]),
        )

    def _value(self, value: Output) -> Value:
        if value not in self.values:
            self.values[value] = self._constant(value) if self.b.is_constant(value) else self._operand(value)
        return self.values[value]

    def _constant(self, value: Output) -> Value:
        shape, rank = static_shape(value), len(self.shape)
        if value.shape.size() == 1:
            return self.program.constant(self.b.value(value).reshape(()), value.element_type)
        if self.layout is Layout.PLAIN or is_kept_plain(shape, rank):
            return self._input(value, self.b.input(value), strides(shape, self.shape, self.layout, Layout.PLAIN))
        blocked = self.b.weights([value], f"blocked {rank}", lambda: blocked_constant(self.b.value(value), rank))
        return self._input(value, blocked, strides(shape, self.shape, self.layout, Layout.BLOCKED))

    def _operand(self, value: Output) -> Value:
        shape, read_as = static_shape(value), self.read_as[value]
        if shape == self.shape and read_as is self.layout:
            self.reusable[value] = None
        at = strides(shape, self.shape, self.layout, read_as)
        return self._input(value, self.b.input(value, read_as), at, is_bf16=read_as.is_bf16)

    def _input(self, value: Output, buffer: int, at: list[int], *, is_bf16: bool = False) -> Value:
        self.buffers.append(buffer)
        self.strides += at
        stored = self.program.input(bf16 if is_bf16 else value.element_type)
        return self.program.cast(stored, value.element_type)

    def _stored(self, value: Output) -> Value:
        """The element type and layout stored for an output of the program."""
        computed = self.values[value]
        return self.program.cast(computed, bf16) if self.layout.is_bf16 else computed

    def _output(self, value: Output) -> int:
        size = value.element_type.numpy.itemsize
        for source in self.reusable:
            if source.element_type.numpy.itemsize == size and self.b.is_reusable(value, source, self.layout):
                del self.reusable[source]
                return self.b.output(value, self.layout, in_place_of=source)
        return self.b.output(value, self.layout)


def _read_inputs(node: Node) -> list[Output]:
    """The inputs that a node reads as data."""
    given = [value for value in node.input_values if value is not None]
    return given[:1] if node.op_type == "CastLike" else given


def _check_inputs(node: Node) -> Refusal | None:
    types = OPS[node.op_type].types
    read = _read_inputs(node)
    if node.op_type == "Where":
        return first_refusal(check_types(read[:1], BOOLEANS), check_types(read[1:], types))
    if node.op_type in ("Cast", "CastLike"):
        return first_refusal(check_types(read, types), check_types(node.outputs, types))
    if node.op_type == "Pow":
        return check_types(read, NUMBERS)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return _check_quantization(node)
    return check_types(read, types)


def _check_quantization(node: Node) -> Refusal | None:
    """Between f32 and bytes, by one scale; others are decomposed."""
    real, codes = node.input_value(0), node.output(0)
    if node.op_type == "DequantizeLinear":
        real, codes = codes, real
    numbers = [value for value in node.input_values[1:] if value is not None]
    if any(not value.shape.is_static or value.shape.size() != 1 for value in numbers) or real.shape.rank.is_dynamic:
        return Refusal(RefusalCause.SHAPE, "several scales; expected one")
    if any(len(value.shape) > len(real.shape) for value in numbers):
        return Refusal(RefusalCause.RANK, f"the scale has more dimensions than {real.name}")
    return first_refusal(check_types([real, numbers[0]], {f32}), check_types([codes], BYTES))


def _check_attributes(spec: OperatorSpec) -> Refusal | None:
    if isinstance(spec, QuantizeSpec) and (spec.precision not in (None, f32) or spec.block_size):
        return Refusal(RefusalCause.ATTRIBUTE, "there is no kernel for blocks, or quotients of other types than f32")
    return None


def _check_sizes(node: Node) -> Refusal | None:
    if node.num_inputs > _MAX_INPUTS:
        return Refusal(RefusalCause.OP, f"{node.num_inputs} inputs; expected at most {_MAX_INPUTS}")
    shape = node.output(0).shape
    if shape.rank.is_dynamic:
        return Refusal(RefusalCause.DYNAMIC_SHAPE, f"the rank of {node.output(0).name} is unknown")
    if len(shape) > _MAX_RANK:
        name = node.output(0).name
        return Refusal(RefusalCause.RANK, f"{name} has {len(shape)} dimensions; expected at most {_MAX_RANK}")
    return None
