"""RNN, GRU and LSTM: one matrix product of all time steps' inputs, then the recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.ir import Node, Output
from engine.ir.element_type import i32
from engine.lowering import Refusal, RefusalCause, check_constant, check_types, first_refusal
from engine.native import Attribute, pack
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import BLOCK, padded_channels
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

Array = np.ndarray[Any, np.dtype[Any]]

# Inputs: X, W, R, B, sequence_lens, initial_h, and of LSTM initial_c and P.
_X, _W, _R, _B, _LENGTHS, _INITIAL_H, _INITIAL_C, _P = range(8)
_GATES: Final = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "RNN": (("tanh",), ("relu",), ("sigmoid",)),
    "GRU": (("sigmoid", "tanh"),),
    "LSTM": (("sigmoid", "tanh", "tanh"),),
}
"""What there are kernels for, in each direction; the first are the operator's defaults."""
_RNN_EPILOGUES: Final[dict[str, dict[str, Attribute]]] = {
    "tanh": {"activation": 3},
    "relu": {"activation": 0, "alpha": 0.0},
    "sigmoid": {"activation": 2},
}
_RNN, _LSTM, _GRU, _GRU_LINEAR = range(4)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a layer; `wide` is its units, padded."""

    steps: int
    batch: int
    inputs: int
    directions: int
    gates: int
    hidden: int
    wide: int

    @property
    def columns(self) -> int:
        """The columns of the product of the inputs."""
        return self.directions * self.gates * self.wide


@lowers("RNN", "GRU", "LSTM")
class RecurrentLowering(OpLowering[OperatorSpec]):
    """Layers of recurrent units with the activations that are usual, and constant weights."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        values = [node.input_value(i) for i in range(node.num_inputs) if i != _LENGTHS and node.has_input(i)]
        lengths = [node.input_value(_LENGTHS)] if node.has_input(_LENGTHS) else []
        return first_refusal(
            check_types([*values, *node.outputs], F32),
            check_types(lengths, {i32}),
            check_constant(node, _W, _R, _B, _P),
            self._check_hidden(node),
            self._check_activations(node),
        )

    def _check_hidden(self, node: Node) -> Refusal | None:
        hidden = node.input_value(_R).shape[2]
        if hidden.is_static and hidden.get_length() == 0:
            return Refusal(RefusalCause.SHAPE, "the layer has no units")
        return None

    def _check_activations(self, node: Node) -> Refusal | None:
        allowed = _ACTIVATIONS[node.op_type]
        per_direction = len(allowed[0])
        names = _activations(node)
        directions = {tuple(names[i : i + per_direction]) for i in range(0, len(names), per_direction)}
        if len(directions) == 1 and directions <= set(allowed):
            return None
        expected = " or ".join(str(list(each)) for each in allowed)
        return Refusal(RefusalCause.ATTRIBUTE, f"activations are {names}; expected {expected} in each direction")

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        node = spec.node
        sizes = _sizes(node, b)
        projection = b.temporary(4 * sizes.steps * sizes.batch * sizes.columns)
        self._project(node, b, sizes, projection)
        cell = _cell(node)
        inputs = [projection, _recurrent_weights(node, b, sizes)]
        attributes: dict[str, Attribute] = {}
        if cell == _GRU_LINEAR:
            inputs.append(_recurrent_bias(node, b, sizes))
        for index, name in ((_LENGTHS, "lengths"), (_INITIAL_H, "initial_h"), (_INITIAL_C, "initial_c")):
            if node.has_input(index):
                inputs.append(b.input(node.input_value(index)))
                attributes[name] = 1
        if node.has_input(_P):
            inputs.append(_peephole(node, b, sizes))
            attributes["peephole"] = 1
        outputs = []
        for output, name in zip(node.outputs, ("y", "y_h", "y_c"), strict=False):
            if output.num_consumers:
                outputs.append(b.output(output))
                attributes[name] = 1
        b.step(node, "recurrent_f32", inputs, outputs, **_layer_attributes(node, b, sizes), **attributes)

    def _project(self, node: Node, b: SegmentBuilder, sizes: _Sizes, projection: int) -> None:
        inputs = [b.input(node.input_value(_X)), _input_weights(node, b, sizes)]
        rows = sizes.steps * sizes.batch
        if node.has_input(_B):
            inputs.append(_input_bias(node, b, sizes))
        b.step(
            node, "gemm_f32", inputs, [projection],
            m=rows, n=sizes.columns, k=sizes.inputs, bias=int(node.has_input(_B)),
        )  # fmt: skip


def _activations(node: Node) -> list[str]:
    names: Sequence[str] = node.attributes.get("activations") or ()
    directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
    if not names or (node.op_type == "RNN" and directions == 1 and tuple(names) == ("Tanh", "Tanh")):
        return [*_ACTIVATIONS[node.op_type][0]] * directions  # of RNN, the schema's default is of two directions
    return [name.lower() for name in names]


def _cell(node: Node) -> int:
    if node.op_type == "GRU":
        return _GRU_LINEAR if node.attributes.get("linear_before_reset", 0) else _GRU
    return _LSTM if node.op_type == "LSTM" else _RNN


def _sizes(node: Node, b: SegmentBuilder) -> _Sizes:
    outer, inner, inputs = b.shape(node.input_value(_X))
    steps, batch = (inner, outer) if node.attributes.get("layout", 0) else (outer, inner)
    directions, _, hidden = b.shape(node.input_value(_R))
    return _Sizes(steps, batch, inputs, directions, _GATES[node.op_type], hidden, padded_channels(hidden))


def _layer_attributes(node: Node, b: SegmentBuilder, sizes: _Sizes) -> dict[str, Attribute]:
    given = node.attributes
    attributes: dict[str, Attribute] = {
        "cell": _cell(node), "steps": sizes.steps, "batch": sizes.batch, "hidden": sizes.hidden,
        "directions": sizes.directions, "reversed": int(given.get("direction", "forward") == "reverse"),
        "batch_first": int(bool(given.get("layout", 0))), "workers": b.threads,
    }  # fmt: skip
    if given.get("clip"):
        attributes["clip"] = float(given["clip"])
    if node.op_type == "LSTM":
        attributes["input_forget"] = int(bool(given.get("input_forget", 0)))
    if node.op_type == "RNN":
        attributes.update(_RNN_EPILOGUES[_activations(node)[0]])
    return attributes


# -- packed constants, as csrc/kernels/recurrent.hpp has them --------------------------------------------------


def _by_chunks(array: Array, sizes: _Sizes) -> Array:
    """[directions, gates * H, K] as [directions, chunks, gates, 16, K], zero beyond H."""
    depth = array.shape[-1]
    wide = np.zeros((sizes.directions, sizes.gates, sizes.wide, depth), np.float32)
    wide[:, :, : sizes.hidden] = array.reshape(sizes.directions, sizes.gates, sizes.hidden, depth)
    return wide.reshape(sizes.directions, sizes.gates, -1, BLOCK, depth).transpose(0, 2, 1, 3, 4)


def _input_weights(node: Node, b: SegmentBuilder, sizes: _Sizes) -> int:
    w = node.input_value(_W)

    def make() -> Array:
        rows = np.ascontiguousarray(_by_chunks(b.value(w), sizes)).reshape(sizes.columns, sizes.inputs)
        attributes: dict[str, Attribute] = {"n": sizes.columns, "k": sizes.inputs, "transposed": 1}
        return pack("pack_gemm_f32", [rows], attributes, isa=b.isa)

    return b.weights([w], f"recurrent input weights of {node.op_type}", make)


def _input_bias(node: Node, b: SegmentBuilder, sizes: _Sizes) -> int:
    """Both biases of every gate, but for the one that stays inside the reset of a GRU."""
    bias = node.input_value(_B)
    is_linear = _cell(node) == _GRU_LINEAR

    def make() -> Array:
        parts = b.value(bias).reshape(sizes.directions, 2, sizes.gates, sizes.hidden)
        total = parts.sum(axis=1)
        if is_linear:
            total[:, 2] = parts[:, 0, 2]
        return np.ascontiguousarray(_by_chunks(total.reshape(sizes.directions, -1, 1), sizes)).reshape(-1)

    return b.weights([bias], f"recurrent input bias of {node.op_type}, linear {is_linear:d}", make)


def _recurrent_weights(node: Node, b: SegmentBuilder, sizes: _Sizes) -> int:
    r = node.input_value(_R)
    is_apart = _cell(node) == _GRU

    def make() -> Array:
        deep = np.zeros((sizes.directions, sizes.gates * sizes.hidden, sizes.wide), np.float32)
        deep[:, :, : sizes.hidden] = b.value(r)
        chunks = _by_chunks(deep, sizes).transpose(0, 1, 4, 2, 3)  # [directions, chunks, k, gates, 16]
        parts = [chunks[:, :, :, :2], chunks[:, :, :, 2:]] if is_apart else [chunks]
        return np.concatenate([part.reshape(-1) for part in parts])

    return b.weights([r], f"recurrent weights of {node.op_type}, apart {is_apart:d}", make)


def _recurrent_bias(node: Node, b: SegmentBuilder, sizes: _Sizes) -> int:
    def widened(bias: Array) -> Array:
        wide = np.zeros((sizes.directions, sizes.wide), np.float32)
        wide[:, : sizes.hidden] = bias
        return wide

    if not node.has_input(_B):
        return b.constant(np.zeros((sizes.directions, sizes.wide), np.float32))
    bias = node.input_value(_B)
    return b.weights([bias], "recurrent bias of GRU", lambda: widened(b.value(bias)[:, -sizes.hidden :]))


def _peephole(node: Node, b: SegmentBuilder, sizes: _Sizes) -> int:
    p: Output = node.input_value(_P)

    def make() -> Array:
        wide = np.zeros((sizes.directions, 3, sizes.wide), np.float32)
        wide[:, :, : sizes.hidden] = b.value(p).reshape(sizes.directions, 3, sizes.hidden)
        return wide

    return b.weights([p], "recurrent peephole", make)
