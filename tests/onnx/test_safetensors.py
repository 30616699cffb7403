"""Weights in safetensors files are found by name, used in place and never misread; or users load other weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import Core
from engine.errors import ExternalDataError, ModelReadError
from engine.ir import Constant
from engine.onnx import read_model

WEIGHT = np.arange(600, dtype=np.float32).reshape(20, 30)
SHAPE = np.array([600], np.int64)
NAMES = {
    np.dtype(np.float32): "F32", np.dtype(np.int64): "I64", np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2", np.dtype(np.bool_): "BOOL",
}  # fmt: skip


def stored(tensors: Mapping[str, np.ndarray], **changes: Any) -> bytes:
    """A safetensors file as its specification defines it; `changes` replace fields of the first entry."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, value in tensors.items():
        raw = value.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": offsets}
        data += raw
    entries[next(iter(tensors))] |= changes
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


def model_of(weight: np.ndarray, *, external: dict[str, str] | None = None) -> onnx.ModelProto:
    """y = Reshape(w, shape); without `external`, initializers have no data, as `strip_data` of onnx-safetensors."""
    element = helper.np_dtype_to_tensor_dtype(weight.dtype)
    w = TensorProto(name="w", data_type=element, dims=weight.shape)
    shape = TensorProto(name="shape", data_type=TensorProto.INT64, dims=[1])
    if external is not None:
        shape.raw_data = SHAPE.tobytes()
        w.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            w.external_data.add(key=key, value=value)
    nodes = [helper.make_node("Reshape", ["w", "shape"], ["y"])]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", element, None)], [w, shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def saved(folder: Path, model: onnx.ModelProto, weights: bytes) -> Path:
    (folder / "w.safetensors").write_bytes(weights)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def weight_in(path: Path, **given: Any) -> np.ndarray:
    node = read_model(path, **given).node("w")
    assert isinstance(node, Constant)
    return node.data


@pytest.mark.parametrize("dtype", list(NAMES), ids=list(NAMES.values()))
def test_external_data_without_an_offset_is_found_by_name(tmp_path: Path, dtype: Any) -> None:
    weight = WEIGHT.astype(dtype)
    path = saved(tmp_path, model_of(weight, external={"location": "w.safetensors"}), stored({"a": SHAPE, "w": weight}))
    data = weight_in(path)
    assert data.dtype == dtype
    assert data.tobytes() == weight.tobytes()
    assert not data.flags.owndata


def test_external_data_with_an_offset_is_read_there(tmp_path: Path) -> None:
    content = stored({"w": WEIGHT})
    entries = {"location": "w.safetensors", "offset": str(len(content) - WEIGHT.nbytes), "length": str(WEIGHT.nbytes)}
    assert np.array_equal(weight_in(saved(tmp_path, model_of(WEIGHT, external=entries), content)), WEIGHT)


def test_weights_replace_initializers_by_name(tmp_path: Path) -> None:
    """A shape, too: inference must see it."""
    path = saved(tmp_path, model_of(WEIGHT), stored({"w": WEIGHT, "unused": SHAPE, "shape": SHAPE}))
    model = Core().read_model(path, tmp_path / "w.safetensors")
    assert model.results[0].type.shape.get_shape() == (600,)
    network = Core().compile_model(model, "CPU")
    assert np.array_equal(network.create_infer_request().infer({})["y"], WEIGHT.reshape(-1))
    assert not weight_in(path, weights=tmp_path / "w.safetensors").flags.owndata


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\1\0", "at least 8"),
        (b"\xff" * 8 + b"{}", "states a header of"),
        (stored({"w": WEIGHT})[:-1], "tensor `w` takes 2400 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
        ((2).to_bytes(8, "little") + b"{x", "not JSON"),
        ((21).to_bytes(8, "little") + b'{"w": {}, "w": {} }  ', "occurs twice"),
        ((9).to_bytes(8, "little") + b'{"w": {}}', "no valid dtype, shape and data_offsets"),
        (stored({"w": WEIGHT}, data_offsets=[-4, 2396]), "no valid dtype, shape and data_offsets"),
        (stored({"w": WEIGHT}, data_offsets=[0, 1 << 70]), "tensor `w` takes 2400 bytes"),
        (stored({"w": WEIGHT}, dtype="F4"), "tensor `w` is F4"),
        (stored({"w": WEIGHT.T.copy()}), "expected f32[20,30]|expected f32\\[20, 30\\]"),
        (stored({"w": WEIGHT.astype(np.float16)}), "tensor `w` is F16"),
        (stored({"v": WEIGHT}), "tensor `w` is not in external data `w.safetensors`"),
    ],
)  # fmt: skip
def test_damaged_files_and_other_tensors_are_errors(tmp_path: Path, content: bytes, message: str) -> None:
    path = saved(tmp_path, model_of(WEIGHT, external={"location": "w.safetensors"}), content)
    with pytest.raises(ExternalDataError, match=message):
        read_model(path)


def test_weights_of_another_model_or_shape_are_errors(tmp_path: Path) -> None:
    path = saved(tmp_path, model_of(WEIGHT), stored({"v": WEIGHT}))
    with pytest.raises(ExternalDataError, match="any of the model's initializers"):
        read_model(path, tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(stored({"w": WEIGHT[1:]}))
    with pytest.raises(ExternalDataError, match="tensor `w` is F32"):
        read_model(path, tmp_path / "w.safetensors")
    with pytest.raises(ExternalDataError, match="cannot be opened"):
        read_model(path, tmp_path / "missing.safetensors")


@pytest.mark.parametrize("cut", range(0, 240, 7))
def test_no_truncation_is_misread(tmp_path: Path, cut: int) -> None:
    content = stored({"w": WEIGHT})
    path = saved(tmp_path, model_of(WEIGHT, external={"location": "w.safetensors"}), content[:cut])
    with pytest.raises(ExternalDataError):
        read_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (stored({"w": WEIGHT}), "is a safetensors file.*pass it as `weights`"),
        (b'<?xml version="1.0"?>\n<net name="m" version="11">\n', "is an OpenVINO IR; export"),
        (b"\x1c\0\0\0TFL3" + b"\0" * 20, "is a TensorFlow Lite model; convert it.*tf2onnx"),
    ],
)
def test_a_file_of_another_format_is_named(content: bytes, message: str) -> None:
    with pytest.raises(ModelReadError, match=message):
        read_model(content)
