"""Weights beside the model: used in place, from its folder only, of the size that they must have."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.errors import ExternalDataError, ModelReadError
from engine.ir import Constant, Model
from engine.onnx import read_model
from engine.onnx.weight_spans import WeightSpan, weight_spans
from engine.onnx.wire import encode_length

WEIGHT = np.arange(24, dtype=np.float32).reshape(4, 6)
GIB = 1 << 30


def tensor(shape: tuple[int, ...] = (4, 6), **entries: Any) -> onnx.TensorProto:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def model_of(weight: onnx.TensorProto) -> onnx.ModelProto:
    shape = list(weight.dims)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def weight_of(model: Model) -> Constant:
    found = model.node("w")
    assert isinstance(found, Constant)
    return found


def test_data_is_used_in_place_at_its_offset(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\1" * 7 + WEIGHT.tobytes() + b"\2" * 9)
    path = save(tmp_path, model_of(tensor(location="w.bin", offset=7, length=WEIGHT.nbytes, checksum="x")))
    data = weight_of(read_model(path)).data
    np.testing.assert_array_equal(data, WEIGHT)
    assert not data.flags.owndata
    assert not data.flags.writeable


def test_length_and_offset_may_be_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "weights" / "deep"
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(WEIGHT.tobytes() + b"more")
    path = save(tmp_path, model_of(tensor(location="weights/deep/w.bin")))
    np.testing.assert_array_equal(weight_of(read_model(path)).data, WEIGHT)


@pytest.mark.parametrize("entries", [{}, {"length": "x1"}, {"length": 96, "offset": -1}, {"length": "\u0666"}])
def test_data_whose_place_is_not_stated_is_not_bound_to_a_file(tmp_path: Path, entries: dict[str, Any]) -> None:
    """A blob then contains it, instead of naming its place in a file."""
    stated = {"location": "w.bin", "offset": 7, "length": 96}
    assert weight_spans(save(tmp_path, model_of(tensor(**stated)))) == [WeightSpan("w.bin", 7, 96)]
    assert weight_spans(save(tmp_path, model_of(tensor(location="w.bin", **entries)))) == []


def test_a_relative_path_reads_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    save(tmp_path, model_of(tensor(location="w.bin")))
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(weight_of(read_model("m.onnx")).data, WEIGHT)


def test_what_the_onnx_package_writes_is_read(tmp_path: Path) -> None:
    big = np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32)
    proto = model_of(numpy_helper.from_array(big, "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="all.data", size_threshold=0)
    np.testing.assert_array_equal(weight_of(read_model(tmp_path / "m.onnx")).data, big)


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../w.bin",
        "a/../../w.bin",
        "..",
        "C:\\w.bin",
        "..\\w.bin",
        "\\\\host\\w.bin",
        "a/.././../model/w.bin",
        "link/../w.bin",
    ],
)
def test_locations_outside_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "a").mkdir(parents=True)
    for place in (tmp_path, folder):
        (place / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "link").symlink_to(tmp_path / "else" / "where")
    (tmp_path / "else" / "where").mkdir(parents=True)
    (tmp_path / "else" / "w.bin").write_bytes(WEIGHT.tobytes())
    path = save(folder, model_of(tensor(location=location)))
    with pytest.raises(ExternalDataError, match="outside the model's folder") as error:
        read_model(path)
    assert "tensor `w`" in str(error.value)
    assert location in str(error.value)


@pytest.mark.parametrize("location", ["a/../w.bin", "./a/../w.bin", "a/b/../../w.bin", "missing/../w.bin", ".//w.bin"])
def test_locations_that_stay_in_the_folder_are_read(tmp_path: Path, location: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = save(tmp_path, model_of(tensor(location=location)))
    np.testing.assert_array_equal(weight_of(read_model(path)).data, WEIGHT)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, what: str) -> None:
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    (secret / "w.bin").write_bytes(WEIGHT.tobytes())
    if what == "file":
        (folder / "w.bin").symlink_to(secret / "w.bin")
    else:
        (folder / "sub").symlink_to(secret)
    location = "w.bin" if what == "file" else "sub/w.bin"
    with pytest.raises(ExternalDataError, match="outside the model's folder"):
        read_model(save(folder, model_of(tensor(location=location))))


def test_links_within_the_folder_and_of_the_folder_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "real.bin").write_bytes(WEIGHT.tobytes())
    (folder / "w.bin").symlink_to("real.bin")
    save(folder, model_of(tensor(location="w.bin")))
    (tmp_path / "latest").symlink_to(folder)
    np.testing.assert_array_equal(weight_of(read_model(tmp_path / "latest" / "m.onnx")).data, WEIGHT)


def test_a_download_cache_of_links_is_read(tmp_path: Path) -> None:
    """Model and data lie under hashes in one folder, and links in another one give them their names."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1f").write_bytes(model_of(tensor(location="model.onnx_data")).SerializeToString())
    (blobs / "2e").write_bytes(WEIGHT.tobytes())
    (snapshot / "model.onnx").symlink_to("../../blobs/1f")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/2e")
    np.testing.assert_array_equal(weight_of(read_model(snapshot / "model.onnx")).data, WEIGHT)


@pytest.mark.parametrize(
    ("entries", "content", "message"),
    [
        ({"location": "w.bin"}, b"x" * 95, "needs 96 bytes at offset 0 .* but 95 are available"),
        ({"location": "w.bin", "offset": 50}, b"x" * 96, "needs 96 bytes at offset 50 .* but 46 are available"),
        ({"location": "w.bin", "offset": 2**63 - 1}, b"x" * 96, "but 0 are available"),
        ({"location": "w.bin", "offset": 2**70}, b"x" * 96, "is not a number of bytes"),
        ({"location": "w.bin", "offset": -4}, b"x" * 96, "external offset '-4' is not a number of bytes"),
        ({"location": "w.bin", "length": "many"}, b"x" * 96, "external length 'many' is not a number of bytes"),
        (
            {"location": "w.bin", "length": 40},
            b"x" * 96,
            "takes 96 bytes, but states a length of 40",
        ),
        ({"location": "w.bin"}, b"", "is empty; 96 bytes of it are needed"),
        ({"location": "w.bin"}, None, "cannot be opened: No such file or directory; 96 bytes"),
        ({"location": ""}, b"x", "no usable location"),
        ({"location": "w\0.bin"}, b"x", "no usable location"),
        ({"offset": 0}, b"x", "no usable location"),
        ({"location": "."}, b"x", "is a directory"),
    ],
)
def test_data_that_is_missing_or_of_another_size_is_refused(
    tmp_path: Path, entries: dict[str, Any], content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "w.bin").write_bytes(content)
    with pytest.raises(ExternalDataError, match=message) as error:
        read_model(save(tmp_path, model_of(tensor(**entries))))
    assert "tensor `w`" in str(error.value)


def test_an_entry_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    proto = tensor(location="w.bin")
    proto.external_data.add(key="location", value="other.bin")
    with pytest.raises(ExternalDataError, match="states its external location twice"):
        read_model(save(tmp_path, model_of(proto)))


def test_a_pipe_in_the_place_of_the_data_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(ExternalDataError, match="is not a regular file"):
        read_model(save(tmp_path, model_of(tensor(location="w.bin"))))


@pytest.mark.parametrize("make", [bytes, lambda data: onnx.ModelProto.FromString(data)], ids=["bytes", "proto"])
def test_without_a_path_there_is_no_folder(make: Callable[[bytes], bytes | onnx.ModelProto]) -> None:
    with pytest.raises(ExternalDataError, match=r"tensor `w` .*`w\.bin`, but the model was not read from a path"):
        read_model(make(model_of(tensor(location="w.bin")).SerializeToString()))


def test_a_file_cannot_forge_a_reference_into_itself(tmp_path: Path) -> None:
    """References of the importer look like external data; what a file says under such keys means nothing."""
    forged = tensor()
    forged.external_data.add(key="0" * 32, value="0")
    path = save(tmp_path, model_of(forged))
    with pytest.raises(ExternalDataError, match="no usable location"):
        read_model(path)


# -- above 2 GB -------------------------------------------------------------------------------------------


def sparse_file(path: Path, size: int, pieces: dict[int, bytes]) -> None:
    """A file of `size` bytes that takes disk for `pieces` only."""
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in pieces.items():
            file.seek(offset)
            file.write(data)


def peak_memory() -> int:
    """Bytes of anonymous memory: what is not a view of a file."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files and /proc")
def test_external_data_above_2_gb_costs_no_memory(tmp_path: Path) -> None:
    count = 3 * GIB // 4
    last = np.array([1, 2, 3], np.float32).tobytes()
    sparse_file(tmp_path / "w.bin", 3 * GIB + 64, {3 * GIB + 64 - 12: last})
    path = save(tmp_path, model_of(tensor((count,), location="w.bin", offset=64)))
    before = peak_memory()
    data = weight_of(read_model(path)).data
    assert data.shape == (count,)
    np.testing.assert_array_equal(data[-3:], [1, 2, 3])
    assert peak_memory() - before < 50 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files and /proc")
def test_a_model_file_above_2_gb_costs_no_memory(tmp_path: Path) -> None:
    """Protobuf itself cannot read such a file."""
    size = 5 * GIB // 2
    head = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    head += encode_length(9, size)
    empty = model_of(TensorProto(name="w", dims=[size // 4], data_type=TensorProto.FLOAT))
    empty.graph.ClearField("initializer")
    graph = empty.graph.SerializeToString()
    empty.ClearField("graph")
    start = encode_length(5, len(head) + size) + head
    prefix = empty.SerializeToString() + encode_length(7, len(start) + size + len(graph)) + start
    path = tmp_path / "m.onnx"
    weights = np.array([7, 8], np.float32).tobytes()
    sparse_file(path, len(prefix) + size + len(graph), {0: prefix, len(prefix): weights, len(prefix) + size: graph})
    before = peak_memory()
    model = read_model(path)
    np.testing.assert_array_equal(weight_of(model).data[:3], [7, 8, 0])
    assert model.result("y").type == model.parameter("x").type
    assert peak_memory() - before < 50 << 20


def test_a_packed_typed_field_of_many_values_is_not_made_python_objects(tmp_path: Path) -> None:
    numbers = np.arange(2_000_000, dtype=np.int64) * 1000
    proto = TensorProto(name="w", data_type=TensorProto.INT64, dims=[numbers.size])
    head = model_of(TensorProto(name="w", dims=[numbers.size], data_type=TensorProto.INT64))
    head.graph.ClearField("initializer")
    for value in (*head.graph.input, *head.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    proto.int64_data.extend(numbers)
    head.graph.initializer.append(proto)
    path = save(tmp_path, head)
    constant = weight_of(read_model(path))
    assert not constant.is_loaded
    np.testing.assert_array_equal(constant.data, numbers)


def test_a_reader_of_a_truncated_weight_says_where(tmp_path: Path) -> None:
    big = numpy_helper.from_array(np.zeros(5000, np.float32), "w")
    data = model_of(big).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) // 2])
    with pytest.raises(
        ModelReadError, match=r"m\.onnx` is not a valid ONNX model, or is truncated: byte \d+: field \d+ needs"
    ):
        read_model(tmp_path / "m.onnx")
