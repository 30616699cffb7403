"""The weights of recurrent layers in the formats of csrc/kernels/recurrent.hpp: packed constants, or computed ones.

Constants are packed once, in forms that do not depend on the lengths of the inputs; computed weights are moved into the
same forms by steps before the layer's steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.ir import Constant, Output
from engine.native import Attribute, Packing
from engine.ops.recurrent import RecurrentLengths, RecurrentSpec
from engine.startup import dataclass
from engine_cpu.layout import BLOCK, padded_channels, static_shape
from engine_cpu.lowering.strided import Copy, Strided, copy_step
from engine_cpu.segment import SegmentBuilder
from engine_cpu.weights import WeightStore

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A layer and its sizes; `wide` is the padded number of units."""

    spec: RecurrentSpec
    lengths: RecurrentLengths
    wide: int

    @classmethod
    def of(cls, spec: RecurrentSpec) -> RecurrentLayer:
        lengths = spec.at(spec.input_shapes())
        return cls(spec, lengths, padded_channels(lengths.hidden))

    @classmethod
    def of_any_lengths(cls, spec: RecurrentSpec) -> RecurrentLayer | None:
        """The layer for one row and step, from the shapes of its weights; None if those are not constant."""
        if not (isinstance(spec.w.node, Constant) and isinstance(spec.r.node, Constant)):
            return None
        w, r = static_shape(spec.w), static_shape(spec.r)
        lengths = spec.at([(1, 1, w[-1]), w, r])
        return cls(spec, lengths, padded_channels(lengths.hidden))

    @property
    def planes(self) -> int:
        """The number of gates in all directions together."""
        return self.lengths.directions * self.lengths.gates

    @property
    def missing(self) -> int:
        """The number of units by which the hidden size is padded."""
        return self.wide - self.lengths.hidden

    @property
    def columns(self) -> int:
        """The columns of the input product."""
        return self.planes * self.wide

    @property
    def cell(self) -> str:
        """The kernel's name for the cell type."""
        return "gru_linear" if self.spec.linear_before_reset else self.spec.op_type.lower()


@dataclass(frozen=True, slots=True)
class Form:
    """The form in which kernels read a constant."""

    source: Output
    recipe: str
    make: Callable[[], Array | Packing]


def constant_forms(layer: RecurrentLayer, store: WeightStore) -> list[Form]:
    """The forms of W, R, B and P, where they are constant."""
    spec = layer.spec
    forms = [_input_form(layer, store), _recurrent_form(layer, store)]
    if spec.b is not None and isinstance(spec.b.node, Constant):
        forms.append(_input_bias_form(layer, spec.b, store))
        if layer.cell == "gru_linear":
            forms.append(_recurrent_bias_form(layer, spec.b, store))
    if spec.p is not None and isinstance(spec.p.node, Constant):
        forms.append(_peephole_form(layer, spec.p, store))
    return forms


def input_weights(layer: RecurrentLayer, b: SegmentBuilder) -> tuple[int, dict[str, Attribute]]:
    """W, for the product that projects the inputs, and the attributes that describe it."""
    w, inputs = layer.spec.w, layer.lengths.inputs
    if not b.is_constant(w):
        wide = _padded(layer, b, b.input(w), (layer.planes, layer.lengths.hidden, inputs), (0, layer.missing, 0))
        rows = _moved(layer, b, [(wide, _chunks(layer, inputs).permute((0, 2, 1, 3, 4)))])
        return rows, {"packed": 0, "transposed": 1, "b_row": inputs}

    return _stored(_input_form(layer, b.store), b), {}


def input_bias(layer: RecurrentLayer, bias: Output, b: SegmentBuilder) -> int:
    """The sum of both biases of every gate, except the one inside the reset of a GRU."""
    if not b.is_constant(bias):
        return _computed_bias(layer, b.input(bias), b)
    return _stored(_input_bias_form(layer, bias, b.store), b)


def recurrent_weights(layer: RecurrentLayer, b: SegmentBuilder) -> int:
    """R, by chunks of 16 units."""
    r, lengths, is_apart = layer.spec.r, layer.lengths, layer.cell == "gru"
    if not b.is_constant(r):
        ends = (0, layer.missing, layer.missing)
        wide = _padded(layer, b, b.input(r), (layer.planes, lengths.hidden, lengths.hidden), ends)
        gates = [(0, 2), (2, 1)] if is_apart else [(0, lengths.gates)]
        whole = _chunks(layer, layer.wide)
        parts = [whole.slice(1, first, count).permute((0, 2, 4, 1, 3)) for first, count in gates]
        return _moved(layer, b, [(wide, part) for part in parts])
    return _stored(_recurrent_form(layer, b.store), b)


def recurrent_bias(layer: RecurrentLayer, b: SegmentBuilder) -> int:
    """The bias inside the reset of a GRU; zero if there is none."""
    bias, directions, hidden = layer.spec.b, layer.lengths.directions, layer.lengths.hidden
    if bias is None:
        return b.constant(np.zeros((directions, layer.wide), np.float32))
    if not b.is_constant(bias):
        last = Strided.row_major((directions, 2 * layer.lengths.gates, hidden)).slice(1, 5, 1)
        return _padded(layer, b, _moved(layer, b, [(b.input(bias), last)]), (directions, hidden), (0, layer.missing))
    return _stored(_recurrent_bias_form(layer, bias, b.store), b)


def peephole(layer: RecurrentLayer, p: Output, b: SegmentBuilder) -> int:
    """P, the peephole weights of an LSTM, with the hidden size padded; packed at once if it is constant."""
    directions, hidden = layer.lengths.directions, layer.lengths.hidden
    if not b.is_constant(p):
        return _padded(layer, b, b.input(p), (directions * 3, hidden), (0, layer.missing))
    return _stored(_peephole_form(layer, p, b.store), b)


# -- constants -------------------------------------------------------------------------------------------------------


def _input_form(layer: RecurrentLayer, store: WeightStore) -> Form:
    w, inputs = layer.spec.w, layer.lengths.inputs

    def make() -> Packing:
        rows = np.ascontiguousarray(_by_chunks(_data(w, store), layer)).reshape(layer.columns, inputs)
        attributes: dict[str, Attribute] = {"n": layer.columns, "k": inputs, "transposed": 1}
        if store.is_repeatable:
            attributes["repeatable"] = 1
        return Packing("pack_gemm_f32", [rows], attributes, isa=store.isa)

    return Form(w, f"recurrent input weights of {layer.spec.op_type}", make)


def _input_bias_form(layer: RecurrentLayer, bias: Output, store: WeightStore) -> Form:
    lengths, is_linear = layer.lengths, layer.cell == "gru_linear"

    def make() -> Array:
        parts = _data(bias, store).reshape(lengths.directions, 2, lengths.gates, lengths.hidden)
        total = parts.sum(axis=1)
        if is_linear:
            total[:, 2] = parts[:, 0, 2]
        return np.ascontiguousarray(_by_chunks(total.reshape(lengths.directions, -1, 1), layer)).reshape(-1)

    return Form(bias, f"recurrent input bias of {layer.spec.op_type}, linear {is_linear:d}", make)


def _recurrent_form(layer: RecurrentLayer, store: WeightStore) -> Form:
    r, lengths, is_apart = layer.spec.r, layer.lengths, layer.cell == "gru"

    def make() -> Array:
        deep = np.zeros((lengths.directions, lengths.gates * lengths.hidden, layer.wide), np.float32)
        deep[:, :, : lengths.hidden] = _data(r, store)
        chunks = _by_chunks(deep, layer).transpose(0, 1, 4, 2, 3)  # [directions, chunks, k, gates, 16]
        parts = [chunks[:, :, :, :2], chunks[:, :, :, 2:]] if is_apart else [chunks]
        return np.concatenate([part.reshape(-1) for part in parts])

    return Form(r, f"recurrent weights of {layer.spec.op_type}, apart {is_apart:d}", make)


def _recurrent_bias_form(layer: RecurrentLayer, bias: Output, store: WeightStore) -> Form:
    directions, hidden = layer.lengths.directions, layer.lengths.hidden

    def make() -> Array:
        wide = np.zeros((directions, layer.wide), np.float32)
        wide[:, :hidden] = _data(bias, store)[:, -hidden:]
        return wide

    return Form(bias, "recurrent bias of GRU", make)


def _peephole_form(layer: RecurrentLayer, p: Output, store: WeightStore) -> Form:
    directions, hidden = layer.lengths.directions, layer.lengths.hidden

    def make() -> Array:
        wide = np.zeros((directions, 3, layer.wide), np.float32)
        wide[:, :, :hidden] = _data(p, store).reshape(directions, 3, hidden)
        return wide

    return Form(p, "recurrent peephole", make)


def _stored(form: Form, b: SegmentBuilder) -> int:
    return b.weights([form.source], form.recipe, form.make)


def _data(value: Output, store: WeightStore) -> Array:
    assert isinstance(value.node, Constant)
    return store.data(value.node)


def _by_chunks(array: Array, layer: RecurrentLayer) -> Array:
    """[directions, gates * H, K] as [directions, chunks, gates, 16, K], zero beyond H."""
    lengths, depth = layer.lengths, array.shape[-1]
    wide = np.zeros((lengths.directions, lengths.gates, layer.wide, depth), np.float32)
    wide[:, :, : lengths.hidden] = array.reshape(lengths.directions, lengths.gates, lengths.hidden, depth)
    return wide.reshape(lengths.directions, lengths.gates, -1, BLOCK, depth).transpose(0, 2, 1, 3, 4)


# -- steps for what is computed --------------------------------------------------------------------------------------


def _computed_bias(layer: RecurrentLayer, bias: int, b: SegmentBuilder) -> int:
    lengths = layer.lengths
    gates, hidden = lengths.gates, lengths.hidden
    total = b.temporary(4 * layer.planes * hidden)
    shape = [lengths.directions, 2, gates * hidden]
    b.step(layer.spec.node, "reduce", [bias], [total], op="sum", type="f32", shape=shape, axes=[1])
    if layer.cell == "gru_linear":
        mixed = b.temporary(4 * layer.planes * hidden)
        places = Strided.row_major((lengths.directions, gates, hidden))
        given = Strided.row_major((lengths.directions, 2 * gates, hidden))
        outside = Copy(total, places.slice(1, 0, 2), mixed, places.slice(1, 0, 2))
        inside = Copy(bias, given.slice(1, 2, 1), mixed, places.slice(1, 2, 1))
        copy_step(b, layer.spec.node, 4, [outside, inside])
        total = mixed
    wide = _padded(layer, b, total, (layer.planes, hidden), (0, layer.missing))
    return _moved(layer, b, [(wide, _chunks(layer, 1).permute((0, 2, 1, 3, 4)))])


def _chunks(layer: RecurrentLayer, depth: int) -> Strided:
    """[directions, gates, padded H, depth] as [directions, gates, chunks, 16, depth]."""
    lengths = layer.lengths
    return Strided.row_major((lengths.directions, lengths.gates, layer.wide // BLOCK, BLOCK, depth))


def _padded(layer: RecurrentLayer, b: SegmentBuilder, source: int, shape: Sequence[int], ends: Sequence[int]) -> int:
    """The buffer of an array with zeros at the ends of its axes."""
    if not any(ends):
        return source
    wide = b.temporary(4 * math.prod(length + end for length, end in zip(shape, ends, strict=True)))
    pads = [0] * len(shape) + list(ends)
    b.step(
        layer.spec.node, "pad", [source], [wide],
        element_bytes=4, shape=list(shape), pads=pads, mode="constant", value=0,
    )  # fmt: skip
    return wide


def _moved(layer: RecurrentLayer, b: SegmentBuilder, parts: Sequence[tuple[int, Strided]]) -> int:
    """A buffer of these elements, one part after another."""
    target = b.temporary(4 * sum(math.prod(elements.shape) for _, elements in parts))
    copies, offset = [], 0
    for source, elements in parts:
        dense = Strided.row_major(elements.shape)
        copies.append(Copy(source, elements, target, Strided(dense.shape, dense.strides, offset)))
        offset += math.prod(elements.shape)
    copy_step(b, layer.spec.node, 4, copies)
    return target
