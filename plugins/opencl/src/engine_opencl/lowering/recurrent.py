"""RNN, GRU and LSTM: one product for the inputs of all steps, then one or two launches per step."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from engine.ir import Output
from engine.ir.element_type import f32, i32
from engine.lowering import Refusal
from engine.ops.recurrent import RecurrentActivation, RecurrentLengths, RecurrentSpec
from engine_opencl.elements import stored_type
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.gather.indices import check_lengths
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, strides_of

_LENGTHS: Final = 4
"""The index of input sequence_lens."""
_CODES: Final = {
    "sigmoid": "sigmoid({x})",
    "tanh": "tanh({x})",
    "relu": "relu({x})",
    "affine": "({a} * {x} + {b})",
    "leakyrelu": "({x} < 0.0f ? {a} * {x} : {x})",
    "thresholdedrelu": "({x} > {a} ? {x} : 0.0f)",
    "scaledtanh": "({a} * tanh({b} * {x}))",
    "hardsigmoid": "clip({a} * {x} + {b}, 0.0f, 1.0f)",
    "elu": "({x} < 0.0f ? {a} * expm1({x}) : {x})",
    "softsign": "({x} / (1.0f + fabs({x})))",
    "softplus": "({x} > 20.0f ? {x} : log1p(exp({x})))",
}
"""The code of activations, with {x}, {a} and {b}."""


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
        projection = _projected(spec, b, s)
        recurrent = _transposed(spec, b, s)
        states = [_initial(spec.initial_h, b, s), b.temporary(_state_bytes(s))]
        cell = _initial(spec.initial_c, b, s) if spec.op_type == "LSTM" else None
        given = [b.input(value) for value in (spec.b, spec.sequence_lens, spec.p) if value is not None]
        outputs = [b.output(spec.output())] if spec.is_read(0) else []
        shared = [projection, recurrent, *([] if cell is None else [cell]), *given, *outputs]
        source = _source(spec, s)
        scratch = [b.temporary(2 * _state_bytes(s))] if _is_reset_before(spec) else []
        for step in range(s.steps):
            arguments: list[Given] = [states[step % 2], states[1 - step % 2], *shared, *scratch, step]
            size = (s.hidden, s.batch, s.directions)
            if scratch:
                b.launch(source, "recurrent_gates", arguments, size)
            b.launch(source, "recurrent_step", arguments, size)
        for index, final in enumerate((states[s.steps % 2], cell), 1):
            if spec.is_read(index):
                assert final is not None
                output = spec.output(index)
                _copy_state(b, output, final, b.output(output), s, is_stored=True)


def _is_reset_before(spec: RecurrentSpec) -> bool:
    """Whether a GRU resets the state before the product: the reset gates must then be computed first."""
    return spec.op_type == "GRU" and not spec.linear_before_reset


def _state_bytes(s: RecurrentLengths) -> int:
    """The bytes of a state [directions, batch, hidden] of f32."""
    return 4 * s.directions * s.batch * s.hidden


def _projected(spec: RecurrentSpec, b: LaunchPlanBuilder, s: RecurrentLengths) -> Buffer:
    """X W^T of all steps and directions, rows in the order of X."""
    rows, columns = s.steps * s.batch, s.directions * s.gates * s.hidden
    result = b.temporary(stored_type(spec.x).itemsize * rows * columns)
    product = Product(rows, columns, s.inputs, (), (), (), (s.inputs, 1), (1, s.inputs), spec.x.element_type)
    if rows and columns:
        launch_product(b, product, Epilogue(), b.input(spec.x), b.input(spec.w), result)
    return result


def _transposed(spec: RecurrentSpec, b: LaunchPlanBuilder, s: RecurrentLengths) -> Buffer:
    """R as [directions, hidden, gates * hidden]: neighbouring units then read neighbouring weights."""
    value = spec.r
    if (constant := b.constant(value)) is not None:
        return table(b, np.ascontiguousarray(constant.transpose(0, 2, 1)))
    shape = (s.directions, s.hidden, s.gates * s.hidden)
    target = b.temporary(stored_type(value).itemsize * math.prod(shape))
    read = (s.gates * s.hidden * s.hidden, 1, s.hidden)
    strided_copy(b, value, b.input(value), target, shape, read, 0, strides_of(shape), 0)
    return target


def _initial(value: Output | None, b: LaunchPlanBuilder, s: RecurrentLengths) -> Buffer:
    """A copy of an initial state as [directions, batch, hidden]; zeros where none is given."""
    state = b.temporary(_state_bytes(s))
    if value is not None:
        _copy_state(b, value, b.input(value), state, s, is_stored=False)
    else:
        b.launch(kernel_source("zero"), "zero", [state], (_state_bytes(s) // 4,))
    return state


def _copy_state(
    b: LaunchPlanBuilder, value: Output, source: Buffer, target: Buffer, s: RecurrentLengths, *, is_stored: bool
) -> None:
    """Copy a state from the operator's layout to the kernels', or back if `is_stored`."""
    shape = (s.directions, s.batch, s.hidden)
    own, given = strides_of(shape), s.state_strides
    read, written = (own, given) if is_stored else (given, own)
    outer = value.element_type
    stored = (f32, outer) if is_stored else (outer, f32)
    strided_copy(b, value, source, target, shape, read, 0, written, 0, stored=stored)


def _source(spec: RecurrentSpec, s: RecurrentLengths) -> str:
    """The kernels of a layer; both directions share a launch, each with its own activations."""
    text = kernel_source(
        "recurrent", spec.x.element_type,
        STEPS=s.steps, BATCH=s.batch, HIDDEN=s.hidden, DIRECTIONS=s.directions, BATCH_FIRST=int(s.batch_first),
        REVERSED={"forward": "0", "reverse": "1"}.get(spec.direction, "direction"), OUTPUT=int(spec.is_read(0)),
        INPUT_FORGET=int(spec.input_forget), GATES=s.gates, RESET_BEFORE=int(_is_reset_before(spec)),
        BIAS=int(spec.b is not None), LENGTHS=int(spec.sequence_lens is not None), PEEPHOLE=int(spec.p is not None),
    )  # fmt: skip
    return HELPERS + _functions(spec) + text


def _functions(spec: RecurrentSpec) -> str:
    """The activations as functions of a direction and x: activation0, activation1 ..."""
    functions = []
    for position, of_directions in enumerate(zip(*spec.activations, strict=True)):
        clip = of_directions[0].clip
        limit = "" if clip is None else f"x = clip(x, {literal(-clip)}, {literal(clip)}); "
        codes = [_code(each) for each in of_directions]
        code = codes[0] if len(codes) == 1 else f"direction ? {codes[1]} : {codes[0]}"
        functions.append(f"inline float activation{position}(int direction, float x) {{ {limit}return {code}; }}\n")
    return "".join(functions)


def _code(activation: RecurrentActivation) -> str:
    return _CODES[activation.name].format(x="x", a=literal(activation.alpha), b=literal(activation.beta))
