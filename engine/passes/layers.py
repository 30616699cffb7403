"""Comparing a quantized model with the original one, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from engine import ops
from engine.errors import InputError
from engine.ir import Model, Node, Output, TensorType
from engine.ops.evaluator import evaluate_model
from engine.ops.tensors import Array
from engine.passes.runtime_info import is_operation
from engine.startup import dataclass

Run: TypeAlias = Callable[[Model, Mapping[str, Any]], Mapping[str, Any]]
"""Computes the outputs of a model, by the names of its results, from inputs by name."""
_CLIPPING: Final = ("Relu", "Clip")
_PARAMETERS: Final = {"QuantizeLinear": (1, 2), "QLinearConv": (6, 7), "QLinearMatMul": (6, 7)}


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far a value of a quantized model is from the original's.

    Attributes:
        name: the value's name in the original model.
        op_type: the operator that computes it there.
        signal_to_noise: 10 log10(sum of squares / sum of squared differences), in dB: about 6 for each bit that is
            right. Infinite for equal values, NaN if a difference is not finite.
        largest_error: the largest absolute difference.
        largest_value: the largest magnitude in the original model.
    """

    name: str
    op_type: str
    signal_to_noise: float
    largest_error: float
    largest_value: float


def compare_layers(
    original: Model, quantized: Model, inputs: Mapping[str, Any], run: Run | None = None
) -> list[LayerError]:
    """The error of every layer of a quantized model whose value is found in both models, worst first.

    Values are matched by name, as quantizing tools keep the names of the original: a value of the quantized model is
    taken after its quantization and dequantization, as the next layer reads it. Both models are run once, with the
    values as outputs, so all of them are in memory at the same time.

    Args:
        original: a model of floating-point numbers; neither model is changed.
        quantized: the model that a tool made from it, in QDQ or QOperator form, or in f16 or bf16.
        inputs: values of the inputs, by name; floating-point numbers are converted to the types of each model's inputs.
        run: computes a model; by default the reference evaluator. With a device: `lambda model, inputs:
            core.compile_model(model, "CPU")(inputs)`.

    Raises `InputError` if the models have no value in common.
    """
    pairs = matched_values(original, quantized)
    if not pairs:
        raise InputError(
            f"models `{original.name}` and `{quantized.name}` have no value in common; one must be made from the other "
            "by a tool that keeps the names of values"
        )
    expected = _computed(original, [a for a, _ in pairs], inputs, run or _evaluate)
    found = _computed(quantized, [b for _, b in pairs], inputs, run or _evaluate)
    layers = [_error(a, np.asarray(x), np.asarray(y)) for (a, _), x, y in zip(pairs, expected, found, strict=True)]
    return sorted(layers, key=_signal_to_noise)


def matched_values(original: Model, quantized: Model) -> list[tuple[Output, Output]]:
    """The floating-point results of the operations of a model, each with its value in the quantized model.

    That is a value of floating-point numbers, or codes, which the operator that computes them can dequantize.
    """
    values = {output.name: output for node in quantized.ordered_nodes() for output in node.outputs}
    found: dict[str, tuple[Output, Output]] = {}
    for node in original.ordered_nodes():
        for output in node.outputs if is_operation(node) else ():
            if not _is_real(output):
                continue
            value = _value_of(output.name, values)
            if value is None and node.op_type in _CLIPPING:
                value = _taken_over(node, found, values)
            if value is not None and _may_agree(output, value):
                found[output.name] = output, value
    return list(found.values())


def _value_of(name: str, values: Mapping[str, Output]) -> Output | None:
    value = values.get(name)
    if value is not None and _is_real(value):
        return _read_back(value)
    codes = values.get(f"{name}_quantized")
    if codes is None or codes.node.op_type not in _PARAMETERS:
        return values.get(f"{name}_DequantizeLinear_Output")
    return next((_output(t.node) for t in codes.target_inputs if t.node.op_type == "DequantizeLinear"), codes)


def _read_back(value: Output) -> Output:
    """The value that the next layer reads: after quantization and dequantization, if it is quantized."""
    for quantize in (t.node for t in value.target_inputs if t.node.op_type == "QuantizeLinear"):
        for target in quantize.output(0).target_inputs:
            if target.node.op_type == "DequantizeLinear":
                return _output(target.node)
    return value


def _taken_over(node: Node, found: dict[str, tuple[Output, Output]], values: Mapping[str, Output]) -> Output | None:
    """The value of an activation that the tool removed: the quantization of its input clips as well."""
    source = node.input_value(0)
    if source.name not in found or source.num_consumers != 1:
        return None
    _, value = found[source.name]
    plain = values.get(source.name)
    if plain == value:
        return None
    del found[source.name]
    if plain is not None:
        found[source.name] = source, plain
    return value


def _output(node: Node) -> Output:
    return node.output(0)


def _is_real(value: Output) -> bool:
    return isinstance(value.type, TensorType) and value.element_type.is_real


def _may_agree(a: Output, b: Output) -> bool:
    return isinstance(b.type, TensorType) and a.shape.compatible(b.shape)


def _computed(model: Model, values: Sequence[Output], inputs: Mapping[str, Any], run: Run) -> list[Any]:
    """`values` of `model`, computed by a copy that has them as outputs."""
    mapping: dict[Node, Node] = {}
    copy = model.clone(mapping)
    for result in list(copy.results):
        copy.remove_result(result)
    names = [f"layer {number}" for number in range(len(values))]
    for name, value in zip(names, values, strict=True):
        copy.add_result(_as_real(mapping[value.node].output(value.index)), name)
    results = run(copy, {p.friendly_name: _in_type_of(p.output(0), inputs[p.friendly_name]) for p in copy.parameters})
    return [results[name] for name in names]


def _in_type_of(parameter: Output, given: Any) -> Any:
    """Floating-point numbers in the type of a model's input."""
    value = np.asarray(given)
    is_other = _is_real(parameter) and value.dtype != parameter.element_type.numpy
    return value.astype(parameter.element_type.numpy) if is_other and np.issubdtype(value.dtype, np.floating) else given


def _as_real(value: Output) -> Output:
    if value.element_type.is_real:
        return value
    scale, zero_point = (value.node.input_value(index) for index in _PARAMETERS[value.node.op_type])
    axis = value.node.attributes.get("axis", 1)
    return ops.DequantizeLinear(value, scale, zero_point, axis=axis).output(0)


def _evaluate(model: Model, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    names = [result.friendly_name for result in model.results]
    return dict(zip(names, evaluate_model(model, inputs), strict=True))


def _error(value: Output, expected: Array, found: Array) -> LayerError:
    x, y = expected.astype(np.float64), found.astype(np.float64)
    if x.shape != y.shape:
        raise InputError(f"value `{value.name}` is {list(x.shape)} in one model and {list(y.shape)} in the other")
    with np.errstate(all="ignore"):
        difference = np.where(x == y, 0.0, x - y)
        signal, noise = float(np.sum(x * x)), float(np.sum(difference * difference))
        largest = float(np.max(np.abs(difference), initial=0.0))
    ratio = math.inf if noise == 0 else math.nan
    if noise and math.isfinite(noise) and math.isfinite(signal):
        ratio = 10 * math.log10(signal / noise) if signal else -math.inf
    return LayerError(value.name, value.node.op_type, ratio, largest, float(np.max(np.abs(x), initial=0.0)))


def _signal_to_noise(layer: LayerError) -> float:
    return -math.inf if math.isnan(layer.signal_to_noise) else layer.signal_to_noise
