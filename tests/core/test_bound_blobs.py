"""Blobs without weights: bound by hashes to the model's file or to another blob, and equal to complete blobs."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine import Core
from engine.blob import BlobManifest, BlobReader, BlobWeights, BlobWriter
from engine.core.weights import open_weights
from engine.errors import BlobCorruptError, BlobError, BlobFormatError, BlobIncompatibleError, EngineError
from engine.testing.models import light_input, light_model

ORIGINAL: dict[str, dict[str, Any]] = {"TEMPLATE": {}, "CPU": {"EXPORT_PACKED_WEIGHTS": False}}
"""Devices whose blobs have weights as the model has them, and how."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in one file, and the same one with its data beside it."""
    folder = tmp_path_factory.mktemp("models")
    model = light_model("squeezenet")
    onnx.save(model, folder / "model.onnx")
    onnx.save(model, folder / "beside.onnx", save_as_external_data=True, location="beside.data", size_threshold=1024)
    return folder


def result_of(network: Any) -> Any:
    (value,) = network(light_input("squeezenet")).values()
    return value


@pytest.mark.parametrize("name", ["model.onnx", "beside.onnx"])
@pytest.mark.parametrize("device", ORIGINAL)
def test_a_blob_is_bound_to_the_model(folder: Path, tmp_path: Path, device: str, name: str) -> None:
    network = Core().compile_model(folder / name, device, ORIGINAL[device])
    network.export_model(tmp_path / "whole.blob")
    network.export_model(tmp_path / "bound.blob", weights=folder / name)
    sizes = [os.path.getsize(tmp_path / f"{each}.blob") for each in ("whole", "bound")]
    assert sizes[1] < sizes[0] / 50
    imported = Core().import_model(tmp_path / "bound.blob", weights=folder / name)
    np.testing.assert_array_equal(result_of(imported), result_of(network))


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_networks_of_one_model_share_the_weights_of_a_blob(folder: Path, tmp_path: Path, device: str) -> None:
    core = Core()
    first = core.compile_model(folder / "model.onnx", device)
    second = core.compile_model(folder / "model.onnx", device, {"NUM_STREAMS": 2})
    first.export_model(tmp_path / "first.blob")
    second.export_model(tmp_path / "second.blob", weights=tmp_path / "first.blob")
    assert os.path.getsize(tmp_path / "second.blob") < os.path.getsize(tmp_path / "first.blob") / 50
    imported = core.import_model(tmp_path / "second.blob", weights=tmp_path / "first.blob")
    assert imported.get_config("NUM_STREAMS") == 2
    np.testing.assert_array_equal(result_of(imported), result_of(first))
    imported.export_model(tmp_path / "again.blob")
    np.testing.assert_array_equal(result_of(core.import_model(tmp_path / "again.blob")), result_of(first))


def test_sections_of_a_blob_are_used_in_place(tmp_path: Path) -> None:
    data = np.arange(10_000, dtype=np.uint8)
    writer = BlobWriter(BlobManifest("D", "D", "1", "1", "1", {}, {}, [], [], {}))
    writer.add_section("weights", data)
    writer.write_file(tmp_path / "whole.blob")
    weights = BlobWeights(tmp_path / "whole.blob")
    writer.bound_to(weights).write_file(tmp_path / "bound.blob")
    for is_in_place in (True, False):
        weights.is_used_in_place = is_in_place
        with BlobReader(tmp_path / "bound.blob", weights=weights) as reader:
            assert reader.section_names == ("weights",)
            section = np.frombuffer(reader.section("weights"), np.uint8)
            np.testing.assert_array_equal(section, data)
            mapped = np.frombuffer(weights._data, np.uint8)
            assert np.shares_memory(section, mapped) is is_in_place
            assert section.ctypes.data % 64 == 0


def test_the_file_is_needed_and_must_be_the_same(folder: Path, tmp_path: Path) -> None:
    core, model = Core(), tmp_path / "model.onnx"
    model.write_bytes((folder / "model.onnx").read_bytes())
    core.compile_model(model, "TEMPLATE").export_model(tmp_path / "bound.blob", weights=model)
    with pytest.raises(BlobIncompatibleError, match=r"no weights of its own; pass the file .* `model\.onnx`"):
        core.import_model(tmp_path / "bound.blob")
    assert "no weights of its own" in core.check_blob(tmp_path / "bound.blob").reasons[0]
    assert core.check_blob(tmp_path / "bound.blob", weights=model).compatible
    with pytest.raises(BlobError, match="no such file"):
        core.import_model(tmp_path / "bound.blob", weights=tmp_path / "absent.onnx")
    changed = bytearray(model.read_bytes())
    changed[len(changed) // 2] ^= 1
    (tmp_path / "changed.onnx").write_bytes(changed)
    with pytest.raises(BlobCorruptError, match=r"changed\.onnx, whose content has changed since"):
        result_of(core.import_model(tmp_path / "bound.blob", weights=tmp_path / "changed.onnx"))
    (tmp_path / "short.onnx").write_bytes(model.read_bytes()[:100_000])
    with pytest.raises(BlobError, match="truncated"):
        result_of(core.import_model(tmp_path / "bound.blob", weights=tmp_path / "short.onnx"))
    core.compile_model(model, "TEMPLATE").export_model(tmp_path / "whole.blob")
    with pytest.raises(BlobIncompatibleError, match="has all its weights; omit the file"):
        core.import_model(tmp_path / "whole.blob", weights=model)
    core.compile_model(model, "TEMPLATE").export_model(tmp_path / "to_blob.blob", weights=tmp_path / "whole.blob")
    with pytest.raises(BlobFormatError, match="exported with"):
        core.import_model(tmp_path / "to_blob.blob", weights=model)


def test_a_file_that_has_nothing_of_the_blob(folder: Path, tmp_path: Path) -> None:
    network = Core().compile_model(folder / "model.onnx", "CPU")  # whose weights are packed
    with pytest.raises(BlobError, match=r"model\.onnx does not contain any of the blob's \d+ sections"):
        network.export_model(tmp_path / "bound.blob", weights=folder / "model.onnx")
    (tmp_path / "text").write_text("no model")
    with pytest.raises(BlobError, match="neither a blob nor a model"):
        network.export_model(tmp_path / "bound.blob", weights=tmp_path / "text")
    assert not (tmp_path / "bound.blob").exists()


@pytest.mark.parametrize("given", [3, b"model.onnx", None])
def test_a_file_of_weights_is_a_path(folder: Path, given: Any) -> None:
    with pytest.raises(BlobError, match=f"expected the path of .*; got {type(given).__name__}"):
        open_weights(given)


def test_a_blob_does_not_replace_the_file_of_its_weights(folder: Path, tmp_path: Path) -> None:
    network = Core().compile_model(folder / "model.onnx", "TEMPLATE")
    network.export_model(tmp_path / "whole.blob")
    (tmp_path / "link.blob").symlink_to("whole.blob")
    before = (tmp_path / "whole.blob").read_bytes()
    for target in ("whole.blob", "link.blob"):
        with pytest.raises(BlobError, match=r"would replace .*whole\.blob, which has its weights"):
            network.export_model(tmp_path / target, weights=tmp_path / "whole.blob")
    assert (tmp_path / "whole.blob").read_bytes() == before


def test_a_bound_blob_can_be_encrypted(folder: Path, tmp_path: Path) -> None:
    from engine.blob import AesGcmKey

    core, key, model = Core(), AesGcmKey("k", bytes(32)), folder / "model.onnx"
    network = core.compile_model(model, "TEMPLATE")
    network.export_model(tmp_path / "both.blob", weights=model, transform=key)
    imported = core.import_model(tmp_path / "both.blob", weights=model, transform=key)
    np.testing.assert_array_equal(result_of(imported), result_of(network))
    with pytest.raises(BlobError, match="cannot provide weights"):
        network.export_model(tmp_path / "c.blob", weights=tmp_path / "both.blob")


@pytest.mark.parametrize(
    "place",
    [
        {"file": "../secret", "start": 0},
        {"file": "/etc/passwd", "start": 0},
        {"file": "", "start": -1},
        {"file": "", "start": "0"},
        {"file": 3, "start": 0},
        {"file": "absent", "start": 0},
        {"file": "", "start": 2**62},
        {},
    ],
)
def test_a_forged_place_reads_nothing_else(folder: Path, tmp_path: Path, place: dict[str, Any]) -> None:
    """A stranger's blob cannot make the importer read files outside the folder of the model."""
    (tmp_path / "secret").write_bytes(bytes(2000))
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    section = {"name": "graph", "size": 2000, "sha256": "0" * 64, "place": place}
    forged = {"file": "model.onnx", "sections": [section]}
    stream = io.BytesIO()
    BlobWriter(BlobManifest("TEMPLATE", "TEMPLATE", "0.1.0", "0.1.0", "1", {}, {}, [], [], {"bound": forged})).write(
        stream
    )
    with pytest.raises(EngineError) as error:
        Core().import_model(stream.getvalue(), weights=inside / "model.onnx")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "forged",
    [
        3,
        {},
        {"file": "f", "sections": 3},
        {"file": "f", "sections": [3]},
        {"file": "f", "sections": [{"name": "a", "size": -1, "sha256": "0" * 64, "place": {}}]},
        {"file": "f", "sections": [{"name": "a", "size": 1, "sha256": "0", "place": {}}]},
        {"file": "f", "sections": [{"name": "a", "size": 1, "sha256": "0" * 64, "place": {}}] * 2},
    ],
)
def test_a_forged_manifest_is_an_error(forged: object) -> None:
    stream = io.BytesIO()
    BlobWriter(BlobManifest("D", "D", "1", "1", "1", {}, {}, [], [], {"bound": forged})).write(stream)
    with pytest.raises(BlobFormatError):
        BlobReader(stream.getvalue())
