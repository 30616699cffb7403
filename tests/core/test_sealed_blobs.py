"""A key's requirements on a blob cover everything that decides its result, including sections in another file.

If this fails, whoever can read a blob without weights makes another one that passes for its author's.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine import Core
from engine.blob import (
    FORMAT_VERSION,
    SEALED_FORMAT_VERSION,
    SEALED_SIGNED_FORMAT_VERSION,
    AesGcmKey,
    BlobManifest,
    BlobReader,
    BlobRelease,
    BlobWriter,
    HmacKey,
    make_key_files,
)
from engine.blob.bound import Bound
from engine.blob.transform import Transformed
from engine.core.weights import open_weights
from engine.errors import BlobError, BlobFormatError, BlobSignatureError, BlobTransformError

KEY = AesGcmKey("model-1", bytes(range(32)))
SIGNER = HmacKey("release-1", bytes(range(32)))
X = np.random.default_rng(5).standard_normal((2, 32)).astype(np.float32)
DEVICES = ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE", "AUTO:TEMPLATE", "BATCH:TEMPLATE(2)")


def two_products() -> bytes:
    """A model with two weights of one shape, which can change places, and which no pass merges."""
    r = np.random.default_rng(3)
    weights = [numpy_helper.from_array(r.standard_normal((32, 32)).astype(np.float32), name) for name in "ab"]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["t"]),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("MatMul", ["u", "b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [2, 32]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    return model


def bound_to(base: Path, **transform: Any) -> BlobManifest:
    """The manifest of a blob that has all its sections in `base`, where the two largest have changed places."""
    with BlobReader(base) as reader:
        manifest = reader.manifest
    sections = [{"name": s.name, "size": s.size, "sha256": s.sha256, "place": {}} for s in manifest.sections]
    first, second = sorted(sections, key=lambda s: -int(s["size"]))[:2]  # type: ignore[call-overload]
    first["name"], second["name"] = second["name"], first["name"]
    bound = {"file": base.name, "sections": sections}
    return replace(manifest, sections=(), metadata={**manifest.metadata, "bound": bound, **transform})


def written(manifest: BlobManifest, sections: dict[str, bytes] | None = None) -> bytes:
    if "transform" in manifest.metadata and "seal" not in manifest.metadata["transform"]:
        manifest = replace(manifest, generation=1, preferences={})  # the first had blobs without one
    writer, stream = BlobWriter(manifest), io.BytesIO()
    for name, data in (sections or {}).items():
        writer.add_section(name, data)
    writer.write(stream)
    return stream.getvalue()


def stored(blob: bytes) -> tuple[BlobManifest, dict[str, bytes]]:
    """The manifest, and the sections as they are in the blob."""
    with BlobReader(blob) as reader:
        sections = reader.manifest.sections
        start = len(blob) - max((s.offset + s.size for s in sections), default=0)
        return reader.manifest, {s.name: blob[start + s.offset :][: s.size] for s in sections}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    Core().compile_model(two_products(), "TEMPLATE").export_model(tmp_path / "base.blob")
    return tmp_path / "base.blob"


# -- encryption ---------------------------------------------------------------------------------------------------

FORGED_ENTRIES: dict[str, Callable[[BlobManifest], dict[str, Any]]] = {
    "as before there were seals": lambda honest: {"name": KEY.name, "id": "0" * 32},
    "without an id": lambda honest: {"name": KEY.name},
    "an empty seal": lambda honest: {"name": KEY.name, "id": "0" * 32, "seal": ""},
    "any seal": lambda honest: {"name": KEY.name, "id": "0" * 32, "seal": "00" * 60},
    "the seal of another blob": lambda honest: honest.metadata["transform"],
}


@pytest.mark.parametrize("entry", FORGED_ENTRIES)
def test_a_blob_that_nobody_encrypted_is_not_accepted_with_the_key(base: Path, tmp_path: Path, entry: str) -> None:
    """All its sections come from a plain blob, so that nothing in it needs the key."""
    Core().compile_model(two_products(), "TEMPLATE").export_model(tmp_path / "honest.blob", transform=KEY)
    honest, sections = stored((tmp_path / "honest.blob").read_bytes())
    manifest = bound_to(base, transform=FORGED_ENTRIES[entry](honest))
    listed = [s["name"] for s in manifest.metadata["bound"]["sections"]]
    genuine = {f"more {name}": data for name, data in sections.items() if f"more {name}" not in listed}
    for added in ({}, genuine):  # sections that somebody encrypted, and that nobody reads
        with pytest.raises(BlobTransformError) as error:
            Core().import_model(written(manifest, added), transform=KEY, weights=base)
        assert "\n" not in str(error.value)
        with BlobReader(written(manifest, added), transform=KEY, weights=open_weights(base)) as reader:
            for name in reader.section_names:
                with pytest.raises(BlobTransformError):
                    reader.section(name)


def test_sections_in_another_file_are_sealed_with_the_manifest(base: Path, tmp_path: Path) -> None:
    """In a blob that is encrypted and bound, neither the bound sections nor the file that has them can be exchanged."""
    core = Core()
    network = core.compile_model(two_products(), "TEMPLATE")
    network.export_model(tmp_path / "both.blob", transform=KEY, weights=base)
    imported = core.import_model(tmp_path / "both.blob", transform=KEY, weights=base)
    np.testing.assert_array_equal(imported({"x": X})["y"], network({"x": X})["y"])
    manifest, sections = stored((tmp_path / "both.blob").read_bytes())
    listed = manifest.metadata["bound"]["sections"]
    assert len(listed) >= 2
    first, second = listed[0]["name"], listed[1]["name"]
    swapped = [{**listed[0], "name": second}, {**listed[1], "name": first}, *listed[2:]]
    for changed in (swapped, listed[:1]):
        bound = {**manifest.metadata["bound"], "sections": changed}
        forged = written(replace(manifest, metadata={**manifest.metadata, "bound": bound}), sections)
        with pytest.raises(BlobTransformError, match="the seal"):
            core.import_model(forged, transform=KEY, weights=base)
    entry = {key: value for key, value in manifest.metadata["transform"].items() if key != "seal"}
    stripped = written(replace(manifest, metadata={**manifest.metadata, "transform": entry}), sections)
    with pytest.raises(BlobTransformError, match="cannot be restored"):  # it is not accepted as an older one
        core.import_model(stripped, transform=KEY, weights=base)


def before(manifest: BlobManifest, sections: dict[str, bytes]) -> bytes:
    """A blob as engines wrote it before there were seals."""
    metadata = {**manifest.metadata, "transform": {"name": KEY.name, "id": "1" * 32}}
    manifest = replace(manifest, metadata=metadata, generation=1, preferences={})
    context = Transformed.of(manifest)
    assert context is not None
    encrypted = {name: KEY.apply(memoryview(data), context.of_section(name)) for name, data in sections.items()}
    return written(manifest, encrypted)


def test_what_was_encrypted_before_is_read_where_a_section_proves_its_manifest(base: Path, tmp_path: Path) -> None:
    core = Core()
    network = core.compile_model(two_products(), "TEMPLATE")
    expected = network({"x": X})["y"]
    network.export_model(tmp_path / "whole.blob")
    network.export_model(tmp_path / "bound.blob", weights=base)
    for name, weights in (("whole.blob", None), ("bound.blob", base)):
        manifest, sections = stored((tmp_path / name).read_bytes())
        if weights is not None:
            assert Bound.of(manifest), "some sections are elsewhere"
        imported = core.import_model(before(manifest, sections), transform=KEY, weights=weights)
        np.testing.assert_array_equal(imported({"x": X})["y"], expected)
    forged = bound_to(base)
    assert Bound.of(forged)
    with pytest.raises(BlobTransformError, match=r"neither a seal nor a section .* anyone could have made it"):
        core.import_model(before(forged, {}), transform=KEY, weights=base)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_verifies_the_seal_before_it_reads(device: str) -> None:
    core, stream = Core(), io.BytesIO()
    network = core.compile_model(two_products(), device)
    network.export_model(stream, transform=KEY)
    np.testing.assert_array_equal(
        core.import_model(stream.getvalue(), transform=KEY)({"x": X})["y"], network({"x": X})["y"]
    )
    manifest, sections = stored(stream.getvalue())
    for changed in (
        replace(manifest, config={**manifest.config, "NUM_STREAMS": 7}),
        replace(manifest, outputs=[*manifest.outputs, *manifest.outputs]),
    ):
        with pytest.raises(BlobTransformError, match="the seal"):
            core.import_model(written(changed, sections), transform=KEY)


def test_a_part_of_an_encrypted_blob_has_no_sections_elsewhere(base: Path, tmp_path: Path) -> None:
    """A forged part in a plain HETERO blob reaches neither the key nor the file of weights."""
    core, stream = Core(), io.BytesIO()
    core.compile_model(two_products(), "HETERO:TEMPLATE").export_model(stream)
    manifest, sections = stored(stream.getvalue())
    name = next(name for name, data in sections.items() if data[1:6] == b"EBLOB")
    with pytest.raises(BlobError, match="no weights of its own"):
        core.import_model(written(manifest, {**sections, name: written(bound_to(base))}))


@pytest.mark.parametrize("sign", [None, SIGNER])
def test_the_format_version_says_whether_there_is_a_seal(base: Path, sign: Any) -> None:
    stream = io.BytesIO()
    Core().compile_model(two_products(), "TEMPLATE").export_model(stream, transform=KEY, sign=sign)
    blob = stream.getvalue()
    (version,) = struct.unpack_from("<Q", blob, 8)
    assert version == (SEALED_FORMAT_VERSION if sign is None else SEALED_SIGNED_FORMAT_VERSION)
    if sign is None:
        import hashlib

        head = blob[:8] + struct.pack("<Q", FORMAT_VERSION) + blob[16:64]
        with pytest.raises(
            BlobFormatError, match="format version 5 is for blobs without a seal, but the manifest has one"
        ):
            BlobReader(head + hashlib.sha256(head).digest() + blob[96:])


def test_weights_of_an_encrypted_blob_are_mapped_only_where_nobody_else_can_change_them(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(
        onnx.load_from_string(two_products()), model, save_as_external_data=True, location="data", size_threshold=16
    )
    core = Core()
    for exposed in (model, tmp_path / "data"):
        os.chmod(exposed, 0o666)
        assert core._weights(model).is_used_in_place, "nothing is verified by a key"  # type: ignore[union-attr]
        assert not core._weights(model, is_encrypted=True).is_used_in_place  # type: ignore[union-attr]
        os.chmod(exposed, 0o600)
    assert core._weights(model, is_encrypted=True).is_used_in_place  # type: ignore[union-attr]


# -- releases -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trusting(tmp_path: Path) -> Core:
    make_key_files(tmp_path / "sign.key", "release-1", "hmac-sha256")
    core = Core()
    core.set_property({"TRUSTED_KEYS": [str(tmp_path / "sign.key")]})
    return core


@pytest.mark.parametrize(
    ("stated", "required", "problem"),
    [
        ("net:7", "net:7", None),
        ("net:8", "net:7", None),
        ("net:6", "net:7", r"the blob is release net:6; expected net of version 7 or later"),
        ("other:9", "net:7", r"the blob is release other:9; expected net"),
        (None, "net:7", r"the blob states no release; expected net"),
        ("net:7", None, None),
    ],
)
def test_an_older_blob_or_another_does_not_take_the_place_of_one(
    trusting: Core, tmp_path: Path, stated: str | None, required: str | None, problem: str | None
) -> None:
    blob = tmp_path / "net.blob"
    network = trusting.compile_model(two_products(), "TEMPLATE")
    network.export_model(blob, sign=tmp_path / "sign.key", release=stated)
    check = trusting.check_blob(blob, release=required)
    assert check.is_trusted
    if problem is None:
        assert check.compatible
        trusting.import_model(blob, release=required)
    else:
        with pytest.raises(BlobSignatureError, match=problem):
            trusting.import_model(blob, release=required)
        assert problem[:20] in check.reasons[0]


def test_a_release_counts_only_with_the_signature(trusting: Core, tmp_path: Path) -> None:
    network, blob = trusting.compile_model(two_products(), "TEMPLATE"), tmp_path / "net.blob"
    with pytest.raises(BlobSignatureError, match="only a signed blob states one"):
        network.export_model(blob, release="net:7")
    assert not blob.exists()
    network.export_model(blob, sign=tmp_path / "sign.key", release="net:7")
    manifest, sections = stored(blob.read_bytes())
    later = {"name": "net", "version": 8}
    blob.write_bytes(written(replace(manifest, metadata={**manifest.metadata, "release": later}), sections))
    trusting.import_model(blob)
    for core in (trusting, Core()):
        with pytest.raises(BlobSignatureError, match="not signed, and release net:7 is required"):
            core.import_model(blob, release="net:7")
        assert not core.check_blob(blob, release="net:7").compatible


@pytest.mark.parametrize(
    "text", ["", "net", "net:", ":7", "net:-1", "net:x", "net:" + "9" * 19, "a b:1", "é:1", 7, None]
)
def test_what_is_not_a_release_is_named(text: Any) -> None:
    with pytest.raises(BlobSignatureError, match=r"release|version"):
        BlobRelease.parse(text)


@pytest.mark.parametrize("entry", [3, {}, {"name": "n"}, {"name": "n", "version": True}, {"name": "", "version": 1}])
def test_a_forged_release_is_an_error(entry: Any) -> None:
    with pytest.raises(BlobFormatError, match="invalid 'release'"):
        BlobRelease.of(BlobManifest("D", "D", "1", "1", "1", {}, {}, [], [], {"release": entry}))


def test_a_file_that_is_replaced_while_it_is_imported_is_an_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration comes from the first reading, which must be of the blob that is verified."""
    other = io.BytesIO()
    Core().compile_model(two_products(), "TEMPLATE", {"PERF_COUNT": True}).export_model(other)
    core = Core()
    resolve = core._settled

    def replaced(*args: Any) -> Any:
        base.write_bytes(other.getvalue())
        return resolve(*args)

    monkeypatch.setattr(core, "_settled", replaced)
    with pytest.raises(BlobError, match="was replaced while it was imported"):
        core.import_model(base)
