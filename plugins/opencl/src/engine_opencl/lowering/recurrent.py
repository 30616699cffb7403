"""RNN, GRU and LSTM: one product for the inputs of all steps; then one launch for all steps, or one or two per step."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from engine.ir import Output
from engine.ir.element_type import f32, i32
from engine.lowering import Refusal
from engine.native import pointwise_functions
from engine.ops.recurrent import RecurrentActivation, RecurrentLengths, RecurrentSpec
from engine.startup import dataclass
from engine_opencl.elements import stored_type
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.elementwise import literal, pointwise_code
from engine_opencl.lowering.gather.indices import check_lengths
from engine_opencl.lowering.matmul.block_shapes import best_lanes
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import power_above, power_within
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, lanes_source, strides_of

_LENGTHS: Final = 4
"""The index of input sequence_lens."""
_CODES: Final = {
    **{name.lower(): pointwise_code(name, "{x}", "{a}", "{b}") for name in pointwise_functions()},
    "relu": "relu({x})",
    "affine": "({a} * {x} + {b})",
    "scaledtanh": "({a} * tanh({b} * {x}))",
}
"""The code of activations, with {x}, {a} and {b}."""
_SUMS: Final = 16
"""Sums that an item has in registers."""
_COALESCED: Final = 32
"""Neighbouring items of a GPU, whose reads fill a memory transaction."""
_ITEMS_PER_UNIT: Final = 256
"""Items that keep a compute unit of a GPU busy."""
_SMALL_WEIGHTS: Final = 1 << 20
"""Bytes that one compute unit reads from its caches in about the time of a launch."""


@lowers("RNN", "GRU", "LSTM", spec=RecurrentSpec)
class RecurrentLowering(OpLowering[RecurrentSpec]):
    """All ONNX features: directions, sequence lengths, activations, clipping, peepholes, layouts."""

    def check(self, spec: RecurrentSpec) -> Refusal | None:
        values = [value for index, value in enumerate(spec.node.input_values) if index != _LENGTHS]
        return check_types([*values, *spec.node.outputs]) or check_types([spec.sequence_lens], {i32})

    def lower(self, spec: RecurrentSpec, b: LaunchPlanBuilder) -> None:
        s = spec.at(spec.input_shapes())
        if spec.sequence_lens is not None:
            check_lengths(b, spec.sequence_lens, s.steps)
        shape = _shape_of(b, spec, s)
        projection = _projected(spec, b, s)
        recurrent = _packed(spec, b, s, shape.width)
        states = [_initial(spec.initial_h, b, s, shape), b.temporary(shape.state_bytes(s))]
        cell = _initial(spec.initial_c, b, s, shape) if spec.op_type == "LSTM" else None
        given = [b.input(value) for value in (spec.b, spec.sequence_lens, spec.p) if value is not None]
        outputs = [b.output(spec.output())] if spec.is_read(0) else []
        scratch = [b.temporary(2 * shape.state_bytes(s))] if _is_reset_before(spec) else []
        shared = [projection, recurrent, *([] if cell is None else [cell]), *given, *outputs, *scratch]

        def launch(b: LaunchPlanBuilder, candidate: _Candidate) -> None:
            _launch(b, spec, s, shape, candidate, (states[0], states[1]), shared)

        b.choose(_site(spec, s, shape), _candidates(b, spec, s, shape), launch)
        for index, final in enumerate((states[s.steps % 2], cell), 1):
            if spec.is_read(index):
                assert final is not None
                output = spec.output(index)
                _copy_state(b, output, final, b.output(output), s, shape, is_stored=True)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How units and sequences are divided.

    Attributes:
        lanes: neighbouring units of an item.
        sequences: sequences of an item, which read the weights once.
        width: units whose weights alternate in memory; a multiple of `lanes`.
        padded: units of a state in memory; a multiple of `width`.
    """

    lanes: int
    sequences: int
    width: int
    padded: int

    def state_bytes(self, s: RecurrentLengths) -> int:
        """The bytes of a state [directions, batch, padded] of f32."""
        return 4 * s.directions * s.batch * self.padded


class _Candidate(NamedTuple):
    """All steps in one work group of `group` items; 0: a launch for each step."""

    group: int

    def __str__(self) -> str:
        return f"group {self.group}" if self.group else "steps"


def _shape_of(b: LaunchPlanBuilder, spec: RecurrentSpec, s: RecurrentLengths) -> _Shape:
    is_cpu, most = b.facts.kind == "cpu", _SUMS // s.gates
    lanes = best_lanes(b.facts.vector_width, s.hidden) if is_cpu else 1
    width = lanes if is_cpu else _COALESCED
    if b.constant(spec.r) is None:  # a computed one is not padded
        width = math.gcd(s.hidden, width)
        lanes = lanes if width == lanes else 1
    items = s.hidden * s.batch * s.directions
    is_filled = is_cpu or items >= most * _ITEMS_PER_UNIT * b.facts.compute_units
    sequences = min(s.batch, most) if is_filled else 1
    return _Shape(lanes, max(sequences, 1), width, -(-s.hidden // width) * width)


def _candidates(b: LaunchPlanBuilder, spec: RecurrentSpec, s: RecurrentLengths, shape: _Shape) -> list[_Candidate]:
    """One work group keeps to one compute unit, but its steps need no launches."""
    group = 1 if b.facts.kind == "cpu" else min(power_within(b.facts.max_work_group), power_above(s.hidden))
    groups = s.directions * -(-s.batch // shape.sequences)
    weight_bytes = stored_type(spec.r).itemsize * s.gates * s.hidden**2
    is_one_launch = groups >= b.facts.compute_units or weight_bytes <= _SMALL_WEIGHTS
    found = [_Candidate(group), _Candidate(0)]
    return found if is_one_launch else found[::-1]


def _site(spec: RecurrentSpec, s: RecurrentLengths, shape: _Shape) -> str:
    flags = f"{spec.direction} {int(_is_reset_before(spec))} {spec.x.element_type}"
    return f"{spec.op_type} {s.steps} {s.batch} {s.directions} {s.hidden} {shape.lanes} {shape.sequences} {flags}"


def _launch(
    b: LaunchPlanBuilder,
    spec: RecurrentSpec,
    s: RecurrentLengths,
    shape: _Shape,
    candidate: _Candidate,
    states: tuple[Buffer, Buffer],
    shared: list[Buffer],
) -> None:
    source = _source(spec, s, shape, candidate.group)
    places = (-(-s.batch // shape.sequences), s.directions)
    if candidate.group:
        size = (candidate.group, *places)
        b.launch(source, "recurrent_sequence", [*states, *shared], size if s.hidden else (0,), (candidate.group, 1, 1))
        return
    for step in range(s.steps):
        arguments: list[Given] = [states[step % 2], states[1 - step % 2], *shared, step]
        size = (-(-s.hidden // shape.lanes), *places)
        if _is_reset_before(spec):
            b.launch(source, "recurrent_reset", arguments, size)
        b.launch(source, "recurrent_step", arguments, size)


def _is_reset_before(spec: RecurrentSpec) -> bool:
    """Whether a GRU resets the state before the product: the reset gates must then be computed first."""
    return spec.op_type == "GRU" and not spec.linear_before_reset


def _projected(spec: RecurrentSpec, b: LaunchPlanBuilder, s: RecurrentLengths) -> Buffer:
    """X W^T of all steps and directions, rows in the order of X."""
    rows, columns = s.steps * s.batch, s.directions * s.gates * s.hidden
    result = b.temporary(stored_type(spec.x).itemsize * rows * columns)
    product = Product(rows, columns, s.inputs, (), (), (), (s.inputs, 1), (1, s.inputs), spec.x.element_type)
    if rows and columns:
        launch_product(b, product, Epilogue(), b.input(spec.x), b.input(spec.w), result)
    return result


def _packed(spec: RecurrentSpec, b: LaunchPlanBuilder, s: RecurrentLengths, width: int) -> Buffer:
    """R as [directions, blocks of units, hidden, gates, width], in the order in which an item reads."""
    value, blocks = spec.r, -(-s.hidden // width)
    if (constant := b.constant(value)) is not None:
        padded = np.zeros((s.directions, s.gates, blocks * width, s.hidden), constant.dtype)
        padded[:, :, : s.hidden] = constant.reshape(s.directions, s.gates, s.hidden, s.hidden)
        split = padded.reshape(s.directions, s.gates, blocks, width, s.hidden)
        return table(b, np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3)))
    shape = (s.directions, blocks, s.hidden, s.gates, width)
    target = b.temporary(stored_type(value).itemsize * math.prod(shape))
    read = (s.gates * s.hidden**2, width * s.hidden, 1, s.hidden**2, s.hidden)
    strided_copy(b, value, b.input(value), target, shape, read, 0, strides_of(shape), 0)
    return target


def _initial(value: Output | None, b: LaunchPlanBuilder, s: RecurrentLengths, shape: _Shape) -> Buffer:
    """A copy of an initial state as [directions, batch, padded]; zeros where none is given."""
    state = b.temporary(shape.state_bytes(s))
    if value is not None:
        _copy_state(b, value, b.input(value), state, s, shape, is_stored=False)
    else:
        b.launch(kernel_source("zero"), "zero", [state], (shape.state_bytes(s) // 4,))
    return state


def _copy_state(
    b: LaunchPlanBuilder,
    value: Output,
    source: Buffer,
    target: Buffer,
    s: RecurrentLengths,
    shape: _Shape,
    *,
    is_stored: bool,
) -> None:
    """Copy a state from the operator's layout to the kernels', or back if `is_stored`."""
    own, given = (s.batch * shape.padded, shape.padded, 1), s.state_strides
    read, written = (own, given) if is_stored else (given, own)
    outer = value.element_type
    stored = (f32, outer) if is_stored else (outer, f32)
    lengths = (s.directions, s.batch, s.hidden)
    strided_copy(b, value, source, target, lengths, read, 0, written, 0, stored=stored)


def _source(spec: RecurrentSpec, s: RecurrentLengths, shape: _Shape, group: int) -> str:
    """The kernels of a layer; both directions share a launch, each with its own activations."""
    real = spec.x.element_type
    text = kernel_source(
        "recurrent", real, LANES=shape.lanes, SEQUENCES=shape.sequences, WIDTH=shape.width, PADDED=shape.padded,
        GROUP=group,
        STEPS=s.steps, BATCH=s.batch, HIDDEN=s.hidden, DIRECTIONS=s.directions, BATCH_FIRST=int(s.batch_first),
        REVERSED={"forward": "0", "reverse": "1"}.get(spec.direction, "direction"), OUTPUT=int(spec.is_read(0)),
        INPUT_FORGET=int(spec.input_forget), GATES=s.gates, RESET_BEFORE=int(_is_reset_before(spec)),
        BIAS=int(spec.b is not None), LENGTHS=int(spec.sequence_lens is not None), PEEPHOLE=int(spec.p is not None),
    )  # fmt: skip
    vectors = lanes_source(real, shape.lanes) if shape.lanes > 1 else ""
    return HELPERS + vectors + _functions(spec, "lanes" if shape.lanes > 1 else "float") + text


def _functions(spec: RecurrentSpec, kind: str) -> str:
    """The activations as functions of a direction and x: activation0, activation1 ..."""
    functions = []
    for position, of_directions in enumerate(zip(*spec.activations, strict=True)):
        clip = of_directions[0].clip
        limit = "" if clip is None else f"x = clip(x, {literal(-clip)}, {literal(clip)}); "
        codes = [_code(each) for each in of_directions]
        code = codes[0] if len(codes) == 1 else f"direction ? {codes[1]} : {codes[0]}"
        functions.append(f"inline {kind} activation{position}(int direction, {kind} x) {{ {limit}return {code}; }}\n")
    return "".join(functions)


def _code(activation: RecurrentActivation) -> str:
    return _CODES[activation.name].format(x="x", a=literal(activation.alpha), b=literal(activation.beta))
