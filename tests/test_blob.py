"""The blob container: reading returns what was written, and every failure raises `BlobError`."""

from __future__ import annotations

import gzip
import hashlib
import io
import mmap as mmap_module
import os
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import FrozenInstanceError, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blob import (
    ALIGNMENT,
    BlobAnswer,
    BlobManifest,
    BlobReader,
    BlobWriter,
    check_blob,
    check_manifest,
    is_blob,
)
from engine.errors import BlobCorruptError, BlobError, BlobFormatError, BlobIncompatibleError

HEADER_SIZE = 96


def make_manifest(**changes: Any) -> BlobManifest:
    fields: dict[str, Any] = {
        "device": "TEMPLATE",
        "plugin_name": "engine-plugin-template",
        "plugin_version": "0.1.0",
        "engine_version": "0.1.0",
        "api_version": "1",
        "requirements": {"isa": ["avx2", "fma"], "driver": "3.1"},
        "config": {"PERF_COUNT": True, "NUM_STREAMS": 2},
        "inputs": [{"name": "x", "element_type": "f32", "shape": [1, 3, None, 224]}],
        "outputs": [{"name": "y", "element_type": "f32", "shape": [1, 1000]}],
        "metadata": {"network": "résumé"},
    }
    return BlobManifest(**{**fields, **changes})


def make_writer(sections: dict[str, Any], **changes: Any) -> BlobWriter:
    writer = BlobWriter(make_manifest(**changes))
    for name, data in sections.items():
        writer.add_section(name, data)
    return writer


def make_blob(sections: dict[str, Any], **changes: Any) -> bytes:
    stream = io.BytesIO()
    size = make_writer(sections, **changes).write(stream)
    assert size == len(stream.getvalue())
    return stream.getvalue()


def read_all(source: Any, **options: Any) -> dict[str, bytes]:
    with BlobReader(source, **options) as reader:
        return {name: bytes(reader.section(name)) for name in reader.section_names}


class Pipe(io.RawIOBase):
    """A stream that cannot seek and gives at most `piece` bytes a read."""

    def __init__(self, data: bytes, piece: int = 2**30) -> None:
        self._inner = io.BytesIO(data)
        self._piece = piece
        self.taken = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._inner.read(min(size, self._piece))
        self.taken += len(data)
        return data


SECTIONS: dict[str, bytes] = {"weights": bytes(range(256)) * 3, "empty": b"", "gewichte-ü": b"1", "last": b"xyz"}


def opened_from(kind: str, blob: bytes, folder: Path) -> tuple[Any, dict[str, Any]]:
    if kind in ("path", "mmap"):
        path = folder / "a.blob"
        path.write_bytes(blob)
        return path, {"mmap": kind == "mmap"}
    sources: dict[str, Callable[[], Any]] = {
        "bytes": lambda: blob,
        "bytearray": lambda: bytearray(blob),
        "memoryview": lambda: memoryview(blob),
        "stream": lambda: io.BytesIO(blob),
        "pipe": lambda: Pipe(blob, piece=7),
    }
    return sources[kind](), {}


KINDS = ["path", "mmap", "bytes", "bytearray", "memoryview", "stream", "pipe"]


# Round trip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_comes_back(kind: str, tmp_path: Path) -> None:
    source, options = opened_from(kind, make_blob(SECTIONS), tmp_path)
    with BlobReader(source, **options) as reader:
        assert reader.section_names == tuple(SECTIONS)
        assert {name: bytes(reader.section(name)) for name in SECTIONS} == SECTIONS
        assert replace(reader.manifest, sections=()) == make_manifest()
        assert all(reader.section(name).readonly for name in SECTIONS)


def test_a_blob_without_sections(tmp_path: Path) -> None:
    for kind in KINDS:
        source, options = opened_from(kind, make_blob({}), tmp_path)
        assert read_all(source, **options) == {}


@pytest.mark.parametrize("kind", ["path", "mmap", "stream", "pipe"])
def test_sections_are_aligned_in_memory(kind: str, tmp_path: Path) -> None:
    source, options = opened_from(kind, make_blob({**SECTIONS, "big": bytes(3 * 2**20 + 1)}), tmp_path)
    reader = BlobReader(source, **options)
    for name in ("weights", "gewichte-ü", "last", "big"):
        assert np.frombuffer(reader.section(name), np.uint8).ctypes.data % ALIGNMENT == 0


def test_sections_are_aligned_in_the_file() -> None:
    sections = {"a": b"A" * 65, "b": b"B" * 64, "c": b"C" * 9}
    blob = make_blob(sections)
    assert [blob.index(data) % ALIGNMENT for data in sections.values()] == [0, 0, 0]
    assert blob.endswith(b"C" * 9)


def test_the_same_contents_give_the_same_bytes() -> None:
    one = make_blob(SECTIONS, config={"A": 1, "B": 2})
    assert one == make_blob(SECTIONS, config={"B": 2, "A": 1})


def test_sections_take_arrays_and_several_buffers() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    data = {
        "array": array,
        "bfloat16": half,
        "scalar": np.array(7, np.int64),
        "no rows": np.empty((0, 5), np.float32),
        "view": array.data,
        "pieces": (piece for piece in (b"ab", bytearray(b"c"), array)),
        "no pieces": [],
    }
    read = read_all(make_blob(data))
    assert read == {
        "array": array.tobytes(),
        "bfloat16": half.tobytes(),
        "scalar": np.array(7, np.int64).tobytes(),
        "no rows": b"",
        "view": array.tobytes(),
        "pieces": b"abc" + array.tobytes(),
        "no pieces": b"",
    }


def test_a_writer_writes_any_number_of_times() -> None:
    writer = make_writer(SECTIONS)
    first, second = io.BytesIO(), io.BytesIO()
    writer.write(first)
    writer.write(second)
    assert first.getvalue() == second.getvalue()


def test_large_sections_are_not_copied_when_writing() -> None:
    array = np.ones(32 * 2**20, np.uint8)
    writer = make_writer({"weights": array, "pieces": [array, array]})
    tracemalloc.start()
    try:
        with open(os.devnull, "wb", buffering=0) as sink:
            writer.write(sink)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_buffers_are_used_in_place() -> None:
    blob = make_blob({"weights": b"w" * 1000})
    start = np.frombuffer(blob, np.uint8).ctypes.data
    with BlobReader(blob) as reader:
        section = np.frombuffer(reader.section("weights"), np.uint8)
    assert start < section.ctypes.data < start + len(blob)


def test_a_mapped_buffer_is_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.blob"
    make_writer(SECTIONS).write_file(path)
    with open(path, "rb") as file, mmap_module.mmap(file.fileno(), 0, access=mmap_module.ACCESS_READ) as mapped:
        reader = BlobReader(mapped)
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        address = np.frombuffer(reader.section("weights"), np.uint8).ctypes.data
        assert start < address < start + len(mapped)
        reader.close()


# Manifest


def test_a_manifest_keeps_its_own_copy() -> None:
    config: dict[str, Any] = {"list": [1]}
    manifest = make_manifest(config=config)
    config["list"].append(2)
    assert manifest.config == {"list": [1]}
    with pytest.raises(FrozenInstanceError):
        manifest.device = "CPU"  # type: ignore[misc]


def test_enums_and_numpy_floats_become_plain_values() -> None:
    class Hint(StrEnum):
        LATENCY = "latency"

    class Level(IntEnum):
        HIGH = 3

    manifest = make_manifest(config={"h": Hint.LATENCY, "l": Level.HIGH, "f": np.float64(0.5), "t": (1, 2)})
    assert manifest.config == {"h": "latency", "l": 3, "f": 0.5, "t": [1, 2]}
    assert [type(value) for value in manifest.config.values()] == [str, int, float, list]


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": ""}, "manifest.device: expected a non-empty string"),
        ({"api_version": 1}, "manifest.api_version"),
        ({"device": "\ud800"}, "lone surrogate"),
        ({"config": [1]}, "manifest.config: expected a mapping, got list"),
        ({"config": {1: 2}}, "manifest.config: expected string keys, got 1"),
        ({"config": {"A": {"B": np.int64(1)}}}, r"manifest.config\['A'\]\['B'\]: int64 is not a JSON type"),
        ({"config": {"A": float("nan")}}, r"manifest.config\['A'\]: JSON cannot represent nan"),
        ({"config": {"A": 2**64}}, "integer outside"),
        ({"config": {"A": 10**5000}}, "integer outside"),
        ({"config": cyclic()}, "nested deeper than 64 levels, or contains itself"),
        ({"config": nested(64)}, "nested deeper"),
        ({"metadata": {"A": b"bytes"}}, "bytes is not a JSON type"),
        ({"inputs": {"x": 1}}, "manifest.inputs: expected a list of mappings"),
        ({"outputs": ["y"]}, "manifest.outputs: expected a list of mappings"),
        ({"requirements": {"isa": 3}}, r"manifest.requirements\['isa'\]: expected a string or a list"),
        ({"sections": [1]}, "manifest.sections"),
    ],
)
def test_a_manifest_that_json_cannot_carry_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BlobError, match=message):
        make_manifest(**changes)


def test_the_deepest_nesting_that_is_written_is_read() -> None:
    manifest = make_manifest(config=nested(63), metadata={"[" * 100: '"' + "]{" * 100 + "\\"})
    stream = io.BytesIO()
    BlobWriter(manifest).write(stream)
    assert BlobReader(stream.getvalue()).manifest == manifest


def test_extreme_integers_come_back() -> None:
    config = {"least": -(2**63), "most": 2**64 - 1, "float": 1e308, "tiny": 5e-324, "minus": -0.0}
    assert BlobReader(make_blob({}, config=config)).manifest.config == config


def test_a_manifest_too_large_to_read_is_not_written() -> None:
    stream = io.BytesIO()
    with pytest.raises(BlobError, match="store large metadata in a section"):
        BlobWriter(make_manifest(metadata={"a": "x" * 2**24})).write(stream)
    assert stream.getvalue() == b""


# Sections that cannot be added


def failing_pieces() -> Iterator[bytes]:
    yield b"a"
    raise RuntimeError("no more weights")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("", b"", "non-empty name"),
        (3, b"", "non-empty name, got 3"),
        ("\udc80", b"", "lone surrogate"),
        ("a", "text", "section 'a': expected bytes, an array, or buffers; got str"),
        ("a", 3, "got int"),
        ("a", [b"x", 3], "section 'a', buffer 1"),
        ("a", np.ones((4, 4))[:, ::2], "numpy.ascontiguousarray"),
        ("a", np.asfortranarray(np.ones((4, 4))), "numpy.ascontiguousarray"),
        ("a", memoryview(b"abcdef")[::2], "C-contiguous"),
        ("a", np.array([object()]), "got ndarray"),
        ("a", failing_pieces(), "iterating over its buffers failed: no more weights"),
    ],
)
def test_a_section_that_cannot_be_stored_is_refused(name: Any, data: Any, message: str) -> None:
    writer = make_writer({"first": b"1"})
    with pytest.raises(BlobError, match=message):
        writer.add_section(name, data)
    stream = io.BytesIO()
    writer.write(stream)
    assert read_all(stream.getvalue()) == {"first": b"1"}


def test_a_section_is_added_once() -> None:
    writer = make_writer({"a": b"1"})
    with pytest.raises(BlobError, match="section 'a': already added"):
        writer.add_section("a", b"2")


def test_a_writer_needs_a_manifest() -> None:
    with pytest.raises(BlobError, match="expected a BlobManifest, got dict"):
        BlobWriter({})  # type: ignore[arg-type]


# Streams that fail while writing


class Sink(io.RawIOBase):
    """Accepts `capacity` bytes in pieces of at most `piece`, then calls `fail`."""

    def __init__(self, capacity: int, fail: Callable[[], Any], piece: int = 2**30) -> None:
        self.data = bytearray()
        self._capacity = capacity
        self._fail = fail
        self._piece = piece

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> Any:
        room = min(self._capacity - len(self.data), self._piece)
        if room <= 0:
            return self._fail()
        self.data += data[:room]
        return min(room, len(data))


def out_of_space() -> int:
    raise OSError(28, "No space left on device")


def test_a_stream_that_takes_a_few_bytes_at_a_time_gets_all() -> None:
    sink = Sink(2**30, out_of_space, piece=3)
    make_writer(SECTIONS).write(sink)
    assert read_all(bytes(sink.data)) == SECTIONS


@pytest.mark.parametrize("fail", [out_of_space, lambda: 0, lambda: None, lambda: -1, lambda: 10**9, lambda: "1"])
@pytest.mark.parametrize("capacity", [0, 50, 96, 400, 1200])
def test_a_stream_that_fails_half_way(capacity: int, fail: Callable[[], Any]) -> None:
    sink = Sink(capacity, fail)
    with pytest.raises(BlobError, match=f"the stream failed after {capacity} of ") as caught:
        make_writer(SECTIONS).write(sink)
    assert isinstance(caught.value.__cause__, OSError) == (fail is out_of_space)
    with pytest.raises(BlobFormatError):
        BlobReader(bytes(sink.data))


def test_an_error_that_only_flushing_shows_is_reported() -> None:
    buffered = io.BufferedWriter(Sink(1000, out_of_space), buffer_size=2**20)
    with pytest.raises(BlobError) as caught:
        make_writer(SECTIONS).write(buffered)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(OSError, match="No space left"):
        buffered.close()


def test_a_text_stream_is_refused() -> None:
    with pytest.raises(BlobError) as caught:
        make_writer({}).write(io.StringIO())  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(BlobError, match="expected a blocking binary stream"):
        BlobReader(io.StringIO("text"))  # type: ignore[arg-type]


def test_an_object_whose_write_returns_nothing_takes_all() -> None:
    class Collector:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: memoryview) -> None:
            self.data += data

    collector = Collector()
    make_writer(SECTIONS).write(collector)
    assert read_all(collector.data) == SECTIONS


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_device() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(BlobError, match="after 0 of") as caught:
        make_writer(SECTIONS).write(full)
    assert isinstance(caught.value.__cause__, OSError)


# Files appear whole or not at all


def test_write_file(tmp_path: Path) -> None:
    path = tmp_path / "net.blob"
    size = make_writer(SECTIONS).write_file(path)
    assert path.stat().st_size == size
    assert read_all(path) == SECTIONS
    make_writer({"new": b"2"}).write_file(str(path))
    assert read_all(path) == {"new": b"2"}
    assert os.listdir(tmp_path) == ["net.blob"]


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    make_writer({}).write_file(tmp_path / "net.blob")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "net.blob").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_write_file_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "net.blob", tmp_path / "link.blob"
    link.symlink_to(target)
    for _ in range(2):
        make_writer(SECTIONS).write_file(link)
        assert link.is_symlink()
        assert read_all(target) == SECTIONS


@contextmanager
def small_disk() -> Iterator[None]:
    """The system refuses files above 1000 bytes, with a short write first, as a full disk does.

    No fixture: pytest writes its own output, perhaps to a file, before a fixture is torn down.
    """
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    setting = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would keep modules that were cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = setting


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "net.blob"
    path.write_bytes(b"old")
    expected = pytest.raises(BlobError, match=r"net\.blob: the stream failed after 1000 of ")
    with expected as caught, small_disk():
        make_writer(SECTIONS).write_file(path)
    assert isinstance(caught.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["net.blob"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(5, "I/O error"), KeyboardInterrupt()])
def test_no_failing_step_leaves_a_file(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    expected = BlobError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        make_writer(SECTIONS).write_file(tmp_path / "net.blob")
    assert os.listdir(tmp_path) == []


def test_the_file_is_complete_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    fsync, rename = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        steps.append(("fsync", os.fstat(descriptor).st_size, os.path.exists(tmp_path / "net.blob")))
        fsync(descriptor)

    def record_replace(source: str, target: str) -> None:
        steps.append(("replace", os.path.getsize(source), os.path.exists(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    size = make_writer(SECTIONS).write_file(tmp_path / "net.blob")
    assert steps[:2] == [("fsync", size, False), ("replace", size, False)]


def test_write_file_refuses_what_is_no_file_name(tmp_path: Path) -> None:
    writer = make_writer(SECTIONS)
    for path in (tmp_path, tmp_path / "no" / "folder", f"{tmp_path}/new/", "", "a\0b", 3):
        with pytest.raises(BlobError, match="cannot write blob"):
            writer.write_file(path)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_write_file_does_not_replace_what_is_no_regular_file(tmp_path: Path) -> None:
    # A pipe stands for every device. Never /dev/null itself: run as root, a failing check would replace it.
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(BlobError, match="not a regular file; open it and pass the stream"):
            make_writer(SECTIONS).write_file(path)
    assert pipe.is_fifo()
    assert link.is_symlink()


# files that cannot be opened


def test_sources_that_are_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    files: list[Any] = [tmp_path, tmp_path / "missing", tmp_path / "pipe", "a\0b"]
    for source in [*files, 3, None, [], memoryview(b"abc")[::2]]:
        for opening in (BlobReader, check_blob):
            with pytest.raises(BlobError):
                opening(source)
    with pytest.raises(BlobError, match="mmap=True needs a path"):
        BlobReader(b"", mmap=True)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_and_foreign_data(kind: str, tmp_path: Path) -> None:
    for data, message in ((b"", "empty|ends at byte 0"), (b"\x08\x0a" * 99, "not a blob"), (b"PK", "not a blob|ends")):
        source, options = opened_from(kind, data, tmp_path)
        with pytest.raises(BlobFormatError, match=message):
            BlobReader(source, **options)


def test_a_stream_placed_after_its_end_has_no_blob() -> None:
    stream = io.BytesIO(make_blob(SECTIONS))
    stream.seek(10**6)
    with pytest.raises(BlobFormatError, match=r"at its end, byte 1000000; call seek\(0\)"):
        BlobReader(stream)


def test_a_blob_of_another_format_version() -> None:
    blob = bytearray(make_blob(SECTIONS))
    blob[8:16] = struct.pack("<Q", 9)
    blob[64:96] = hashlib.sha256(blob[:64]).digest()
    with pytest.raises(BlobIncompatibleError, match="format version 9, of a newer engine; this engine reads 1 to 8"):
        BlobReader(bytes(blob))
    check = check_blob(bytes(blob))
    assert not check.compatible
    assert check.manifest is None
    assert "format version 9" in check.reasons[0]


@pytest.mark.parametrize("kind", ["path", "mmap", "bytes", "memoryview"])
def test_bytes_after_the_blob_are_refused_in_files_and_buffers(kind: str, tmp_path: Path) -> None:
    source, options = opened_from(kind, make_blob(SECTIONS) + b"\0\0", tmp_path)
    with pytest.raises(BlobFormatError, match="2 bytes follow the blob's end"):
        BlobReader(source, **options)


@pytest.mark.parametrize("kind", ["stream", "pipe"])
def test_a_stream_is_read_to_the_blobs_last_byte(kind: str, tmp_path: Path) -> None:
    source, _ = opened_from(kind, make_blob(SECTIONS) + make_blob({"b": b"2"}) + b"end", tmp_path)
    assert read_all(source) == SECTIONS
    assert read_all(source) == {"b": b"2"}
    assert source.read(10) == b"end"


def test_a_blob_is_read_where_the_stream_stands() -> None:
    stream = io.BytesIO(b"before" + make_blob(SECTIONS))
    stream.seek(6)
    assert check_blob(stream).compatible
    assert stream.tell() == 6
    assert read_all(stream) == SECTIONS


def test_a_compressed_stream() -> None:
    with gzip.open(io.BytesIO(gzip.compress(make_blob(SECTIONS))), "rb") as stream:
        assert read_all(stream) == SECTIONS


class Broken(io.RawIOBase):
    """Readable up to `limit` bytes; after them, `read` calls `fail`."""

    def __init__(self, data: bytes, limit: int, fail: Callable[[], Any]) -> None:
        self._data = data
        self._limit = limit
        self._fail = fail
        self._position = 0

    def read(self, size: int = -1, /) -> Any:
        end = min(self._position + size, self._limit)
        if end == self._position:
            return self._fail()
        start, self._position = self._position, end
        return self._data[start:end]


@pytest.mark.parametrize("fail", [out_of_space, lambda: None, lambda: "text", lambda: b"too much" * 2**20])
@pytest.mark.parametrize("limit", [0, 10, 100, 1000])
def test_a_stream_that_breaks_while_reading(limit: int, fail: Callable[[], Any]) -> None:
    with pytest.raises(BlobError) as caught:
        BlobReader(Broken(make_blob(SECTIONS), limit, fail))
    assert isinstance(caught.value.__cause__, OSError) == (fail is out_of_space)


def test_a_stream_that_cannot_seek_back_is_not_read_from_the_wrong_place() -> None:
    class Forgetful(io.BytesIO):
        def seek(self, offset: int, whence: int = 0, /) -> int:
            if whence == os.SEEK_SET:
                raise OSError(29, "Illegal seek")
            return super().seek(offset, whence)

    with pytest.raises(BlobError, match=r"seeking back from its end failed: .*Illegal seek"):
        BlobReader(Forgetful(make_blob(SECTIONS)))


def test_a_closed_stream() -> None:
    stream = io.BytesIO(make_blob(SECTIONS))
    stream.close()
    with pytest.raises(BlobError):
        BlobReader(stream)


# Sections


def test_an_unknown_section_names_the_others() -> None:
    with pytest.raises(BlobFormatError, match="no section 'bias'; it has 'weights', 'empty', 'gewichte-ü', 'last'"):
        BlobReader(make_blob(SECTIONS)).section("bias")
    with pytest.raises(BlobFormatError, match="it has none"):
        BlobReader(make_blob({})).section("bias")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_section_is_reported_when_used_and_others_stay_usable(kind: str, tmp_path: Path) -> None:
    blob = bytearray(make_blob(SECTIONS))
    blob[-1] ^= 1
    source, options = opened_from(kind, bytes(blob), tmp_path)
    with BlobReader(source, **options) as reader:
        for _ in range(2):
            with pytest.raises(BlobCorruptError, match="section 'last'"):
                reader.section("last")
        assert reader.section("weights") == SECTIONS["weights"]
        with pytest.raises(BlobCorruptError, match="section 'last'"):
            reader.verify()


def counting_hashes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    hashed: list[int] = []
    sha256 = hashlib.sha256

    def count(data: Any = b"") -> Any:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", count)
    return hashed


def test_a_section_is_hashed_once_and_only_when_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.blob"
    make_writer({"a": bytes(100_000), "b": bytes(200_000)}).write_file(path)
    hashed = counting_hashes(monkeypatch)
    reader = BlobReader(path, mmap=True)
    assert max(hashed) < 100_000
    for _ in range(3):
        reader.section("a")
    assert [size for size in hashed if size >= 100_000] == [100_000]
    reader.verify()
    assert [size for size in hashed if size >= 100_000] == [100_000, 200_000]


def test_threads_wait_for_one_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = BlobReader(make_blob({"a": bytes(2_000_000)}))
    hashed = counting_hashes(monkeypatch)
    start = threading.Barrier(8)
    seen: list[int] = []

    def use() -> None:
        start.wait()
        seen.append(len(reader.section("a")))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [2_000_000] * 8
    assert hashed == [2_000_000]


def test_sections_that_are_verified_ahead_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {str(index): bytes([index]) * 500_000 for index in range(8)}
    reader = BlobReader(make_blob(sections))
    hashed = counting_hashes(monkeypatch)
    reader.verify_ahead()
    assert {name: bytes(reader.section(name)) for name in sections} == sections
    assert hashed == [500_000] * 8


def test_damage_that_is_found_ahead_is_raised_where_it_is_used() -> None:
    blob = bytearray(make_blob(SECTIONS))
    blob[-1] ^= 1
    reader = BlobReader(bytes(blob))
    reader.verify_ahead()
    for thread in threading.enumerate():
        if thread.name == "engine-blob":
            thread.join()
    with pytest.raises(BlobCorruptError, match="section 'last'"):
        reader.section("last")
    assert reader.section("weights") == SECTIONS["weights"]


@pytest.mark.parametrize("kind", KINDS)
def test_views_outlive_the_reader(kind: str, tmp_path: Path) -> None:
    source, options = opened_from(kind, make_blob(SECTIONS), tmp_path)
    with BlobReader(source, **options) as reader:
        view = reader.section("weights")
        array = np.frombuffer(view, np.uint8)
    reader.close()
    with pytest.raises(BlobError, match="after close"):
        reader.section("weights")
    assert reader.manifest.device == "TEMPLATE"
    del reader, view
    assert array.tobytes() == SECTIONS["weights"]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_the_mapping_goes_with_its_last_view(tmp_path: Path) -> None:
    path = tmp_path / "mapped.blob"
    make_writer(SECTIONS).write_file(path)

    def is_mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    reader = BlobReader(path, mmap=True)
    view = reader.section("weights")
    reader.close()
    assert is_mapped()
    del view
    assert not is_mapped()


@pytest.mark.parametrize("kind", KINDS)
def test_nested_blobs_are_read_in_place(kind: str, tmp_path: Path) -> None:
    inner = make_blob({"weights": b"w" * 100}, device="CPU")
    source, options = opened_from(kind, make_blob({"x": b"1", "part0": inner}, device="HETERO"), tmp_path)
    outer = BlobReader(source, **options)
    part = outer.section("part0")
    with BlobReader(part) as reader:
        assert reader.manifest.device == "CPU"
        weights = np.frombuffer(reader.section("weights"), np.uint8)
    outer.close()
    assert weights.tobytes() == b"w" * 100
    part_start = np.frombuffer(part, np.uint8).ctypes.data
    assert part_start < weights.ctypes.data < part_start + len(part)
    if kind in ("path", "mmap", "stream", "pipe"):
        assert weights.ctypes.data % ALIGNMENT == 0


# Memory


def forged_size(manifest_size: int, blob_size: int) -> bytes:
    blob = bytearray(make_blob(SECTIONS))
    blob[16:32] = struct.pack("<QQ", manifest_size, blob_size)
    blob[64:96] = hashlib.sha256(blob[:64]).digest()
    return bytes(blob)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("manifest_size", [2**24, 2**34, 2**63, 2**64 - 1])
@pytest.mark.parametrize("blob_size", [2048, 2**34, 2**64 - 1])
def test_forged_header_sizes_allocate_nothing(kind: str, manifest_size: int, blob_size: int, tmp_path: Path) -> None:
    source, options = opened_from(kind, forged_size(manifest_size, blob_size).ljust(2048, b"\0"), tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(BlobFormatError):
            BlobReader(source, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 2**20


def test_a_pipe_with_a_forged_section_allocates_as_much_as_it_sends() -> None:
    blob = make_blob({"a": bytes(2**20)})
    manifest_size = struct.unpack_from("<Q", blob, 16)[0]
    text = blob[HEADER_SIZE : HEADER_SIZE + manifest_size].replace(b'"size":1048576', b'"size":8589934592')
    data_start = -(-(HEADER_SIZE + len(text)) // 64) * 64
    head = blob[:16] + struct.pack("<QQ", len(text), data_start + 2**33) + hashlib.sha256(text).digest()
    forged = (head + hashlib.sha256(head).digest() + text).ljust(data_start, b"\0") + bytes(2**20)
    tracemalloc.start()
    try:
        with pytest.raises(BlobFormatError, match="the data ends at byte"):
            BlobReader(Pipe(forged))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("kind", ["path", "mmap", "stream", "bytes"])
def test_reading_takes_the_memory_of_the_sections_once(kind: str, tmp_path: Path) -> None:
    size = 32 * 2**20
    source, options = opened_from(kind, make_blob({"weights": bytes(size)}), tmp_path)
    tracemalloc.start()
    try:
        reader = BlobReader(source, **options)
        reader.verify()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (size if kind in ("path", "stream") else 0) + 3 * 2**20


def test_too_little_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.blob"
    make_writer({"weights": bytes(2**20)}).write_file(path)
    empty = np.empty

    def little(size: int, dtype: Any) -> Any:
        if size > 2**16:
            raise MemoryError
        return empty(size, dtype)

    monkeypatch.setattr(np, "empty", little)
    with pytest.raises(BlobError, match="cannot allocate 1048576 bytes; open a file with mmap=True"):
        BlobReader(path)
    with BlobReader(path, mmap=True) as reader:
        reader.verify()


# Compatibility


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mmap"])
def test_a_blob_of_this_host_is_compatible(kind: str, tmp_path: Path) -> None:
    source, _ = opened_from(kind, make_blob(SECTIONS), tmp_path)
    check = check_blob(
        source,
        device="TEMPLATE",
        plugin_name="engine-plugin-template",
        plugin_version="0.1.7",
        engine_version="0.1.9+local.2",
        api_version="1",
        available={"isa": ["sse2", "avx2", "fma"], "driver": "3.1", "more": "x"},
    )
    assert check.compatible
    assert check.reasons == ()
    check.require()
    assert check.manifest is not None
    assert check.manifest.sections[0].name == "weights"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "CPU"}, "device: the blob was compiled for 'TEMPLATE', this host has 'CPU'"),
        ({"plugin_name": "other"}, "plugin: the blob was compiled for 'engine-plugin-template', this host has 'other'"),
        ({"plugin_version": "0.2.0"}, "plugin version: the blob has 0.1.0, this host has 0.2.0"),
        ({"plugin_version": "1"}, "plugin version"),
        ({"engine_version": "1.1.0"}, "engine version: the blob has 0.1.0, this host has 1.1.0"),
        ({"api_version": "3"}, "plugin API version: the blob has 1, this host loads 2 and 3; compile the model again"),
        ({"api_version": "0"}, "plugin API version: the blob has 1, this host loads -1 and 0"),
        ({"available": {"isa": "avx2", "driver": "3.1"}}, "requirement 'isa': the blob needs fma, this host has avx2"),
        (
            {"available": {"isa": ["avx2", "fma"]}},
            "requirement 'driver': the blob needs 3.1, this host has no such",
        ),
        ({"available": {"isa": ["avx2", "fma"], "driver": "3.2"}}, "requirement 'driver': the blob needs 3.1, this"),
        ({"available": {"isa": [], "driver": ["3.1"]}}, "requirement 'isa': the blob needs avx2, fma, this host"),
    ],
)
def test_each_reason_is_named(changes: dict[str, Any], reason: str) -> None:
    check = check_blob(make_blob(SECTIONS), **changes)
    assert not check.compatible
    assert len(check.reasons) == 1
    assert reason in check.reasons[0]
    with pytest.raises(BlobIncompatibleError, match="compile the model again"):
        check.require()


def test_all_reasons_are_given_at_once() -> None:
    assert len(check_manifest(make_manifest(), engine_version="9.9", available={}).reasons) == 3
    # The needs of a blob for another device do not matter for this one.
    assert len(check_manifest(make_manifest(), device="CPU", engine_version="9.9", available={}).reasons) == 2


def test_versions_compare_by_major_and_minor() -> None:
    for of_blob, here, is_same in (("1", "1.0", True), ("1.10", "1.1", False), ("1.2rc1", "1.2", False)):
        check = check_manifest(make_manifest(engine_version=of_blob), engine_version=here)
        assert check.compatible is is_same


def test_checking_reads_header_and_manifest_only() -> None:
    blob = make_blob({"weights": bytes(100_000)})
    prologue = HEADER_SIZE + struct.unpack_from("<Q", blob, 16)[0]
    pipe = Pipe(blob)
    assert check_blob(pipe).compatible
    assert pipe.taken == prologue
    assert check_blob(Broken(blob, prologue, out_of_space)).compatible
    damaged = blob[:prologue] + b"\xff" * (len(blob) - prologue)
    assert check_blob(damaged).compatible


@pytest.mark.parametrize("kind", ["path", "bytes", "stream"])
def test_checking_compares_the_sections_with_the_size(kind: str, tmp_path: Path) -> None:
    source, _ = opened_from(kind, make_blob(SECTIONS)[:-1], tmp_path)
    with pytest.raises(BlobFormatError, match="truncated"):
        check_blob(source)
    source, _ = opened_from(kind, make_blob(SECTIONS) + b"1", tmp_path)
    if kind == "stream":
        assert check_blob(source).compatible
    else:
        with pytest.raises(BlobFormatError, match="1 bytes follow"):
            check_blob(source)


@pytest.mark.parametrize("damage", [b"", b"damage"])
def test_checking_puts_a_stream_back(damage: bytes) -> None:
    blob = damage + make_blob(SECTIONS)
    with io.BytesIO(blob) as plain, gzip.open(io.BytesIO(gzip.compress(blob))) as packed:
        for stream in (plain, packed):
            with pytest.raises(BlobFormatError) if damage else nullcontext():
                check_blob(stream)
            assert stream.tell() == 0


def test_files_that_begin_as_a_blob_does(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not is_blob(path)
    assert not is_blob(tmp_path)
    for content, expected in ((b"", False), (b"\x93EBLOB\r\n", True), (b"\x93EBLOB", False), (b"onnx model", False)):
        path.write_bytes(content)
        assert is_blob(path) is expected


def test_a_real_pipe_between_threads() -> None:
    blob = make_blob({"weights": bytes(range(256)) * 20_000})
    read_end, write_end = os.pipe()

    def send() -> None:
        with open(write_end, "wb", buffering=0) as sink:
            make_writer({"weights": bytes(range(256)) * 20_000}).write(sink)

    sender = threading.Thread(target=send)
    sender.start()
    with open(read_end, "rb", buffering=0) as stream:
        source: BinaryIO = stream
        assert read_all(source) == read_all(blob)
    sender.join()


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=300), max_size=6))
def test_any_sections_come_back(sections: dict[str, bytes]) -> None:
    blob = make_blob(sections)
    assert read_all(blob) == sections
    assert list(read_all(Pipe(blob, piece=11))) == list(sections)
    for section in BlobReader(blob).manifest.sections:
        assert section.offset % ALIGNMENT == 0


# Generations of the format


def test_the_first_generation_is_read_and_written_as_it_was() -> None:
    """Its manifest has no preferences, and a requirement that looks like a window is a value."""
    blob = make_blob(SECTIONS, generation=1, requirements={"driver": ">=3"})
    assert struct.unpack_from("<Q", blob, 8)[0] == 1
    assert b"preferences" not in blob
    with BlobReader(blob) as reader:
        assert (reader.manifest.generation, reader.manifest.preferences) == (1, {})
        assert {name: bytes(reader.section(name)) for name in reader.section_names} == SECTIONS
    assert check_blob(blob, available={"driver": ">=3"}).compatible
    assert not check_blob(blob, available={"driver": "3.5"}).compatible
    with pytest.raises(BlobError, match="the first generation has none"):
        make_blob(SECTIONS, generation=1, preferences={"driver": "3"})
    for wrong in (0, 3, True, "2"):
        with pytest.raises(BlobError, match=r"manifest\.generation: expected 1\.\.2"):
            make_manifest(generation=wrong)


@pytest.mark.parametrize("number", [1, 5])
def test_a_manifest_of_the_other_generation_is_refused(number: int) -> None:
    """The number in the header says which fields there are."""
    blob = bytearray(make_blob(SECTIONS, generation=2 if number == 1 else 1))
    blob[8:16] = struct.pack("<Q", number)
    blob[64:96] = hashlib.sha256(blob[:64]).digest()
    problem = "unknown key 'preferences'" if number == 1 else "missing preferences"
    with pytest.raises(BlobFormatError, match=problem):
        BlobReader(bytes(blob))


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        (">=3.1,<4", ["3.1", "3.1.0", "3.10", "3.99 beta"], ["3.0.9", "3", "4", "4.0", "", "driver 3.5"]),
        (">=3", ["3", "3.0", "03.1", "400"], ["2.9", "0"]),
        ("<4.0", ["3.9.9", "0"], ["4", "4.0.1", "5"]),
    ],
)
def test_a_window_of_versions(window: str, inside: list[str], outside: list[str]) -> None:
    manifest = make_manifest(requirements={"driver": window}, preferences={"driver": window})
    for version in inside:
        assert check_manifest(manifest, available={"driver": version}).answer is BlobAnswer.RUNS, version
    for version in outside:
        (reason,) = check_manifest(manifest, available={"driver": version}).reasons
        assert f"requirement 'driver': the blob needs {window}, this host has {version or ''}" in reason
    assert check_manifest(manifest, available={"driver": [outside[0], inside[0]]}).compatible, "one of several"
    (reason,) = check_manifest(manifest, available={}).reasons
    assert f"the blob needs {window}, this host has no such feature" in reason


@pytest.mark.parametrize(
    "wrong", [">", ">3", "<", ">=", ">=3,", ">=a", "<3,>=2", ">=3<4", "<=4", ">=3,<4,<5", ">= 3", ">=1." * 20]
)
def test_what_is_not_a_window_is_refused(wrong: str) -> None:
    for field in ("requirements", "preferences"):
        with pytest.raises(BlobError, match=rf"manifest.{field}\['driver'\]: .* is not a window of versions; expected"):
            make_manifest(**{field: {"driver": ["3", wrong]}})


def test_unmet_preferences_are_advice() -> None:
    manifest = make_manifest(requirements={"isa": "avx2"}, preferences={"isa": ["avx2", "fma"], "plans": "7"})
    best = {"isa": ["avx2", "fma"], "plans": "7"}
    assert check_manifest(manifest, available=best).answer == "runs"
    check = check_manifest(manifest, available={**best, "plans": "8"})
    assert check.compatible
    assert check.answer is BlobAnswer.RECOMPILE
    assert check.answer == "runs; recompile to be faster"
    assert check.advice == ("plans: the blob was made for 7, this host has 8; compiled again here, it is faster",)
    assert len(check_manifest(manifest, available={"isa": ["avx2"]}).advice) == 2
    refused = check_manifest(manifest, available={"isa": ["sse2"], "plans": "8"})
    assert (refused.answer, len(refused.reasons), len(refused.advice)) == (BlobAnswer.NO, 1, 2)
    assert check_manifest(manifest, device="OTHER", available={}).advice == ()


@pytest.mark.parametrize(
    ("of_blob", "here", "loads"),
    [
        ("0.1.7", "0.1.0", True), ("0.1.0", "0.2.5", True), ("0.2.0", "0.1.9", False), ("0.1.0", "0.3.0", False),
        ("0.9.0", "1.0.0", False), ("1.0.0", "1.1.0", True), ("0+source", "0+source", True), ("what", "0.1.0", False),
    ],
)  # fmt: skip
def test_the_versions_of_engines_whose_blobs_load(of_blob: str, here: str, loads: bool) -> None:
    """Those of the same minor release and of the one before; plugins' only if they say so."""
    manifest = make_manifest(engine_version=of_blob, plugin_version=of_blob)
    check = check_manifest(manifest, engine_version=here)
    assert check.compatible is loads
    if not loads:
        assert f"engine version: the blob has {of_blob}, this host has {here}, which loads blobs of" in check.reasons[0]
        assert check.reasons[0].endswith(f"compile the model again and export it with {here}")
    of_plugin = check_manifest(manifest, plugin_version=here)
    assert of_plugin.compatible is (loads and of_blob.split(".")[:2] == here.split(".")[:2])
    if loads:
        assert check_manifest(manifest, plugin_version=here, oldest_version=of_blob).compatible
