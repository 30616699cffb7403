"""Models that onnxruntime's quantizers write: dynamic, static, 16 bits, 4 bits, and conversion to f16."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as q

from constructs.construct import Written, construct

EXPORTER = "onnxruntime's quantizers"
_TOLERANCE = 1e-2


def network(opset: int = 21) -> onnx.ModelProto:
    """Convolution, activation, pooling, products, a residual."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Add", ["m", "f"], ["s"]),
        helper.make_node("Gemm", ["s", "v", "u"], ["y"], transB=1),
    ]
    weights = [weight("k", 32, 3, 3, 3), weight("b", 32), weight("w", 32, 32), weight("v", 8, 32), weight("u", 8)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])
    graph = helper.make_graph(nodes, "network", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _lstm() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)
               for name, shape in (("W", (1, 64, 16)), ("R", (1, 64, 16)), ("B", (1, 128)))]  # fmt: skip
    node = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=16)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 2, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 1, 2, 16])
    graph = helper.make_graph([node], "lstm", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


X = np.random.default_rng(2).standard_normal((2, 3, 8, 8)).astype(np.float32)


def quantizer(name: str, run: Callable[[str, str], Any], model: Callable[[], onnx.ModelProto] = network,
              inputs: Any = (X,)) -> None:  # fmt: skip
    """Declare a function that quantizes one file to another."""

    def make() -> Written:
        with tempfile.TemporaryDirectory() as folder:
            source, target = str(Path(folder) / "a.onnx"), str(Path(folder) / "b.onnx")
            onnx.save(model(), source)
            made = run(source, target)
            content = made.SerializeToString() if isinstance(made, onnx.ModelProto) else Path(target).read_bytes()
        return Written(content, list(inputs), (), _TOLERANCE)

    construct(EXPORTER, "onnxruntime", name=name)(make)


class _Data(q.CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self._left = iter([{"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> Any:
        return next(self._left, None)


def _static(**options: Any) -> Callable[[str, str], None]:
    return lambda source, target: q.quantize_static(source, target, _Data(), **options)


def _blocks(**options: Any) -> Callable[[str, str], onnx.ModelProto]:
    def run(source: str, target: str) -> onnx.ModelProto:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantized = MatMulNBitsQuantizer(onnx.load(source), **options)
        quantized.process()
        made: onnx.ModelProto = quantized.model.model
        return made

    return run


def _half(source: str, target: str) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(onnx.load(source), keep_io_types=True)
    return made


_T, _F = q.QuantType, q.QuantFormat
quantizer("dynamic, QInt8", lambda a, b: q.quantize_dynamic(a, b))
quantizer("dynamic, QUInt8, by channel", lambda a, b: q.quantize_dynamic(a, b, per_channel=True, weight_type=_T.QUInt8))
quantizer("dynamic, LSTM", lambda a, b: q.quantize_dynamic(a, b, op_types_to_quantize=["LSTM"]), _lstm,
          (X.reshape(-1)[:160].reshape(5, 2, 16),))  # fmt: skip
quantizer("static, QDQ", _static(quant_format=_F.QDQ))
quantizer(
    "static, QDQ, by channel, symmetric",
    _static(
        quant_format=_F.QDQ, per_channel=True, extra_options={"ActivationSymmetric": True, "WeightSymmetric": True}
    ),
)
quantizer("static, QOperator", _static(quant_format=_F.QOperator))
quantizer("static, QDQ, activations of 16 bits", _static(quant_format=_F.QDQ, activation_type=_T.QUInt16))
quantizer("static, QDQ, weights of 4 bits", _static(quant_format=_F.QDQ, weight_type=_T.QInt4))
quantizer("4 bits, MatMulNBits, symmetric", _blocks(block_size=32, is_symmetric=True))
quantizer("4 bits, MatMulNBits, with zero points", _blocks(block_size=16, is_symmetric=False))
quantizer("4 bits, MatMulNBits, computed in int8", _blocks(block_size=32, is_symmetric=True, accuracy_level=4))
quantizer("4 bits, QDQ with blocks", _blocks(block_size=32, is_symmetric=True, quant_format=_F.QDQ))
quantizer("8 bits, MatMulNBits", _blocks(block_size=32, is_symmetric=True, bits=8))
quantizer("conversion to f16, f32 outside", _half)
quantizer("pre-processing", lambda a, b: q.shape_inference.quant_pre_process(a, b))
