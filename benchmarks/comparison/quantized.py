"""The models of the comparison, quantized to 8 bits by onnxruntime's tool."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any, Final

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from engine.testing.networks import SeededNetwork

FORMS: Final = ("static", "dynamic")
"""QDQ with u8 activations and one scale per channel of i8 weights; and activations quantized at run time."""


class _Inputs(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, network: SeededNetwork) -> None:
        self._inputs: dict[str, Any] | None = dict(network.inputs)

    def get_next(self) -> dict[str, Any] | None:
        found, self._inputs = self._inputs, None
        return found


def quantized(network: SeededNetwork, form: str) -> SeededNetwork:
    """`network` in one of `FORMS`, with the same inputs, on which static quantization is calibrated."""
    logging.getLogger().setLevel(logging.ERROR)  # the tool recommends its own preprocessing for each model
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "quantized.onnx"
        onnx.save(network.model, source)
        if form == "dynamic":
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        else:
            quantize_static(
                source,
                target,
                _Inputs(network),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        return SeededNetwork(onnx.load(target), network.inputs)
