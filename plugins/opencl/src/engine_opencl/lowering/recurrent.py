"""RNN, GRU and LSTM: one product of all steps' inputs, then a launch or two a step for all directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.ir import Node, Output
from engine.ir.element_type import f32, i32
from engine.lowering import Refusal, RefusalCause
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import stored_type
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.products.matmul import Epilogue, Product, launch_product
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer, Given, PlanBuilder
from engine_opencl.source import kernel_source, strides_of

# Inputs: X, W, R, B, sequence_lens, initial_h, and of LSTM initial_c and P.
_X, _W, _R, _B, _LENGTHS, _INITIAL_H, _INITIAL_C, _P = range(8)
_GATES: Final = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS: Final = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
# What an activation computes from {x}, {a} and {b}; and the defaults of a and b; None where it has none.
_ACTIVATIONS: Final[dict[str, tuple[str, float | None, float | None]]] = {
    "sigmoid": ("sigmoid({x})", None, None),
    "tanh": ("tanh({x})", None, None),
    "relu": ("relu({x})", None, None),
    "affine": ("({a} * {x} + {b})", 1.0, 0.0),
    "leakyrelu": ("({x} < 0.0f ? {a} * {x} : {x})", 0.01, None),
    "thresholdedrelu": ("({x} > {a} ? {x} : 0.0f)", 1.0, None),
    "scaledtanh": ("({a} * tanh({b} * {x}))", 1.0, 1.0),
    "hardsigmoid": ("clip({a} * {x} + {b}, 0.0f, 1.0f)", 0.2, 0.5),
    "elu": ("({x} < 0.0f ? {a} * expm1({x}) : {x})", 1.0, None),
    "softsign": ("({x} / (1.0f + fabs({x})))", None, None),
    "softplus": ("({x} > 20.0f ? {x} : log1p(exp({x})))", None, None),
}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a layer."""

    steps: int
    batch: int
    inputs: int
    directions: int
    gates: int
    hidden: int
    batch_first: bool

    @property
    def columns(self) -> int:
        """The columns of the product of the inputs."""
        return self.directions * self.gates * self.hidden

    @property
    def state_bytes(self) -> int:
        """The bytes of a state [directions, batch, hidden] of f32."""
        return 4 * self.directions * self.batch * self.hidden

    @property
    def state_strides(self) -> tuple[int, int, int]:
        """The strides along direction, batch and unit of a state of the operator."""
        if self.batch_first:
            return self.hidden, self.directions * self.hidden, 1
        return self.batch * self.hidden, self.hidden, 1


@lowers("RNN", "GRU", "LSTM")
class RecurrentLowering(OpLowering[OperatorSpec]):
    """All that ONNX states of them: directions, lengths of sequences, activations, clipping, peepholes, layouts."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        values = [node.input_value(i) for i in range(node.num_inputs) if i != _LENGTHS and node.has_input(i)]
        lengths = [node.input_value(_LENGTHS)] if node.has_input(_LENGTHS) else []
        if refused := check_types((*values, *node.outputs)) or check_types(lengths, {i32}):
            return refused
        unknown = [name for name in _names(node) if name not in _ACTIVATIONS]
        if unknown:
            return Refusal(
                RefusalCause.ATTRIBUTE, f"activations {unknown} are unknown; known: {', '.join(_ACTIVATIONS)}"
            )
        directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
        if len(_names(node)) != directions * len(_DEFAULTS[node.op_type]):
            return Refusal(
                RefusalCause.ATTRIBUTE, f"{len(_names(node))} activations do not fit {directions} directions"
            )
        return None

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        sizes = _sizes(node, b)
        projection = _projected(node, b, sizes)
        recurrent = _transposed(node, b, sizes)
        states = [_initial(node, b, sizes, _INITIAL_H), b.temporary(sizes.state_bytes)]
        cell = _initial(node, b, sizes, _INITIAL_C) if node.op_type == "LSTM" else None
        given = [node.input_value(i) for i in (_B, _LENGTHS, _P) if node.num_inputs > i and node.has_input(i)]
        y = node.output(0)
        outputs = [b.output(y)] if y.target_inputs else []
        shared = [projection, recurrent, *([] if cell is None else [cell]), *map(b.input, given), *outputs]
        source = _source(node, sizes)
        is_gated = _is_reset_before(node)
        scratch = [b.temporary(2 * sizes.state_bytes)] if is_gated else []
        for step in range(sizes.steps):
            arguments: list[Given] = [states[step % 2], states[1 - step % 2], *shared, *scratch, step]
            size = (sizes.hidden, sizes.batch, sizes.directions)
            if is_gated:
                b.launch(source, "recurrent_gates", arguments, size)
            b.launch(source, "recurrent_step", arguments, size)
        finals = [states[sizes.steps % 2], cell]
        for final, output in zip(finals, node.outputs[1:], strict=False):
            if output.target_inputs:
                assert final is not None
                _copy_state(b, output, final, b.output(output), sizes, is_stored=True)


def _names(node: Node) -> list[str]:
    given: Sequence[str] = node.attributes.get("activations") or ()
    directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
    if not given or (node.op_type == "RNN" and directions == 1 and tuple(given) == ("Tanh", "Tanh")):
        return [*_DEFAULTS[node.op_type]] * directions  # of RNN, the schema's default is of two directions
    return [name.lower() for name in given]


def _sizes(node: Node, b: PlanBuilder) -> _Sizes:
    outer, inner, inputs = b.shape(node.input_value(_X))
    is_first = bool(node.attributes.get("layout", 0))
    steps, batch = (inner, outer) if is_first else (outer, inner)
    directions, _, hidden = b.shape(node.input_value(_R))
    return _Sizes(steps, batch, inputs, directions, _GATES[node.op_type], hidden, is_first)


def _is_reset_before(node: Node) -> bool:
    """Whether a GRU resets the state before it is multiplied: then all gates must be there first."""
    return node.op_type == "GRU" and not node.attributes.get("linear_before_reset", 0)


def _projected(node: Node, b: PlanBuilder, s: _Sizes) -> Buffer:
    """X W' of all steps and directions, rows in the order of X."""
    rows = s.steps * s.batch
    x = node.input_value(_X)
    result = b.temporary(stored_type(x).itemsize * rows * s.columns)
    product = Product(rows, s.columns, s.inputs, (), (), (), (s.inputs, 1), (1, s.inputs), x.element_type)
    if rows and s.columns:
        launch_product(b, product, Epilogue(), b.input(x), b.input(node.input_value(_W)), result)
    return result


def _transposed(node: Node, b: PlanBuilder, s: _Sizes) -> Buffer:
    """R as [directions, hidden, gates * hidden]: neighbouring units then read neighbouring weights."""
    value = node.input_value(_R)
    if (known := b.constant(value)) is not None:
        return table(b, np.ascontiguousarray(known.transpose(0, 2, 1)))
    shape = (s.directions, s.hidden, s.gates * s.hidden)
    target = b.temporary(stored_type(value).itemsize * math.prod(shape))
    read = (s.gates * s.hidden * s.hidden, 1, s.hidden)
    strided_copy(b, value, b.input(value), target, shape, read, 0, strides_of(shape), 0)
    return target


def _initial(node: Node, b: PlanBuilder, s: _Sizes, index: int) -> Buffer:
    """A copy of an initial state as [directions, batch, hidden]; zeros where none is given."""
    state = b.temporary(s.state_bytes)
    if node.num_inputs > index and node.has_input(index):
        value = node.input_value(index)
        _copy_state(b, value, b.input(value), state, s, is_stored=False)
    else:
        b.launch(kernel_source("zero"), "zero", [state], (s.state_bytes // 4,))
    return state


def _copy_state(b: PlanBuilder, value: Output, source: Buffer, target: Buffer, s: _Sizes, *, is_stored: bool) -> None:
    """Copy a state between the operator's layout and the kernels', or back where it `is_stored`."""
    shape = (s.directions, s.batch, s.hidden)
    own, given = strides_of(shape), s.state_strides
    read, written = (own, given) if is_stored else (given, own)
    outer = value.element_type
    stored = (f32, outer) if is_stored else (outer, f32)
    strided_copy(b, value, source, target, shape, read, 0, written, 0, stored=stored)


def _source(node: Node, s: _Sizes) -> str:
    """The kernels of a layer; both directions are in one launch, each with activations of its own."""
    names = [name for name, index in (("BIAS", _B), ("LENGTHS", _LENGTHS), ("PEEPHOLE", _P)) if _has(node, index)]
    flags = {name: int(name in names) for name in ("BIAS", "LENGTHS", "PEEPHOLE")}
    direction = node.attributes.get("direction", "forward")
    text = kernel_source(
        "recurrent",
        node.input_value(_X).element_type,
        STEPS=s.steps, BATCH=s.batch, HIDDEN=s.hidden, DIRECTIONS=s.directions, BATCH_FIRST=int(s.batch_first),
        REVERSED={"forward": "0", "reverse": "1"}.get(direction, "direction"),
        OUTPUT=int(bool(node.output(0).target_inputs)),
        INPUT_FORGET=int(node.attributes.get("input_forget", 0)), GATES=s.gates,
        RESET_BEFORE=int(_is_reset_before(node)), **flags,
    )  # fmt: skip
    return HELPERS + _functions(node) + text


def _has(node: Node, index: int) -> bool:
    return node.num_inputs > index and node.has_input(index)


def _functions(node: Node) -> str:
    """The activations as functions of a direction and x: activation0, activation1 ..."""
    names, count = _names(node), len(_DEFAULTS[node.op_type])
    alphas = iter(node.attributes.get("activation_alpha") or ())
    betas = iter(node.attributes.get("activation_beta") or ())
    codes = [_activation(name, alphas, betas) for name in names]
    clip = float(node.attributes.get("clip") or 0.0)
    lines = []
    for position in range(count):
        # The last function of an LSTM is not clipped, in onnxruntime and OpenVINO alike.
        limit = f"x = clip(x, {literal(-clip)}, {literal(clip)}); " if clip and position != 2 else ""
        chosen = codes[position::count]
        code = chosen[0] if len(chosen) == 1 else f"direction ? {chosen[1]} : {chosen[0]}"
        lines.append(f"inline float activation{position}(int direction, float x) {{ {limit}return {code}; }}\n")
    return "".join(lines)


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> str:
    code, alpha, beta = _ACTIVATIONS[name]
    a = 0.0 if alpha is None else next(alphas, alpha)
    b = 0.0 if beta is None else next(betas, beta)
    return code.format(x="x", a=literal(a), b=literal(b))
