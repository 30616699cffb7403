"""RNN, GRU and LSTM: one matrix product for the inputs of all time steps, then the recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.ir import Output
from engine.ir.element_type import i32
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.native import Attribute
from engine.ops.recurrent import RecurrentSpec
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.recurrent_weights import (
    RecurrentLayer,
    constant_forms,
    input_bias,
    input_weights,
    peephole,
    recurrent_bias,
    recurrent_weights,
)
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder
from engine_cpu.weights import WeightStore

_LENGTHS: Final = 4
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


@lowers("RNN", "GRU", "LSTM", spec=RecurrentSpec)
class RecurrentLowering(OpLowering[RecurrentSpec]):
    """Recurrent layers with the default activations."""

    def check(self, spec: RecurrentSpec) -> Refusal | None:
        node = spec.node
        values = [value for index, value in enumerate(node.input_values) if index != _LENGTHS]
        return first_refusal(
            check_types([*values, *node.outputs], F32),
            check_types([spec.sequence_lens], {i32}),
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

    def pack(self, spec: RecurrentSpec, weights: WeightStore, precision: str) -> Sequence[Output]:
        layer = RecurrentLayer.of_any_lengths(spec)
        forms = [] if layer is None else constant_forms(layer, weights)
        for form in forms:
            weights.get(weights.key([form.source], form.recipe), [form.source], form.make)
        return [form.source for form in forms]

    def lower(self, spec: RecurrentSpec, b: SegmentBuilder) -> None:
        layer = RecurrentLayer.of(spec)
        lengths = layer.lengths
        projection = b.temporary(4 * lengths.steps * lengths.batch * layer.columns)
        self._project(layer, b, projection)
        inputs = [projection, recurrent_weights(layer, b)]
        attributes: dict[str, Attribute] = {}
        if layer.cell == "gru_linear":
            inputs.append(recurrent_bias(layer, b))
        states = ((spec.sequence_lens, "lengths"), (spec.initial_h, "initial_h"), (spec.initial_c, "initial_c"))
        for value, name in states:
            if value is not None:
                inputs.append(b.input(value))
                attributes[name] = 1
        if spec.p is not None:
            inputs.append(peephole(layer, spec.p, b))
            attributes["peephole"] = 1
        outputs = []
        for index, name in enumerate(("y", "y_h", "y_c")):
            if spec.is_read(index):
                outputs.append(b.output(spec.output(index)))
                attributes[name] = 1
        b.step(spec.node, "recurrent_f32", inputs, outputs, **_layer_attributes(layer, b), **attributes)

    def _project(self, layer: RecurrentLayer, b: SegmentBuilder, projection: int) -> None:
        spec, lengths = layer.spec, layer.lengths
        matrix, form = input_weights(layer, b)
        inputs = [b.input(spec.x), matrix]
        if spec.b is not None:
            inputs.append(input_bias(layer, spec.b, b))
        b.step(
            spec.node, "gemm_f32", inputs, [projection],
            m=lengths.steps * lengths.batch, n=layer.columns, k=lengths.inputs, bias=int(spec.b is not None), **form,
        )  # fmt: skip


def _layer_attributes(layer: RecurrentLayer, b: SegmentBuilder) -> dict[str, Attribute]:
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
