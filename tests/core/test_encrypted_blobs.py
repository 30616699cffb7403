"""Blobs whose sections are encrypted: with the key, one gets the network; without it, an error and no content."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, EngineError
from engine.blob import AesGcmKey, BlobManifest, BlobReader, BlobWriter, SectionTransform, make_key_files
from engine.blob.encryption import PIECE
from engine.blob.transform import Transformed
from engine.errors import BlobCorruptError, BlobError, BlobSignatureError, BlobTransformError
from engine.testing.models import light_input, light_model

KEY = AesGcmKey("model-1", bytes(range(32)))
OTHER = AesGcmKey("model-1", bytes(32))
DEVICES = ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE")


def manifest(**metadata: Any) -> BlobManifest:
    return BlobManifest("D", "D", "1", "1", "1", {}, {}, [], [], metadata)


def written(sections: dict[str, bytes], transform: SectionTransform = KEY, **metadata: Any) -> bytes:
    writer = BlobWriter(manifest(**metadata))
    for name, data in sections.items():
        writer.add_section(name, data)
    stream = io.BytesIO()
    writer.transformed(transform).write(stream)
    return stream.getvalue()


def written_without_seal(sections: dict[str, bytes], transform: SectionTransform = KEY, **metadata: Any) -> bytes:
    """A blob as engines wrote it before format version 3."""
    entry = {"name": transform.name, "id": os.urandom(16).hex()}
    described = replace(manifest(transform=entry, **metadata), generation=1)
    writer, context = BlobWriter(described), Transformed.of(described)
    assert context is not None
    for name, data in sections.items():
        writer.add_section(name, transform.apply(memoryview(data), context.of_section(name)))
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_key_files(folder / "right.key", "prod", "aes-256-gcm")
    make_key_files(folder / "wrong.key", "prod", "aes-256-gcm")
    make_key_files(folder / "other.key", "test", "aes-256-gcm")
    make_key_files(folder / "signing.key", "release", "hmac-sha256")
    return folder


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_travels_encrypted(device: str, keys: Path, tmp_path: Path) -> None:
    core, inputs = Core(), light_input("squeezenet")
    network = core.compile_model(light_model("squeezenet"), device)
    network.export_model(tmp_path / "plain.blob")
    network.export_model(tmp_path / "secret.blob", transform=keys / "right.key")
    imported = Core().import_model(tmp_path / "secret.blob", transform=keys / "right.key")
    (expected,), (result,) = network(inputs).values(), imported(inputs).values()
    np.testing.assert_array_equal(result, expected)
    with BlobReader(tmp_path / "plain.blob") as plain:
        content = [bytes(plain.section(name))[:64] for name in plain.section_names]
    secret = (tmp_path / "secret.blob").read_bytes()
    assert not any(each in secret for each in content), "no section is readable"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (None, r"stored by 'aes-256-gcm prod'; pass the key"),
        ("other.key", r"stored by 'aes-256-gcm prod'; the key or the transform that was passed is 'aes-256-gcm test'"),
        ("wrong.key", r"the seal of its manifest cannot be restored: it was not encrypted with this key"),
        ("signing.key", r"a key of hmac-sha256 signs, and cannot encrypt"),
        ("absent.key", r"absent.key cannot be read: No such file"),
    ],
)
def test_without_the_key_there_is_one_clear_error(keys: Path, tmp_path: Path, key: str | None, problem: str) -> None:
    core, path = Core(), tmp_path / "secret.blob"
    core.compile_model(light_model("squeezenet"), "TEMPLATE").export_model(path, transform=keys / "right.key")
    with pytest.raises(BlobTransformError, match=problem) as error:
        core.import_model(path, transform=None if key is None else keys / key)
    assert "\n" not in str(error.value)
    core.compile_model(light_model("squeezenet"), "TEMPLATE").export_model(tmp_path / "plain.blob")
    with pytest.raises(BlobTransformError, match="not stored by 'aes-256-gcm prod'; omit the key"):
        core.import_model(tmp_path / "plain.blob", transform=keys / "right.key")


def test_a_check_without_a_key_names_the_key(keys: Path, tmp_path: Path) -> None:
    core, path = Core(), tmp_path / "secret.blob"
    core.compile_model(light_model("squeezenet"), "TEMPLATE").export_model(path, transform=keys / "right.key")
    (reason,) = core.check_blob(path).reasons
    assert "'aes-256-gcm prod'" in reason
    assert core.check_blob(path, transform=keys / "right.key").compatible
    assert not core.check_blob(path, transform=keys / "other.key").compatible
    assert "seal" in core.check_blob(path, transform=keys / "wrong.key").reasons[0], "no section is read for this"


def test_an_encrypted_blob_is_signed_and_verified_without_the_key(keys: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret.blob"
    network = Core().compile_model(light_model("squeezenet"), "TEMPLATE")
    network.export_model(path, sign=keys / "signing.key", transform=keys / "right.key")
    core = Core()
    core.set_property({"TRUSTED_KEYS": [str(keys / "signing.key")], "REQUIRE_SIGNATURE": True})
    assert core.check_blob(path).is_trusted
    core.import_model(path, transform=keys / "right.key")
    with BlobReader(path) as reader:
        reader.verify()
    with pytest.raises(BlobSignatureError, match="encrypts, and cannot sign"):
        network.export_model(path, sign=keys / "right.key")


@pytest.mark.parametrize("size", [0, 1, 1000, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_every_size_survives(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    with BlobReader(written({"a": data}), transform=KEY) as reader:
        section = reader.section("a")
        assert section == data
        assert section.readonly
        if size:
            assert np.frombuffer(section, np.uint8).ctypes.data % 64 == 0
        assert reader.section("a") is section, "it is decrypted once"


def test_two_exports_share_no_bytes() -> None:
    first, second = (written({"a": bytes(4096)}) for _ in range(2))
    assert len(first) == len(second)
    assert first[-4096:] != second[-4096:]


CHANGES = ["flip", "cut a piece", "swap pieces", "swap sections", "another blob", "manifest"]


@pytest.mark.parametrize(
    ("has_seal", "change"),
    [
        *((False, change) for change in CHANGES),
        *((True, change) for change in (*CHANGES, "leave out", "add", "rename")),
    ],
)
def test_what_was_changed_is_not_decrypted(has_seal: bool, change: str) -> None:
    """Even with right hashes, as a forger would write: only data that was encrypted in this way, with this key, is used
    as content.

    Without a seal, as before format version 3, the first section that is used shows it; with one, the manifest.
    """
    data = {"a": bytes(PIECE + 5), "b": bytes(PIECE + 5)}
    blob = written(data) if has_seal else written_without_seal(data)
    with BlobReader(blob) as reader:
        stored = {s.name: blob[len(blob) - _data_size(reader) + s.offset :][: s.size] for s in reader.manifest.sections}
        found = reader.manifest
    piece = PIECE + 28
    match change:
        case "flip":
            stored["a"] = stored["a"][:100] + bytes([stored["a"][100] ^ 1]) + stored["a"][101:]
        case "cut a piece":
            stored["a"] = stored["a"][:piece]
        case "swap pieces":
            stored["a"] = stored["a"][piece:] + stored["a"][:piece]
        case "swap sections":
            stored["a"], stored["b"] = stored["b"], stored["a"]
        case "another blob":
            another = written(data) if has_seal else written_without_seal(data)
            with BlobReader(another) as reader:
                section = reader.manifest.sections[0]
                stored["a"] = another[len(another) - _data_size(reader) :][: section.size]
        case "manifest":
            found = BlobManifest(**{**found.to_dict(), "device": "E", "sections": (), "generation": found.generation})
        case "leave out":
            del stored["b"]
        case "add":
            stored["c"] = stored["b"]
        case "rename":
            stored["c"] = stored.pop("b")
    writer = BlobWriter(found)
    for name, content in stored.items():
        writer.add_section(name, content)
    stream = io.BytesIO()
    writer.write(stream)
    problem = "the seal" if has_seal else "section 'a'"
    with BlobReader(stream.getvalue(), transform=KEY) as reader, pytest.raises(BlobTransformError, match=problem):
        reader.section("a")


def _data_size(reader: BlobReader) -> int:
    last = reader.manifest.sections[-1]
    return last.offset + last.size


def test_damage_is_found_before_decrypting() -> None:
    blob = bytearray(written({"a": bytes(1000)}))
    blob[-1] ^= 1
    with BlobReader(bytes(blob), transform=KEY) as reader, pytest.raises(BlobCorruptError):
        reader.section("a")


class Compressing(SectionTransform):
    """A transform of a user's own, which need not be a cipher."""

    name = "zlib"

    def apply(self, data: memoryview, context: bytes) -> bytes:
        import zlib

        return zlib.compress(data)

    def restore(self, data: memoryview, context: bytes) -> bytes:
        import zlib

        return zlib.decompress(data)


class Failing(SectionTransform):
    name = "zlib"

    def apply(self, data: memoryview, context: bytes) -> bytes:
        raise ValueError("no device 7")

    restore = apply


def test_a_transform_of_ones_own(tmp_path: Path) -> None:
    core, inputs = Core(), light_input("squeezenet")
    network = core.compile_model(light_model("squeezenet"), "TEMPLATE")
    network.export_model(tmp_path / "small.blob", transform=Compressing())
    imported = core.import_model(tmp_path / "small.blob", transform=Compressing())
    np.testing.assert_array_equal(*(next(iter(each(inputs).values())) for each in (network, imported)))
    with pytest.raises(BlobTransformError, match="no device 7"):
        core.import_model(tmp_path / "small.blob", transform=Failing())
    with pytest.raises(BlobTransformError, match="no device 7"):
        network.export_model(tmp_path / "failed.blob", transform=Failing())
    assert not (tmp_path / "failed.blob").exists()


SEALS = [3, None, "x", "0", "AB", ["00"]]


@pytest.mark.parametrize(
    "entry", [3, {}, {"name": 3}, "aes", [1], {"name": 3, "seal": ""}, *({"name": "n", "seal": each} for each in SEALS)]
)
def test_a_forged_manifest_is_an_error(entry: object) -> None:
    stream = io.BytesIO()
    BlobWriter(manifest(transform=entry)).write(stream)
    with pytest.raises(BlobError):
        BlobReader(stream.getvalue())


def test_keys_are_not_shown() -> None:
    assert repr(KEY) == "<AesGcmKey model-1>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        __import__("pickle").dumps(KEY)
    with pytest.raises(EngineError, match="expected 32 bytes"):
        AesGcmKey("short", b"abc")
    assert OTHER.name == KEY.name


class _Nameless(SectionTransform):
    def apply(self, data: memoryview, context: bytes) -> memoryview:
        return data

    def restore(self, data: memoryview, context: bytes) -> Any:
        return None


class _RestoresNothing(_Nameless):
    name = "nothing"


def test_a_transform_without_a_name_or_content_is_named(tmp_path: Path) -> None:
    network, blob = Core().compile_model(light_model("squeezenet"), "TEMPLATE"), tmp_path / "network.blob"
    with pytest.raises(BlobTransformError, match=r"_Nameless\.name is None; expected text"):
        network.export_model(blob, transform=_Nameless())
    assert not blob.exists()
    network.export_model(blob, transform=_RestoresNothing())
    with pytest.raises(BlobTransformError, match="'nothing' restored no bytes: it returned NoneType"):
        Core().import_model(blob, transform=_RestoresNothing())
