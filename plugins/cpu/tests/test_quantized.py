"""Networks quantized by onnxruntime's tool: CPU computes every node natively, and the quantized network's answer.

If a network fails here, quantized models run on the reference evaluator, dozens of times slower, or wrongly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from engine import Core
from engine.plugin_api import SupportLevel
from engine.testing.models import relative_error
from engine.testing.networks import SeededNetwork, seeded_network

TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "u16s8": (QuantType.QUInt16, QuantType.QInt8),
}


class Sample(CalibrationDataReader):  # type: ignore[misc]
    """One set of inputs."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs: dict[str, Any] | None = inputs

    def get_next(self) -> dict[str, Any] | None:
        found, self.inputs = self.inputs, None
        return found


@cache
def small(name: str) -> SeededNetwork:
    return seeded_network(name, small=True)


def quantized(name: str, types: str, folder: Path, form: QuantFormat = QuantFormat.QDQ) -> onnx.ModelProto:
    activations, weights = TYPES[types]
    source, target = folder / "source.onnx", folder / "quantized.onnx"
    onnx.save(small(name).model, source)
    quantize_static(
        source,
        target,
        Sample(dict(small(name).inputs)),
        quant_format=form,
        per_channel=name != "bert_base",
        activation_type=activations,
        weight_type=weights,
        extra_options={"UseQDQContribOps": False},
    )
    return onnx.load(target)


def onnxruntime_answer(model: onnx.ModelProto, inputs: Any) -> np.ndarray:
    """The answer without optimizations, which would replace f32 by integers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(inputs))[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("resnet50", "u8s8"), ("mobilenet_v2", "u8s8"), ("efficientnet_b0", "s8s8"), ("squeezenet", "s8s8"),
        ("squeezenet", "u16s8"), ("bert_base", "u8s8"), ("bert_base", "u16s8"),
    ],
)  # fmt: skip
def test_the_answer_is_that_of_the_quantized_network(name: str, types: str, tmp_path: Path) -> None:
    """A sum near the middle of two codes may be rounded to either: a tenth of what quantization changes is allowed."""
    check(name, quantized(name, types, tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["squeezenet", "efficientnet_b0", "bert_base"])
def test_the_answer_is_that_of_the_network_in_qoperator_format(name: str, tmp_path: Path) -> None:
    check(name, quantized(name, "u8s8", tmp_path, QuantFormat.QOperator))


def check(name: str, model: onnx.ModelProto) -> None:
    """Assert that CPU computes a quantized network natively, and its answer."""
    inputs = small(name).inputs
    answer = Core().query_model(model, "CPU")
    assert not {n: s for n, s in answer.nodes.items() if s.level is not SupportLevel.NATIVE}
    (got, *_) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(inputs).values()
    exact, unquantized = onnxruntime_answer(model, inputs), onnxruntime_answer(small(name).model, inputs)
    assert relative_error(exact, unquantized) > 0
    assert relative_error(got, exact) <= 0.1 * relative_error(exact, unquantized)
