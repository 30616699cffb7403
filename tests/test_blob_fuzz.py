"""Damaged and forged blobs: each raises `BlobError`, never another exception, and none yields wrong contents."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blob import FORMAT_VERSION, BlobManifest, BlobReader, BlobWriter, check_blob
from engine.errors import BlobCorruptError, BlobError, BlobFormatError

HEADER = struct.Struct("<8sQQQ32s")
HEADER_SIZE = 96
SECTIONS = {"a": b"first section", "b": b"", "c": b"third" * 20}


def make_blob() -> bytes:
    manifest = BlobManifest(
        device="D",
        plugin_name="p",
        plugin_version="1.0",
        engine_version="1.0",
        api_version="1",
        requirements={"isa": ["x"]},
        config={"k": 1},
        inputs=[{"name": "x"}],
        outputs=[],
        metadata={},
    )
    writer = BlobWriter(manifest)
    for name, data in SECTIONS.items():
        writer.add_section(name, data)
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


BLOB = make_blob()
MANIFEST_SIZE = struct.unpack_from("<Q", BLOB, 16)[0]
MANIFEST = BLOB[HEADER_SIZE : HEADER_SIZE + MANIFEST_SIZE]
DATA = BLOB[-(-(HEADER_SIZE + MANIFEST_SIZE) // 64) * 64 :]


class Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._inner.read(size)


Read = Callable[[bytes], dict[str, bytes]]


def contents(reader: BlobReader) -> dict[str, bytes]:
    return {name: bytes(reader.section(name)) for name in reader.section_names}


@pytest.fixture(params=["bytes", "stream", "pipe", "path", "mmap"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Read:
    """Open a blob in one of the ways, and read every section."""

    def read(blob: bytes) -> dict[str, bytes]:
        if request.param in ("path", "mmap"):
            path = tmp_path / "a.blob"
            path.write_bytes(blob)
            return contents(BlobReader(path, mmap=request.param == "mmap"))
        source: Any = {"bytes": bytes, "stream": io.BytesIO, "pipe": Pipe}[request.param](blob)
        return contents(BlobReader(source))

    return read


def spell(manifest: Any) -> bytes:
    """Canonical JSON, also of what no manifest may hold."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sealed(manifest: bytes, data: bytes = DATA, blob_size: int | None = None) -> bytes:
    """A blob around any manifest whose hashes are right: what a forger can make."""
    start = -(-(HEADER_SIZE + len(manifest)) // 64) * 64
    size = start + len(data) if blob_size is None else blob_size
    head = HEADER.pack(BLOB[:8], FORMAT_VERSION, len(manifest), size, hashlib.sha256(manifest).digest())
    return (head + hashlib.sha256(head).digest() + manifest).ljust(start, b"\0") + data


def changed(**changes: Any) -> bytes:
    return spell({**json.loads(MANIFEST), **changes})


def with_section(index: int, **changes: Any) -> bytes:
    manifest = json.loads(MANIFEST)
    manifest["sections"][index].update(changes)
    return spell(manifest)


def test_the_forger_can_make_a_sound_blob() -> None:
    assert sealed(MANIFEST) == sealed(changed()) == BLOB
    assert contents(BlobReader(BLOB)) == SECTIONS


def test_every_truncation_is_detected(read: Read) -> None:
    for size in range(len(BLOB)):
        with pytest.raises(BlobFormatError, match=r"truncated|empty"):
            read(BLOB[:size])


def test_every_truncation_is_detected_by_a_check() -> None:
    for size in range(len(BLOB)):
        with pytest.raises(BlobFormatError):
            check_blob(BLOB[:size])
    for size in range(HEADER_SIZE + MANIFEST_SIZE):
        with pytest.raises(BlobFormatError):
            check_blob(Pipe(BLOB[:size]))


def test_every_flipped_bit_is_detected() -> None:
    for position in range(8 * len(BLOB)):
        blob = bytearray(BLOB)
        blob[position // 8] ^= 1 << position % 8
        with pytest.raises((BlobFormatError, BlobCorruptError)):
            contents(BlobReader(bytes(blob)))


def test_a_flipped_bit_in_every_byte_is_detected(read: Read) -> None:
    for position in range(len(BLOB)):
        blob = bytearray(BLOB)
        blob[position] ^= 0x10
        with pytest.raises((BlobFormatError, BlobCorruptError)):
            read(bytes(blob))


FORGED = [-1, -(2**63), 1, 63, 2**31, 2**40, 2**63 - 64, 2**63 - 1, 2**63, 2**64 - 64, 2**64, 10**30, 10**5000]
NOT_INTEGERS = [True, False, None, 64.0, 1e300, "64", [64], {"64": 64}]


def too_long_for_dumps(manifest: bytes, number: int) -> bytes:
    """`json.dumps` refuses the largest numbers, so they go into the text."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return manifest.replace(b'"FORGED"', str(number).encode())
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("number", FORGED, ids=lambda n: f"{'-' if n < 0 else ''}{n.bit_length()}bits")
@pytest.mark.parametrize("key", ["offset", "size"])
def test_forged_numbers_are_refused(key: str, number: int, read: Read) -> None:
    for index in range(len(SECTIONS)):
        manifest = too_long_for_dumps(with_section(index, **{key: "FORGED"}), number)
        for blob_size in (None, 2**64 - 1, max(0, number) % 2**64):
            # A size that stays within the padding moves nothing: then it is the content that is wrong.
            expected = BlobCorruptError if (key, number) in (("size", 1), ("size", 63)) else BlobFormatError
            with pytest.raises((expected, BlobFormatError)):
                read(sealed(manifest, blob_size=blob_size))


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
@pytest.mark.parametrize("key", ["offset", "size"])
def test_sizes_that_are_no_integers_are_refused(key: str, value: Any) -> None:
    for index in range(len(SECTIONS)):
        with pytest.raises(BlobFormatError, match=rf"sections\[{index}\].{key}: expected an integer in 0..2\*\*63-1"):
            BlobReader(sealed(with_section(index, **{key: value})))


@pytest.mark.parametrize("key", ["offset", "size"])
def test_the_largest_file_offset_is_the_limit(key: str) -> None:
    for number in (2**63 - 1, 2**63):
        is_named = f"{key}: expected an integer in 0..2**63-1" in str(refusal(sealed(with_section(0, **{key: number}))))
        assert is_named is (number == 2**63)


def refusal(blob: bytes) -> BlobFormatError:
    with pytest.raises(BlobFormatError) as caught:
        BlobReader(blob)
    return caught.value


@pytest.mark.parametrize("size", [0, 96, len(BLOB) - 1, len(BLOB) + 1, len(BLOB) + 64, 2**63, 2**64 - 1])
def test_a_forged_blob_size_is_refused(size: int, read: Read) -> None:
    with pytest.raises(BlobFormatError):
        read(sealed(MANIFEST, blob_size=size))


def test_sections_that_overlap_or_are_out_of_order_are_refused() -> None:
    sections = json.loads(MANIFEST)["sections"]
    sound = sealed(changed(sections=sections))
    assert sound == BLOB
    for wrong in (
        [{**sections[0]}, {**sections[2], "offset": 0}],
        [sections[2], sections[1], sections[0]],
        [sections[0], {**sections[1], "offset": 128}, sections[2]],
        [{**sections[0], "size": 65}, sections[1], sections[2]],
        [sections[0], {**sections[2], "offset": 32}],
    ):
        with pytest.raises(BlobFormatError, match=r"offset \d+, expected \d+: the first multiple of 64"):
            BlobReader(sealed(changed(sections=wrong)))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"", "not valid JSON"),
        (b"[]", "expected a JSON object, got list"),
        (b"{}", "missing api_version, config"),
        (b"nul", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"\xef\xbb\xbf" + MANIFEST, "not valid JSON"),
        (MANIFEST + b" ", "not in canonical form"),
        (b" " + MANIFEST, "not in canonical form"),
        (MANIFEST.replace(b'"k":1', b'"k": 1'), "not in canonical form"),
        (MANIFEST.replace(b'"k":1', b'"k":1.50'), "not in canonical form"),
        (MANIFEST.replace(b'"k":1', b'"k":-0'), "not in canonical form"),
        (MANIFEST.replace(b'"D"', b'"\\u0044"'), "not in canonical form"),
        (MANIFEST.replace(b'"D"', b'"\\ud800"'), "lone surrogate"),
        (MANIFEST.replace(b'"k":1', b'"k":NaN'), "NaN is not valid JSON"),
        (MANIFEST.replace(b'"k":1', b'"k":-Infinity'), "-Infinity is not valid JSON"),
        (MANIFEST.replace(b'"k":1', b'"k":1e999'), "cannot represent inf"),
        (MANIFEST.replace(b'"k":1', b'"k":1' + b"0" * 25), "outside -2"),
        (MANIFEST.replace(b'"k":1', b'"k":18446744073709551616'), "outside -2"),
        (MANIFEST.replace(b'"k":1', b'"k":-' + b"9" * 1_000_000), "outside -2"),
        (MANIFEST + b" " * 2**24, "expected at most 16777216"),
        (MANIFEST.replace(b'"k":1', b'"k":1,"k":1'), "key 'k' appears twice"),
        (MANIFEST.replace(b'"device":"D"', b'"device":"D","device":"D"'), "key 'device' appears twice"),
        (MANIFEST.replace(b'"k":1', b'"k":' + b"[" * 100_000 + b"]" * 100_000), "nested deeper"),
        (b"[" * 1_000_000, "nested deeper"),
        (b'{"a":' * 1_000_000, "nested deeper"),
        (b'"\\"' * 300_000, "not valid JSON"),
        (spell({**json.loads(MANIFEST), "extra": 1}), "unknown key 'extra'"),
        (with_section(0, extra=1), r"sections\[0\]: unknown key 'extra'"),
        (with_section(0, name=""), r"sections\[0\].name"),
        (with_section(0, name=5), r"sections\[0\].name"),
        (with_section(0, name="c"), "two sections are named 'c'"),
        (with_section(0, sha256="00"), r"sections\[0\].sha256"),
        (with_section(0, sha256="G" * 64), r"sections\[0\].sha256"),
        (with_section(2, sha256=None), r"sections\[2\].sha256"),
        (changed(sections={}), "manifest.sections: expected a list"),
        (changed(sections=[1]), r"sections\[0\]: expected an object"),
        (changed(device=3), "manifest.device"),
        (changed(config=[]), "manifest.config"),
        (changed(inputs=[1]), "manifest.inputs"),
        (changed(requirements={"isa": {}}), "manifest.requirements"),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else None,
)
def test_a_forged_manifest_is_refused(manifest: bytes, message: str) -> None:
    blob = sealed(manifest)
    for opening in (BlobReader, check_blob):
        with pytest.raises(BlobFormatError, match=message):
            opening(blob)


def test_deep_nesting_is_refused_whatever_the_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**9 // 2)
    try:
        with pytest.raises(BlobFormatError, match="nested deeper"):
            BlobReader(sealed(b"[" * 10_000_000))
    finally:
        sys.setrecursionlimit(limit)


def test_another_hash_of_a_section_is_corrupt() -> None:
    reader = BlobReader(sealed(with_section(0, sha256="0" * 64)))
    with pytest.raises(BlobCorruptError, match="section 'a'"):
        reader.section("a")


def test_padding_is_checked_between_sections(read: Read) -> None:
    data = bytearray(DATA)
    data[len(SECTIONS["a"])] = 1
    with pytest.raises(BlobFormatError, match="padding before section 'b'"):
        read(sealed(MANIFEST, bytes(data)))


def open_or_refuse(blob: bytes) -> dict[str, bytes] | None:
    """The contents, or None where the blob is refused as it should be."""
    try:
        check_blob(blob)
        return contents(BlobReader(blob))
    except BlobError:
        return None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(json.loads(MANIFEST))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert open_or_refuse(data) is None
    assert open_or_refuse(BLOB[:8] + data) is None
    assert open_or_refuse(sealed(data)) is None


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FIELDS), json_values)
def test_any_value_of_a_field_is_refused_or_read(field: str, value: Any) -> None:
    manifest = json.loads(MANIFEST)
    manifest[field] = value
    try:
        spelt = spell(manifest)
    except UnicodeEncodeError:
        return
    assert open_or_refuse(sealed(spelt)) in (None, SECTIONS) or field == "sections"


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, len(SECTIONS) - 1),
    st.sampled_from(["name", "offset", "size", "sha256"]),
    json_values | st.integers(0, 2**65),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_any_value_of_a_section_is_refused_or_read(index: int, key: str, value: Any, blob_size: int | None) -> None:
    original = json.loads(MANIFEST)["sections"][index][key]
    try:
        manifest = with_section(index, **{key: value})
    except UnicodeEncodeError:
        return
    read = open_or_refuse(sealed(manifest, blob_size=blob_size))
    is_unchanged = type(value) is type(original) and value == original
    assert read is None or key == "name" or is_unchanged


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(BLOB)), st.integers(0, 40), st.binary(max_size=40))
def test_any_splice_is_refused_or_changes_nothing(start: int, removed: int, inserted: bytes) -> None:
    blob = BLOB[:start] + inserted + BLOB[start + removed :]
    assert open_or_refuse(blob) == (SECTIONS if blob == BLOB else None)
