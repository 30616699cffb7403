"""Inputs and outputs in files: values read back as they were written, and errors name what is wrong."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.errors import InputError
from engine.ir import MapType, OptionalType, PartialShape, SequenceType, TensorType, f32, i64, string
from engine.ir.element_type import ALL, undefined
from engine.values.files import read_value, read_values, write_values

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data" / "simple"
F32 = TensorType(f32, PartialShape([2]))
X = np.array([1, 2], np.float32)


def assert_same(left: Any, right: Any) -> None:
    if isinstance(right, list):
        assert isinstance(left, list)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(right, dict):
        assert list(left) == list(right)
        assert_same(list(left.values()), list(right.values()))
    elif right is None:
        assert left is None
    else:
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert left.tolist() == right.tolist() if right.dtype == object else left.tobytes() == right.tobytes()


@pytest.mark.parametrize("form", ["values.npz", "values"])
@pytest.mark.parametrize("element_type", [t for t in ALL if t is not undefined], ids=lambda t: t.name)
def test_tensors_of_every_type_come_back(element_type: Any, form: str, tmp_path: Path) -> None:
    words = np.array([["a", "ü"], ["", "b c"]], object)
    value = words if element_type is string else np.array([[1, 0], [0, 1]]).astype(element_type.numpy)
    types = {
        "file": TensorType(element_type, PartialShape([2, 2])),
        "a/b:0": TensorType(element_type, PartialShape([])),
    }
    given = {"file": value, "a/b:0": value[0, :1].reshape(())}
    files = write_values(tmp_path / form, given, types, "output")
    assert all(file.is_file() for file in files)
    found = read_values(tmp_path / form, types, "output")
    assert list(found) == list(given)
    for name, expected in given.items():
        read = found[name].astype(object) if found[name].dtype.kind == "U" else found[name]
        assert_same(read, expected)


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (SequenceType(F32), [X, X[:1]]),
        (SequenceType(F32), []),
        (SequenceType(SequenceType(F32)), [[X], []]),
        (OptionalType(F32), X),
        (OptionalType(F32), None),
        (OptionalType(SequenceType(F32)), [X]),
        (SequenceType(MapType(i64, F32)), [{0: np.float32(0.25), 1: np.float32(0.75)}, {}]),
        (MapType(string, F32), {"setosa": np.float32(0.25), "f4": np.float32(0.75)}),
    ],
)
def test_sequences_optionals_and_maps_come_back_from_a_folder(value_type: Any, value: Any, tmp_path: Path) -> None:
    write_values(tmp_path / "out", {"y": value}, {"y": value_type}, "output")
    assert_same(read_values(tmp_path / "out", {"y": value_type}, "output")["y"], value)


def test_an_archive_holds_tensors_alone(tmp_path: Path) -> None:
    for value in ([X], None):
        with pytest.raises(InputError, match=r"`y`.*write to a folder"):
            write_values(tmp_path / "out.npz", {"y": value}, {}, "output")
    assert list(tmp_path.iterdir()) == []


def test_reads_the_data_that_onnx_ships() -> None:
    folder = DATA / "test_single_relu_model" / "test_data_set_0"
    (given,) = read_values(folder, {"x": F32}, "input").values()
    (expected,) = read_values(folder, {"y": F32}, "output").values()
    np.testing.assert_array_equal(np.maximum(given, 0), expected)
    folder = DATA / "test_sequence_model1" / "test_data_set_0"
    names = [file.name for file in folder.iterdir() if file.name.startswith("input")]
    given = read_values(folder, {f"x{i}": F32 for i in range(len(names))}, "input")
    assert all(value.dtype == np.float32 for value in given.values())


def test_a_file_of_one_value(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.pb").write_bytes(onnx.numpy_helper.from_array(X, "x").SerializeToString())
    two = {"x": F32, "z": F32}
    assert_same(read_value(tmp_path / "x.npy", F32), X)
    assert_same(read_values(tmp_path / "x.npy", {"only": F32}, "input")["only"], X)
    assert_same(read_values(tmp_path / "x.pb", two, "input")["x"], X)
    assert_same(read_values(tmp_path / "x.pb", {"only": F32}, "input")["only"], X)
    with pytest.raises(InputError, match=r"NAME=.*x\.npy, where NAME is one of x, z"):
        read_values(tmp_path / "x.npy", two, "input")
    with pytest.raises(InputError, match="where NAME is one of y, z"):
        read_values(tmp_path / "x.pb", {"y": F32, "z": F32}, "input")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "text.pb").write_text("no proto")
    (tmp_path / "text.txt").write_text("1 2")
    (tmp_path / "empty.pb").write_bytes(b"")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    with open(tmp_path / "liar.npy", "wb") as liar:
        np.lib.format.write_array_header_1_0(liar, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)})
    np.savez(tmp_path / "other.npz", q=X)
    (tmp_path / "folder").mkdir()
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "input_1.pb").write_bytes(onnx.numpy_helper.from_array(X).SerializeToString())
    expected = {
        "text.npy": "cannot be read as .npy",
        "text.npz": "cannot be read as .npz",
        "text.pb": "not a valid TensorProto",
        "text.txt": r"expected \.npy, \.npz",
        "empty.npz": "cannot be read",
        "empty.pb": "element type|undefined",
        "pickle.npy": "allow_pickle",
        "liar.npy": "cannot be read as .npy",
        "other.npz": "'q', which is not an input of the model; inputs: x",
        "folder": r"no input_0\.pb",
        "many": "the model has 1 inputs: x",
        "missing.npy": "No such file",
        "missing.npz": "No such file",
        "missing.pb": "No such file",
        "missing": "cannot read values|no such file",
    }
    for name, message in expected.items():
        with pytest.raises(InputError, match=message) as caught:
            read_values(tmp_path / name, {"x": F32}, "input")
        assert str(tmp_path / name) in str(caught.value)


def test_nothing_is_written_to_a_name_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no suffix"):
        write_values(tmp_path / "out.npy", {"x": X}, {"x": F32}, "output")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match=r"file: it is a file; expected"):
        write_values(tmp_path / "file", {"x": X}, {"x": F32}, "output")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are not there")
@pytest.mark.parametrize(("form", "name"), [("values.npz", "values.npz"), ("values", "output_0.pb")])
def test_a_full_disk_leaves_what_was_there(
    form: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's own limit on file sizes fails writes as a full disk does."""
    import resource

    types = {"x": TensorType(f32, PartialShape([None]))}
    files = write_values(tmp_path / form, {"x": X}, types, "output")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would keep modules that were cut off
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=name):
            write_values(tmp_path / form, {"x": np.zeros(10_000, np.float32)}, types, "output")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(files[0].parent.iterdir()) == files
    assert_same(read_values(tmp_path / form, types, "output")["x"], X)
