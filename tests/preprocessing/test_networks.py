"""Prepared models on every device, in blobs and in files: the same results, and what they say of their inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from engine import Core, Model, PrePostProcessor
from engine.errors import ModelReadError
from engine.onnx import model_to_proto
from engine.ops import evaluate_model
from engine.preprocessing import add_steps
from tests.preprocessing.conftest import convolving

DEVICES = ("TEMPLATE", "CPU", "OPENCL", "HETERO:CPU,TEMPLATE")
STEPS = ["to_colour(RGB)", "resize()", "mean([123.7, 116.3, 103.5])", "scale([58.4, 57.1, 57.4])"]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def prepared(pads: int = 1) -> Model:
    return (
        PrePostProcessor(convolving(pads=pads))
        .input("x", "u8", "NHWC", colour="BGR")
        .to_colour("RGB")
        .resize()
        .mean([123.7, 116.3, 103.5])
        .scale([58.4, 57.1, 57.4])
        .output("y", model_layout="NC")
        .softmax()
        .top_k(3)
        .build()
    )


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_runs_the_steps(device: str, core: Core, rng: np.random.Generator, tmp_path: Path) -> None:
    if device == "OPENCL" and device not in core.available_devices:
        pytest.skip("no OpenCL device")
    model = prepared()
    network = core.compile_model(model, device)
    network.export_model(tmp_path / "network.blob")
    again = core.import_model(tmp_path / "network.blob")
    for shape in ((1, 20, 30, 3), (2, 5, 7, 3)):
        x = rng.integers(0, 256, shape, dtype=np.uint8)
        scores, indices = evaluate_model(model, [x])
        for each in (network, again):
            result = each({"x": x})
            np.testing.assert_allclose(result["y"], scores, rtol=1e-4)
            np.testing.assert_array_equal(result["y_indices"], indices)
    for each in (network, again):
        (port,) = each.inputs
        assert (str(port), port.preprocess) == ("x: u8[N,?,?,3] (NHWC)", {"steps": STEPS})
        assert [output.layout for output in each.outputs] == ["NC", "NC"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps", ["letter_box().scale(255)", "scale(255).letter_box((8, 8), 0.5)"])
def test_every_device_takes_video_of_any_size(device: str, steps: str, core: Core, rng: np.random.Generator) -> None:
    if device == "OPENCL" and device not in core.available_devices:
        pytest.skip("no OpenCL device")
    processor = PrePostProcessor(convolving())
    add_steps(processor, f"x=input(u8, colour=NV12).to_colour(RGB).{steps}")
    model = processor.build()
    network = core.compile_model(model, device)
    for rows, columns in ((12, 20), (6, 4)):
        x = rng.integers(0, 256, (1, rows * 3 // 2, columns, 1), dtype=np.uint8)
        np.testing.assert_allclose(network({"x": x})["y"], evaluate_model(model, [x])[0], rtol=1e-3, atol=1e-4)


def test_a_file_has_the_steps_and_the_layouts(tmp_path: Path, core: Core, rng: np.random.Generator) -> None:
    prepared().save(tmp_path / "prepared.onnx")
    again = core.read_model(tmp_path / "prepared.onnx")
    assert [p.annotations.get("layout") for p in again.parameters] == ["NHWC"]
    assert [r.annotations.get("layout") for r in again.results] == ["NC", "NC"]
    assert again.metadata == {}
    x = rng.integers(0, 256, (1, 9, 9, 3), dtype=np.uint8)
    expected = onnxruntime.InferenceSession(tmp_path / "prepared.onnx").run(["y", "y_indices"], {"x": x})
    for value, other in zip(evaluate_model(again, [x]), expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4)
    assert PrePostProcessor(again).input("x", layout="NCHW").build().inputs[0].shape[1] == 3


def test_a_cache_does_not_mix_layouts(tmp_path: Path, core: Core) -> None:
    for layout in ("NCHW", "NCWH"):
        model = convolving()
        model.parameter("x").rt_info["layout"] = layout
        for _ in range(2):  # compiled, then from the cache
            network = core.compile_model(model, "TEMPLATE", {"CACHE_DIR": tmp_path})
            assert network.inputs[0].layout == layout
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "notes",
    ["{", "[]", '{"inputs": 3}', '{"inputs": {"x": 3}}', '{"outputs": {"y": {"layout": 5}}}', "[" * 100_000],
)
def test_damaged_notes_are_refused(notes: str, tmp_path: Path, core: Core) -> None:
    prepared().save(tmp_path / "prepared.onnx")
    proto = onnx.load(tmp_path / "prepared.onnx")
    (entry,) = proto.metadata_props
    assert json.loads(entry.value)["inputs"]["x"]["layout"] == "NHWC"
    entry.value = notes
    with pytest.raises(ModelReadError, match=r"metadata entry `engine\.ports` of model `convolving` is wrong"):
        core.read_model(proto)
    entry.value = '{"inputs": {"gone": {"layout": "NC"}, "x": {"later": 1}}}'
    assert core.read_model(proto).parameter("x").annotations == {}


def test_steps_that_are_added_later_are_nearer_to_the_application() -> None:
    built = PrePostProcessor(prepared()).input("x", "f16").to_type("u8").output("y").to_type("f16").build()
    assert built.parameter("x").annotations["preprocess"] == {"steps": ["to_type(u8)", *STEPS]}
    assert built.result("y").annotations["preprocess"] == {"steps": ["softmax()", "top_k(3)", "to_type(f16)"]}


def test_a_text_is_what_python_calls_are(rng: np.random.Generator) -> None:
    processor = PrePostProcessor(convolving())
    add_steps(processor, f"x=input(u8, NHWC, colour=BGR).{'.'.join(STEPS)}")
    add_steps(processor, "y=output(model_layout=NC).softmax().top_k(3)")
    assert str(processor.build()) == str(prepared())


@pytest.mark.parametrize(
    "steps",
    [
        "crop([0, 1], [-1, -2]).pad([1, 0], [2, 3], mode=reflect).resize(mode=cubic, antialias=True).to_type(f16)",
        "resize([9, 9], mode=nearest, nearest=floor, coordinates=asymmetric).centre_crop([8, 8])",
        "letter_box([8, 8], value=0.0, position=start).clamp(0, 255).to_layout(NHWC)",
        "resize([12, 12], aspect=not_smaller, cubic_coefficient=-0.5, mode=cubic).centre_crop([8, 8]).mean(-1.5)",
    ],
)
def test_the_steps_that_a_port_lists_can_be_given_again(steps: str) -> None:
    first, second = PrePostProcessor(convolving()), PrePostProcessor(convolving())
    add_steps(first, f"x=input(u8, NHWC).{steps}")
    model = first.build()
    listed = model.parameter("x").annotations["preprocess"]["steps"]
    add_steps(second, f"x=input(u8, NHWC).{'.'.join(listed)}")
    again = second.build()
    assert str(again) == str(model)
    assert again.parameter("x").annotations["preprocess"]["steps"] == listed


def random_steps(rng: np.random.Generator) -> str:
    """A chain of steps that ends with 8 x 8 pixels of three channels; the input has at least 12 of both lengths."""
    colour = str(rng.choice(["RGB", "BGR", "BGRA", "GREY", "NV12", "I420"]))
    element = "u8" if colour in ("NV12", "I420") else str(rng.choice(["u8", "i8", "f16", "f32"]))
    layout = "NHWC" if colour in ("NV12", "I420") else str(rng.choice(["NHWC", "NCHW", "CHWN"]))
    any_size = [
        "mean([1, -2, 0.5])", "scale([2, 3, 4])", "scale(7)", "mean(0.25)", "clamp(0, 100)", "to_type(f32)",
        "pad([1, 0], [0, 2], mode=edge)", "pad([1, 1], [2, 0], mode=reflect)", "crop([1, 0], [-1, -2])",
        "resize([9, 13])", "resize([13, 9], mode=cubic)", "resize([10, 10], antialias=True, aspect=not_larger)",
        "to_colour(GREY).to_colour(BGR)", "to_colour(BGR)", "to_layout(NHWC)", "to_layout(NCHW)",
    ]  # fmt: skip
    last = [
        "resize()",
        "letter_box([8, 8], value=3)",
        "resize([9, 8]).centre_crop([8, 8])",
        "resize(9, mode=nearest).crop([0, 1], [8, 9])",
    ]
    chosen = [str(each) for each in rng.choice(any_size, int(rng.integers(0, 4)))]
    return ".".join([f"input({element}, {layout}, colour={colour})", "to_colour(RGB)", *chosen, str(rng.choice(last))])


@pytest.mark.parametrize("seed", range(24))
def test_any_steps_give_the_same_everywhere(seed: int, core: Core) -> None:
    rng = np.random.default_rng(seed)
    steps = random_steps(rng)
    processor = PrePostProcessor(convolving(pads=int(rng.integers(0, 2))))
    add_steps(processor, f"x={steps}")
    model = processor.build()
    (port,) = core.compile_model(model, "TEMPLATE").inputs
    lengths = {"N": 2, "H": 18, "W": 16, "C": port.shape[port.layout.index("C")].min}
    shape = [lengths[letter] for letter in port.layout]
    x = rng.integers(0, 128, shape).astype(port.dtype)
    (expected,) = evaluate_model(model, [x])
    options = onnxruntime.SessionOptions()  # its optimizer breaks a Resize of named axes after a Transpose
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model_to_proto(model).SerializeToString(), options)
    largest = np.abs(expected).max()
    for y in (session.run(["y"], {"x": x})[0], core.compile_model(model, "CPU")({"x": x})["y"]):
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4 * largest, err_msg=steps)
