"""A quantized model is compared with the original one layer by layer, for every form that tools write.

If this fails, a user looks for lost accuracy in the wrong layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16

from engine import Core, Model, ops
from engine.cli.main import main
from engine.errors import InputError
from engine.ir import Constant, Parameter, f32
from engine.passes import compare_layers

INPUTS = {"x": np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)}


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    weights = {
        "w1": rng.standard_normal((6, 3, 3, 3)),
        "w2": rng.standard_normal((6, 6, 1, 1)),
        "w3": rng.standard_normal((6, 5)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["first"], name="conv1"),
        helper.make_node("Relu", ["first"], ["positive"], name="relu"),
        helper.make_node("Conv", ["positive", "w2"], ["second"], name="conv2"),
        helper.make_node("Add", ["second", "positive"], ["sum"], name="add"),
        helper.make_node("GlobalAveragePool", ["sum"], ["mean"], name="pool"),
        helper.make_node("Flatten", ["mean"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "w3"], ["y"], name="product"),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, 5]))
    ]
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "network", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Sample(CalibrationDataReader):  # type: ignore[misc]
    """One set of inputs."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] | None = dict(INPUTS)

    def get_next(self) -> dict[str, Any] | None:
        found, self.inputs = self.inputs, None
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The original model, and what onnxruntime makes of it in both forms."""
    path: Path = tmp_path_factory.mktemp("layers")
    onnx.save(network(), path / "original.onnx")
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        quantize_static(
            path / "original.onnx",
            path / f"{form.name}.onnx",
            Sample(),
            quant_format=form,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    np.save(path / "x.npy", INPUTS["x"])
    return path


def computed_by_onnxruntime(path: Path, names: list[str]) -> dict[str, Any]:
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, INPUTS), strict=True))


def on_cpu(model: Model, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return Core().compile_model(model, "CPU")(dict(inputs))


@pytest.mark.filterwarnings("ignore")
def test_the_ratios_are_those_of_the_values(folder: Path) -> None:
    core = Core()
    models = [core.read_model(folder / f"{name}.onnx") for name in ("original", "QDQ")]
    layers = {layer.name: layer for layer in compare_layers(*models, INPUTS, on_cpu)}
    expected = computed_by_onnxruntime(folder / "original.onnx", ["positive", "sum", "flat"])
    names = {"positive": "positive_DequantizeLinear_Output", "sum": "sum_DequantizeLinear_Output",
             "flat": "flat_DequantizeLinear_Output"}  # fmt: skip
    found = computed_by_onnxruntime(folder / "QDQ.onnx", list(names.values()))
    for name, exact in expected.items():
        noise = exact - found[names[name]]
        ratio = 10 * math.log10((exact.astype(np.float64) ** 2).sum() / (noise.astype(np.float64) ** 2).sum())
        assert layers[name].signal_to_noise == pytest.approx(ratio, abs=0.5), name
        assert layers[name].largest_error == pytest.approx(np.abs(noise).max(), rel=0.3, abs=1e-3), name
    assert layers.keys() == {"positive", "second", "sum", "mean", "flat", "y"}
    ratios = [layer.signal_to_noise for layer in layers.values()]
    assert ratios == sorted(ratios)


@pytest.mark.filterwarnings("ignore")
def test_the_form_of_the_quantized_model_does_not_matter(folder: Path) -> None:
    """The tool removes the Relu, since quantization clips: the quantized convolution has its value."""
    core = Core()
    original, qdq, qoperator = (core.read_model(folder / f"{n}.onnx") for n in ("original", "QDQ", "QOperator"))
    one = {layer.name: layer for layer in compare_layers(original, qdq, INPUTS)}
    other = {layer.name: layer for layer in compare_layers(original, qoperator, INPUTS)}
    assert other.keys() == {"positive", "second", "sum", "mean", "y"}
    for name in ("positive", "second", "sum"):
        assert other[name].signal_to_noise == pytest.approx(one[name].signal_to_noise, abs=1)


def test_a_bad_scale_is_found(folder: Path) -> None:
    """The layer whose scale is wrong is far below those before it."""
    model = onnx.load(folder / "QDQ.onnx")
    (scale,) = (item for item in model.graph.initializer if item.name == "second_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) / 50, "second_scale"))
    core = Core()
    layers = compare_layers(core.read_model(folder / "original.onnx"), core.read_model(model), INPUTS)
    ratios = {layer.name: layer.signal_to_noise for layer in layers}
    assert layers[0].name == "second"
    assert ratios["second"] < 5 < 25 < ratios["positive"]


def test_equal_and_infinite_values() -> None:
    x = Parameter(f32, [3], "x")
    root = ops.Sqrt(x, friendly_name="root")
    model = Model([ops.Div(Constant(np.float32(1)), root, friendly_name="inverse")], [x])
    exact = {layer.name: layer for layer in compare_layers(model, model, {"x": np.float32([1, 4, 0])})}
    assert {layer.signal_to_noise for layer in exact.values()} == {math.inf}
    shifted = model.clone()
    shifted.node("root").input(0).replace_source_output(ops.Add(shifted.parameters[0], Constant(np.float32(1))))
    layers = compare_layers(model, shifted, {"x": np.float32([1, 4, 0])})
    assert layers[0].name == "inverse"
    assert math.isnan(layers[0].signal_to_noise)


def test_a_model_whose_inputs_have_another_type() -> None:
    original = network()
    narrow = convert_float_to_float16(onnx.ModelProto.FromString(original.SerializeToString()), keep_io_types=False)
    core = Core()
    layers = compare_layers(core.read_model(original), core.read_model(narrow), INPUTS)
    assert {layer.name for layer in layers} >= {"first", "sum", "y"}
    # f16 has 11 bits; the sums of 27 products lose few of them.
    assert all(50 < layer.signal_to_noise < 90 for layer in layers)


def test_models_without_common_values_are_refused() -> None:
    x = Parameter(f32, [3], "x")
    models = [Model([ops.Sqrt(x, friendly_name=name)], [x], name=name) for name in ("one", "two")]
    with pytest.raises(InputError, match="models `one` and `two` have no value in common"):
        compare_layers(*models, {"x": np.float32([1, 2, 3])})


@pytest.mark.filterwarnings("ignore")
def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", str(folder / "original.onnx"), str(folder / "QDQ.onnx"), "-d", "CPU"]
    arguments += ["-i", f"x={folder / 'x.npy'}"]
    assert main([*arguments, "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["VALUE", "OPERATOR", "DB", "LARGEST", "ERROR", "LARGEST", "VALUE"]
    assert lines[-1] == "6 layers compared, the worst 2 above"
    assert main([*arguments, "--min-db", "90", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["close"]
    assert report["layers"][0]["signal_to_noise_db"] < 60
