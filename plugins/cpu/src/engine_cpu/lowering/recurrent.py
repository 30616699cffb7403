"""RNN, GRU and LSTM: one matrix product for the inputs of all time steps, then the recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.ir import Output
from engine.ir.element_type import i32
from engine.lowering import Refusal, RefusalCause, check_constant, check_types, first_refusal
from engine.native import Attribute, Packing
from engine.ops.recurrent import RecurrentLengths, RecurrentSpec
from engine_cpu.layout import BLOCK, padded_channels
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

Array = np.ndarray[Any, np.dtype[Any]]

_W, _R, _B, _LENGTHS, _P = 1, 2, 3, 4, 7
_ACTIVATIONS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "RNN": (("tanh",), ("relu",), ("sigmoid",)),
    "GRU": (("sigmoid", "tanh"),),
    "LSTM": (("sigmoid", "tanh", "tanh"),),
}
"""The activations that kernels support, in each direction."""
_RNN_EPILOGUES: Final[dict[str, dict[str, Attribute]]] = {
    "tanh": {"activation": "tanh"},
    "relu": {"activation": "clip", "alpha": 0.0},
    "sigmoid": {"activation": "sigmoid"},
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer and its sizes; `wide` is the padded number of units."""

    spec: RecurrentSpec
    lengths: RecurrentLengths
    wide: int

    @classmethod
    def of(cls, spec: RecurrentSpec) -> _Layer:
        lengths = spec.at(spec.input_shapes())
        return cls(spec, lengths, padded_channels(lengths.hidden))

    @property
    def columns(self) -> int:
        """The columns of the input product."""
        return self.lengths.directions * self.lengths.gates * self.wide

    @property
    def cell(self) -> str:
        """The kernel's name for the cell type."""
        return "gru_linear" if self.spec.linear_before_reset else self.spec.op_type.lower()


@lowers("RNN", "GRU", "LSTM", spec=RecurrentSpec)
class RecurrentLowering(OpLowering[RecurrentSpec]):
    """Recurrent layers with the default activations and constant weights."""

    def check(self, spec: RecurrentSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        values = [value for index, value in enumerate(node.input_values) if index != _LENGTHS]
        return first_refusal(
            check_types([*values, *node.outputs], F32),
            check_types([spec.sequence_lens], {i32}),
            check_constant(node, _W, _R, _B, _P),
            self._check_hidden(spec),
            self._check_activations(spec),
        )

    def _check_hidden(self, spec: RecurrentSpec) -> Refusal | None:
        hidden = spec.r.shape[2]
        if hidden.is_static and hidden.get_length() == 0:
            return Refusal(RefusalCause.SHAPE, "hidden_size is 0")
        return None

    def _check_activations(self, spec: RecurrentSpec) -> Refusal | None:
        names = [tuple(each.name for each in direction) for direction in spec.activations]
        allowed = _ACTIVATIONS[spec.op_type]
        if len(set(names)) == 1 and names[0] in allowed:
            return None
        expected = " or ".join(str(list(each)) for each in allowed)
        found = [name for direction in names for name in direction]
        return Refusal(RefusalCause.ATTRIBUTE, f"activations are {found}; expected {expected} in each direction")

    def lower(self, spec: RecurrentSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        layer = _Layer.of(spec)
        lengths = layer.lengths
        projection = b.temporary(4 * lengths.steps * lengths.batch * layer.columns)
        self._project(layer, b, projection)
        inputs = [projection, _recurrent_weights(layer, b)]
        attributes: dict[str, Attribute] = {}
        if layer.cell == "gru_linear":
            inputs.append(_recurrent_bias(layer, b))
        states = ((spec.sequence_lens, "lengths"), (spec.initial_h, "initial_h"), (spec.initial_c, "initial_c"))
        for value, name in states:
            if value is not None:
                inputs.append(b.input(value))
                attributes[name] = 1
        if spec.p is not None:
            inputs.append(_peephole(layer, spec.p, b))
            attributes["peephole"] = 1
        outputs = []
        for index, name in enumerate(("y", "y_h", "y_c")):
            if spec.is_read(index):
                outputs.append(b.output(spec.output(index)))
                attributes[name] = 1
        b.step(spec.node, "recurrent_f32", inputs, outputs, **_layer_attributes(layer, b), **attributes)

    def _project(self, layer: _Layer, b: SegmentBuilder, projection: int) -> None:
        spec, lengths = layer.spec, layer.lengths
        inputs = [b.input(spec.x), _input_weights(layer, b)]
        if spec.b is not None:
            inputs.append(_input_bias(layer, spec.b, b))
        b.step(
            spec.node, "gemm_f32", inputs, [projection],
            m=lengths.steps * lengths.batch, n=layer.columns, k=lengths.inputs, bias=int(spec.b is not None),
        )  # fmt: skip


def _layer_attributes(layer: _Layer, b: SegmentBuilder) -> dict[str, Attribute]:
    spec, lengths = layer.spec, layer.lengths
    attributes: dict[str, Attribute] = {
        "cell": layer.cell, "steps": lengths.steps, "batch": lengths.batch, "hidden": lengths.hidden,
        "directions": lengths.directions, "reversed": int(spec.direction == "reverse"),
        "batch_first": int(spec.batch_first), "workers": b.threads,
    }  # fmt: skip
    if spec.clip is not None:
        attributes["clip"] = spec.clip
    if spec.op_type == "LSTM":
        attributes["input_forget"] = int(spec.input_forget)
    if spec.op_type == "RNN":
        attributes.update(_RNN_EPILOGUES[spec.activations[0][0].name])
    return attributes


# -- packed constants, as described in csrc/kernels/recurrent.hpp --------------------------------------------------


def _by_chunks(array: Array, layer: _Layer) -> Array:
    """[directions, gates * H, K] as [directions, chunks, gates, 16, K], zero beyond H."""
    lengths, depth = layer.lengths, array.shape[-1]
    wide = np.zeros((lengths.directions, lengths.gates, layer.wide, depth), np.float32)
    wide[:, :, : lengths.hidden] = array.reshape(lengths.directions, lengths.gates, lengths.hidden, depth)
    return wide.reshape(lengths.directions, lengths.gates, -1, BLOCK, depth).transpose(0, 2, 1, 3, 4)


def _input_weights(layer: _Layer, b: SegmentBuilder) -> int:
    w, inputs = layer.spec.w, layer.lengths.inputs

    def make() -> Packing:
        rows = np.ascontiguousarray(_by_chunks(b.value(w), layer)).reshape(layer.columns, inputs)
        attributes: dict[str, Attribute] = {"n": layer.columns, "k": inputs, "transposed": 1}
        return Packing("pack_gemm_f32", [rows], attributes, isa=b.isa)

    return b.weights([w], f"recurrent input weights of {layer.spec.op_type}", make)


def _input_bias(layer: _Layer, bias: Output, b: SegmentBuilder) -> int:
    """The sum of both biases of every gate, except the one inside the reset of a GRU."""
    lengths, is_linear = layer.lengths, layer.cell == "gru_linear"

    def make() -> Array:
        parts = b.value(bias).reshape(lengths.directions, 2, lengths.gates, lengths.hidden)
        total = parts.sum(axis=1)
        if is_linear:
            total[:, 2] = parts[:, 0, 2]
        return np.ascontiguousarray(_by_chunks(total.reshape(lengths.directions, -1, 1), layer)).reshape(-1)

    return b.weights([bias], f"recurrent input bias of {layer.spec.op_type}, linear {is_linear:d}", make)


def _recurrent_weights(layer: _Layer, b: SegmentBuilder) -> int:
    r, lengths, is_apart = layer.spec.r, layer.lengths, layer.cell == "gru"

    def make() -> Array:
        deep = np.zeros((lengths.directions, lengths.gates * lengths.hidden, layer.wide), np.float32)
        deep[:, :, : lengths.hidden] = b.value(r)
        chunks = _by_chunks(deep, layer).transpose(0, 1, 4, 2, 3)  # [directions, chunks, k, gates, 16]
        parts = [chunks[:, :, :, :2], chunks[:, :, :, 2:]] if is_apart else [chunks]
        return np.concatenate([part.reshape(-1) for part in parts])

    return b.weights([r], f"recurrent weights of {layer.spec.op_type}, apart {is_apart:d}", make)


def _recurrent_bias(layer: _Layer, b: SegmentBuilder) -> int:
    bias, directions, hidden = layer.spec.b, layer.lengths.directions, layer.lengths.hidden
    if bias is None:
        return b.constant(np.zeros((directions, layer.wide), np.float32))

    def make() -> Array:
        wide = np.zeros((directions, layer.wide), np.float32)
        wide[:, :hidden] = b.value(bias)[:, -hidden:]
        return wide

    return b.weights([bias], "recurrent bias of GRU", make)


def _peephole(layer: _Layer, p: Output, b: SegmentBuilder) -> int:
    directions, hidden = layer.lengths.directions, layer.lengths.hidden

    def make() -> Array:
        wide = np.zeros((directions, 3, layer.wide), np.float32)
        wide[:, :, :hidden] = b.value(p).reshape(directions, 3, hidden)
        return wide

    return b.weights([p], "recurrent peephole", make)
