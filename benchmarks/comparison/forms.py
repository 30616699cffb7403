"""The models of the comparison in narrower types: quantized to 8 bits or stored in f16 by onnxruntime's tools."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any, Final

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16

from engine.testing.networks import SeededNetwork

FORMS: Final = ("static", "dynamic", "f16")
"""QDQ with u8 activations and one scale per channel of i8 weights; activations quantized at run time; and f16."""


class _Inputs(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, network: SeededNetwork) -> None:
        self._inputs: dict[str, Any] | None = dict(network.inputs)

    def get_next(self) -> dict[str, Any] | None:
        found, self._inputs = self._inputs, None
        return found


def in_form(network: SeededNetwork, form: str) -> SeededNetwork:
    """`network` in one of `FORMS`, with the same inputs, on which static quantization is calibrated."""
    if form == "f16":
        return SeededNetwork(_in_f16(network.model), network.inputs)
    logging.getLogger().setLevel(logging.ERROR)  # the tool recommends its own preprocessing for each model
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "quantized.onnx"
        onnx.save(network.model, source)
        if form == "dynamic":
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        else:
            _quantize(network, source, target)
        return SeededNetwork(onnx.load(target), network.inputs)


def _quantize(network: SeededNetwork, source: Path, target: Path) -> None:
    quantize_static(
        source,
        target,
        _Inputs(network),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _in_f16(model: onnx.ModelProto) -> onnx.ModelProto:
    """All weights and values in f16, except the inputs and outputs of the model."""
    smallest, largest = 2.0**-24, 65504.0
    return convert_float_to_float16(
        model, keep_io_types=True, op_block_list=[], min_positive_val=smallest, max_finite_val=largest
    )
