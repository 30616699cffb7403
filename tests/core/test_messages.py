"""Errors name the likely mistake, so that the user knows the next step."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from engine import Core, Model, errors, ops
from engine.errors import EngineError
from engine.ir import Parameter, Result, f32
from engine.plugin_api import ExecutableNetwork


class Files:
    """A model and its network, as objects, files, bytes and streams."""

    def __init__(self, folder: Path) -> None:
        self.core = Core()
        x = Parameter(f32, [2, 3], "x")
        self.model = Model([Result(ops.Relu(x), "y")], [x])
        self.network: ExecutableNetwork = self.core.compile_model(self.model, "TEMPLATE")
        self.onnx, self.blob = folder / "model.onnx", folder / "model.blob"
        self.model.save(self.onnx)
        self.network.export_model(self.blob)
        self.missing = folder / "missing" / "deep"

    def written(self) -> io.BytesIO:
        stream = io.BytesIO()
        self.network.export_model(stream)
        return stream


class Tensor:
    """As PyTorch's tensors are when they require a gradient."""

    requires_grad = True

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


MISTAKES: dict[str, tuple[Callable[[Files], object], list[str]]] = {
    "a blob is compiled": (lambda f: f.core.compile_model(f.blob, "TEMPLATE"), ["is a blob", "Core.import_model"]),
    "the bytes of a blob": (lambda f: f.core.read_model(f.blob.read_bytes()), ["is a blob", "Core.import_model"]),
    "a model is imported": (lambda f: f.core.import_model(f.onnx), ["not a blob", "Core.compile_model"]),
    "the bytes of a model": (lambda f: f.core.import_model(f.onnx.read_bytes()), ["not a blob", "Core.compile_model"]),
    "a stream after an export": (lambda f: f.core.import_model(f.written()), ["at its end", "seek(0)"]),
    "a stream after writing": (lambda f: f.core.read_model(_at_end(b"onnx")), ["at its end, byte 4", "seek(0)"]),
    "an empty stream": (lambda f: f.core.read_model(io.BytesIO()), ["empty"]),
    "GPU": (lambda f: f.core.compile_model(f.model, "GPU"), ["'GPU'", "OPENCL runs models on GPUs"]),
    "a GPU of several": (lambda f: f.core.compile_model(f.model, "GPU.1"), ["OPENCL runs models on GPUs"]),
    "lower case": (lambda f: f.core.compile_model(f.model, "template"), ["did you mean 'TEMPLATE'"]),
    "export into no folder": (
        lambda f: f.network.export_model(f.missing / "a.blob"),
        ["deep does not exist"],
    ),
    "save into no folder": (lambda f: f.model.save(f.missing / "a.onnx"), ["deep does not exist"]),
    "read from no folder": (lambda f: f.core.read_model(f.missing / "a.onnx"), ["deep does not exist"]),
    "import from no folder": (lambda f: f.core.import_model(f.missing / "a.blob"), ["deep does not exist"]),
    "no file": (lambda f: f.core.read_model(f.onnx.with_name("a.onnx")), ["a.onnx", "No such file"]),
    "a tensor with a gradient": (lambda f: f.network({"x": Tensor()}), ["requires a gradient", "tensor.detach()"]),
    "a list of texts": (lambda f: f.network({"x": [["1", "2", "3"]]}), ["`x`", "str"]),
    "numpy's default": (lambda f: f.network({"x": np.zeros((2, 3))}), ["float64, expected float32"]),
}


def _at_end(data: bytes) -> io.BytesIO:
    stream = io.BytesIO()
    stream.write(data)
    return stream


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_says_what_to_do(name: str, files: Files) -> None:
    act, words = MISTAKES[name]
    with pytest.raises(EngineError) as caught:
        act(files)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message


def test_a_similar_name_is_not_any_name(files: Files) -> None:
    with pytest.raises(EngineError) as caught:
        files.core.compile_model(files.model, "NPU")
    assert "did you mean" not in str(caught.value)


def test_a_blob_for_another_device_has_one_reason(files: Files) -> None:
    network = files.core.compile_model(files.model, "CPU")
    stream = io.BytesIO()
    network.export_model(stream)
    assert len(files.core.check_blob(stream.getvalue(), "TEMPLATE").reasons) == 1
    with pytest.raises(EngineError) as caught:
        files.core.import_model(stream.getvalue(), "TEMPLATE")
    assert str(caught.value).count("CPU") == 1


def test_no_message_is_longer_than_2000_characters() -> None:
    """Names in a file may be as long as the file, and messages with them go to logs and terminals."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, EngineError):
            error = kind("begin" + "x" * 8_000_000 + "the way out")
            assert len(str(error)) <= errors.MAX_MESSAGE == 2000
            assert str(error).strip("'\"").startswith("begin")
            assert "the way out" in str(error)
            assert "8000016 characters in all" in str(error)
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
            assert str(kind("short")).strip("'") == "short"
            assert kind().args == ()
            assert kind("a", 3).args == ("a", 3)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE"])
def test_names_as_long_as_a_file_are_shortened(device: str) -> None:
    name = "n" * 1_000_000
    for op_type, domain, node_name in ((name, "acme", "node"), ("Add", "", name), (name, "", name)):
        x, y = (helper.make_tensor_value_info(each, 1, [2]) for each in "xy")
        node = helper.make_node(op_type, ["x"], ["y"], node_name, domain=domain)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
        model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=10)
        with pytest.raises(EngineError) as error:
            Core().compile_model(model, device)
        assert len(str(error.value)) <= errors.MAX_MESSAGE
