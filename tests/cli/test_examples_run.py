"""The examples of `--help` do what they say: in a folder with the files that they name, they succeed.

If one fails, the first thing that a new user copies does not work.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from engine import Core
from engine.cli.discovery import OWN, own_command
from tests.cli.conftest import in_process

Engine = Callable[..., Any]

LEFT_OUT = {
    "decoder.": "tests/test_generation.py has language models",
    "models/phi": "tests/test_genai_folder.py has such folders",
    "models/t5": "tests/test_encoder_decoder_folder.py has such folders",
    "models/whisper": "tests/test_encoder_decoder_folder.py has such folders",
    "-o /": "a folder that only root can write",
    "benchmark model.onnx": "takes 5 seconds; test_benchmark_command.py tests these options with less",
    "-t 30": "takes 30 seconds",
    "conformance ACME": "takes minutes; tests/testing runs the kit",
    "new-plugin ACME --native": "needs a compiler to be used; tests/test_scaffold.py builds it",
    "doctor   ": "tries all devices, which takes a minute with OPENCL; tests/health tries each",
    "OPENCL": "this machine may have no device for it",
}
"""Examples that do not run here, by a part of them, and why."""
FIRST = {
    "run model.blob --trusted-key": "compile model.onnx -d TEMPLATE --sign release.key",
    "run model.blob --decrypt": "compile model.onnx -d TEMPLATE --encrypt secret.key",
    "inspect model.blob --trusted-key": "compile model.onnx -d TEMPLATE --sign release.key",
    "-o two.blob": "compile model.onnx -d CPU",
}
"""The commands that run before, by a part of the example."""


def examples() -> list[str]:
    lines = [line for name in OWN for line in own_command(name).EXAMPLES.splitlines()]
    return [line for line in lines if not any(part in line for part in LEFT_OUT)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    write_classifier(folder / "model.onnx", 0.0)
    write_classifier(folder / "model.int8.onnx", 0.001)
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "image.npy", x)
    np.savez(folder / "inputs.npz", x=x)
    np.save(folder / "photo.npy", np.full((300, 400, 3), 90, np.uint8))
    Image.new("RGB", (224, 224), "red").save(folder / "cat.png")
    data = folder / "test_data_set_0"
    data.mkdir()
    network = Core().compile_model(folder / "model.onnx", "TEMPLATE")
    for name, value in (("input_0", x), ("output_0", network({"x": x})["y"])):
        (data / f"{name}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())
    for arguments in (
        ["compile", "model.onnx", "-d", "TEMPLATE"],
        ["keygen", "release", "-o", "release.key"],
        ["keygen", "secret", "-o", "secret.key", "--algorithm", "aes-256-gcm"],
    ):
        assert in_process(*arguments, cwd=folder).code == 0
    return folder


def write_classifier(path: Path, shift: float) -> None:
    """A network for images, with a product that the examples of `engine passes` name."""
    rng = np.random.default_rng(1)
    constants = {
        "filters": rng.standard_normal((128, 3, 7, 7)).astype(np.float32) / 10 + np.float32(shift),
        "half": np.float32(0.5),
        "weights": rng.standard_normal((128, 128)).astype(np.float32),
        "last_weights": rng.standard_normal((128, 64)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["features"], "conv", strides=[8, 8]),
        helper.make_node("Relu", ["features"], ["positive"], "relu"),
        helper.make_node("Mul", ["positive", "half"], ["scaled"], "mul_3"),
        helper.make_node("GlobalAveragePool", ["scaled"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "weights"], ["hidden"], "product"),
        helper.make_node("MatMul", ["hidden", "last_weights"], ["y"], "lm_head"),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64]),
    ]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "classifier", ports[:1], ports[1:], stored)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)


@pytest.mark.parametrize("line", examples())
def test_an_example_succeeds(prepared: Path, tmp_path: Path, line: str) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder)
    for part, before in FIRST.items():
        if part in line:
            assert in_process(*shlex.split(before), cwd=folder).code == 0
    _, *arguments = shlex.split(line, comments=True)
    done = in_process(*arguments, cwd=folder)
    # Where the CPU computes in bf16, the two settings differ, which the exit code says.
    codes = (0, 1) if "INFERENCE_PRECISION_HINT=bf16" in line else (0,)
    assert done.code in codes
    assert not done.err
    assert done.out


def test_each_command_has_an_example_that_runs_or_a_reason() -> None:
    run = {shlex.split(line, comments=True)[1] for line in examples()}
    assert set(OWN) - run == {"generate", "conformance"}
