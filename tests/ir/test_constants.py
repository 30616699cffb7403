"""Constants and parameters: what is given is what the model computes with, or an error."""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelError
from engine.ir import (
    Constant,
    Model,
    Parameter,
    Result,
    SequenceType,
    bf16,
    boolean,
    f16,
    f32,
    i64,
    string,
    u4,
    u8,
    u64,
)
from engine.onnx import join_model, model_to_proto, read_model, split_model

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(
    ("value", "element_type", "message"),
    [
        (None, None, "NoneType"),
        ({"a": 1}, None, "dict"),
        ([1, "a"], None, r"element \[0\] of a constant is int"),
        (np.array(["a", None]), None, r"element \[1\] of a constant is NoneType"),
        ([b"\xff"], None, "not UTF-8"),
        (2**70, None, "int 118"),
        (1j, None, "complex"),
        ([[1], [1, 2]], None, "cannot create a constant from list"),
        (np.array(["2020-01-01"], "M8[D]"), None, "datetime64"),
        ("abc", f32, "from text"),
        ([1], string, "text constant from int64"),
        ([300], u8, r"cannot hold the values \[300\]"),
        ([-1], u4, "cannot hold"),
        ([1.5], i64, "cannot hold"),
        ([float("nan")], i64, "cannot hold"),
        ([2], boolean, "cannot hold"),
        (np.array([1j]), f32, "complex128"),
        ([1], "f32", "element type"),
    ],
)
def test_what_no_tensor_holds_is_refused(value: Any, element_type: Any, message: str) -> None:
    # Each of these would compute with another value than the one that was written down.
    with pytest.raises(ModelError, match=message):
        Constant(value, element_type)


def test_values_are_kept_or_rounded_to_what_was_asked_for() -> None:
    assert Constant([0.1], bf16).data.tolist() == [0.10009765625]
    assert Constant(70000, f16).data == np.inf
    assert Constant([1.0, 0.0], boolean).data.tolist() == [True, False]
    assert Constant([255], u8).data.tolist() == [255]
    assert Constant([b"\xc3\xa9", b"b"]).data.tolist() == ["é", "b"]


@pytest.mark.parametrize("count", [3, 1000], ids=["stored inline", "stored apart"])
def test_foreign_byte_order_is_no_other_value(count: int) -> None:
    value = np.arange(count, dtype=np.dtype("int32").newbyteorder("S"))
    model = Model([Result(Constant(value), "y")])
    skeleton, sections = split_model(model)
    joined = join_model(skeleton, {section.name: section.data for section in sections}.__getitem__)
    for copy in (joined, read_model(model_to_proto(model))):
        (constant,) = (node for node in copy.ordered_nodes() if isinstance(node, Constant))
        assert constant.data.tolist() == list(range(count))


@pytest.mark.parametrize("arguments", [("f32", [1]), (None, [1]), (np.float32, [1]), (SequenceType(), [1])], ids=str)
def test_a_parameter_needs_a_type(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ModelError, match="a parameter takes"):
        Parameter(*arguments)


def test_released_pages_of_a_mapped_file_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data"
    expected = np.arange(100_000, dtype=np.int32)
    path.write_bytes(b"head" + expected.tobytes())
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    constant = Constant(np.frombuffer(memoryview(mapped)[4:], np.int32))
    for _ in range(2):
        np.testing.assert_array_equal(constant.data, expected)
        constant.release()
    tail = Constant(constant.data[99_990:])
    tail.release()  # less than a page
    np.testing.assert_array_equal(tail.data, expected[99_990:])


class Watched(mmap.mmap):
    """A mapping that notes which pages are released."""

    released: list[tuple[int, ...]]

    def madvise(self, *arguments: int) -> None:
        self.released.append(arguments)
        super().madvise(*arguments)


@pytest.mark.parametrize("begin", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
@pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 3 * PAGE + 7])
@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system releases no pages")
def test_the_pages_that_are_released_are_those_within_the_array(tmp_path: Path, begin: int, size: int) -> None:
    """Weights that follow each other in a file share pages: pages of a neighbour that is in use stay loaded."""
    path = tmp_path / "data"
    path.write_bytes(bytes(6 * PAGE))
    with open(path, "rb") as file:
        mapped = Watched(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.released = []
    Constant(np.frombuffer(memoryview(mapped)[begin : begin + size], np.uint8)).release()
    within = [page for page in range(6) if begin <= page * PAGE and (page + 1) * PAGE <= begin + size]
    expected = [(mmap.MADV_DONTNEED, within[0] * PAGE, len(within) * PAGE)] if within else []
    assert mapped.released == expected


def test_what_was_written_is_never_released(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    array = np.frombuffer(mapped, np.uint8)
    array[:] = 7
    Constant(array).release()
    assert (array == 7).all()


def test_discarded_data_is_an_error_to_read() -> None:
    constant = Constant(np.zeros(3, np.float32), friendly_name="w")
    constant.discard()
    constant.release()
    assert constant.shape == (3,)
    with pytest.raises(ModelError, match=r"`w`.*was discarded"):
        _ = constant.data


def test_large_integers_of_lists_keep_all_digits():
    assert Constant([1, 2**63 + 1, 2**64 - 1], u64).data.tolist() == [1, 2**63 + 1, 2**64 - 1]
    # Of integers beside real numbers, numpy makes f64.
    assert Constant([[1.0], [2**63 + 1]], u64).data.tolist() == [[1], [2**63 + 1]]
    assert Constant([1.0, -(2**53) - 1], i64).data.tolist() == [1, -(2**53) - 1]
    assert Constant([np.float32(2), 2**62 + 1], i64).data.tolist() == [2, 2**62 + 1]
    assert Constant([2.0**63, 1], u64).data.tolist() == [2**63, 1]
    for values in ([1.5, 2**53 + 1], [math.nan, 2**53 + 1], [math.inf, 2**53 + 1], [1e300, 1], [-1.0, 2**63 + 1]):
        with pytest.raises(ModelError, match="cannot hold the values"):
            Constant(values, u64)
    for values, element_type in (([1, 2**63 + 1], None), ([-1, 2**63], u64), ([1, 2**64], u64), ([1, 2**63 + 1], i64)):
        with pytest.raises(ModelError, match="cannot hold the values"):
            Constant(values, element_type)
