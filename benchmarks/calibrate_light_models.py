"""Write the package data of `engine.testing.models`: a factor for each weight, and onnxruntime's results.

Every Conv and Gemm weight gets the factor that gives its layer's output unit variance: the network is run node by
node, each layer first with unit weights and no bias. Needs onnxruntime; takes a minute.
Run it only when the seeded weights change: `python benchmarks/calibrate_light_models.py`.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime as ort

from engine.testing import models

WEIGHTED = ("Conv", "Gemm")


def main() -> None:
    table: dict[str, dict[str, float]] = {}
    answers: dict[str, np.ndarray] = {}
    for name in models.LIGHT_MODELS:
        table[name], stepwise = calibrate(name)
        model = models.seeded(name, table[name])
        answers[name] = run(model, models.light_input(name))
        error = models.relative_error(stepwise, answers[name])
        tolerance = models.light_tolerance(name)
        print(f"{name:14} std {answers[name].std():.3f}  node by node {error:.1e}  tolerance {tolerance:.1e}")
        if error > tolerance:
            raise SystemExit(f"{name}: the results of the whole network and of its nodes one by one differ")
    models.DATA.mkdir(exist_ok=True)
    models.FACTORS_FILE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    np.savez(models.ANSWERS_FILE, **answers)


def calibrate(name: str) -> tuple[dict[str, float], np.ndarray]:
    """Find the factors of one network; also return its output, computed node by node."""
    graph = models.seeded(name, {}).graph
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    values.update(models.light_input(name))
    origin: dict[str, str] = {}
    found: dict[str, float] = {}
    for node in graph.node:
        if node.op_type == "Reshape":
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        if node.op_type in WEIGHTED:
            weight = node.input[1]
            data, unit, *bias = [values[tensor] for tensor in node.input]
            (plain,) = run_node(node, [data, unit, *map(np.zeros_like, bias)])
            factor = float(f"{1.0 / plain.std():.4g}")
            found[origin.get(weight, weight)] = factor
            values[weight] = unit * np.float32(factor)
        outputs = run_node(node, [values[tensor] for tensor in node.input])
        values.update(zip(node.output, outputs, strict=True))
    return found, values[graph.output[0].name]


def run_node(node: onnx.NodeProto, arrays: list[np.ndarray]) -> list[np.ndarray]:
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[:]
    alone.input.extend(f"x{position}" for position in range(len(arrays)))
    inputs = [
        onnx.helper.make_tensor_value_info(tensor, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for tensor, array in zip(alone.input, arrays, strict=True)
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(tensor) for tensor in alone.output]
    graph = onnx.helper.make_graph([alone], "node", inputs, outputs)
    opset = [onnx.helper.make_opsetid("", 9)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(alone.input, arrays, strict=True))))


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


if __name__ == "__main__":
    main()
