"""Checks of exported networks: they import correctly, in this and another process, or are refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
import pytest

from engine.blob import BlobAnswer, BlobManifest, BlobReader, BlobWriter, make_key_files
from engine.core import Core
from engine.errors import (
    BlobError,
    BlobIncompatibleError,
    BlobSignatureError,
    EngineError,
    PropertyError,
    UnsupportedError,
)
from engine.plugin_api import ExecutableNetwork
from engine.testing.behaviour.base import DeviceChecks, run_python
from engine.testing.behaviour.cases import CASES, Case, Sample

# Manifest entries of another machine, device or version, and a word of the reason.
_FOREIGN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "device": ({"device": "FOREIGN", "plugin_name": "FOREIGN"}, "FOREIGN"),
    "plugin version": ({"plugin_version": "987.6"}, "987.6"),
    "engine version": ({"engine_version": "987.6"}, "987.6"),
    "API version": ({"api_version": "987"}, "987"),
    "requirements": ({"requirements": {"feature": ["that no machine has"]}}, "that no machine has"),
}

_IN_ANOTHER_PROCESS = """
import json, sys
import numpy as np
from engine.core import Core

blob, device, config, inputs, outputs = sys.argv[1:]
network = Core().import_model(blob, device, json.loads(config))
with np.load(inputs) as given:
    result = network(dict(given))
np.savez(outputs, **result)
said = {"name": network.name, "config": dict(network.config), "metric": network.get_metric("NETWORK_NAME")}
print(json.dumps(said, default=dict))
"""


class ExportImportChecks(DeviceChecks):
    """An imported network equals the exported one; damaged or foreign blobs are reported as such."""

    area: ClassVar[str] = "export"

    def test_import_from_path_bytes_and_stream(self, core: Core, tmp_path: Path) -> None:
        """All forms, with and without the device; a stream is read exactly to the end of the blob."""
        blob, path = self._blob(core), tmp_path / "network.blob"
        path.write_bytes(blob)
        followed = io.BytesIO(b"before" + blob + b"after")
        followed.seek(6)
        sample = self.basic.sample()
        for source in (path, str(path), blob, bytearray(blob), memoryview(blob), followed):
            self.assert_outputs(core.import_model(source, self.device)(sample.inputs), sample.outputs)
        assert followed.read() == b"after"
        self.assert_outputs(core.import_model(blob)(sample.inputs), sample.outputs)

    def test_export_to_path_and_stream(self, core: Core, tmp_path: Path) -> None:
        """Both hold the same network, which needs no new compilation here; an existing file is replaced; an imported
        network can be exported again.
        """
        self.require_export(core)
        network, stream, path = self.compile(core, self.basic.model()), io.BytesIO(), tmp_path / "network.blob"
        path.write_bytes(b"what was there before")
        network.export_model(stream)
        network.export_model(path)
        second = tmp_path / "second.blob"
        core.import_model(path, self.device).export_model(str(second))
        sample = self.basic.sample()
        for blob in (stream.getvalue(), path, second):
            check = core.check_blob(blob, self.device)
            assert check.answer is BlobAnswer.RUNS, (*check.reasons, *check.advice)
            self.assert_outputs(core.import_model(blob, self.device)(sample.inputs), sample.outputs)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["network.blob", "second.blob"]

    def test_configuration_travels_and_is_overridden(self, core: Core) -> None:
        """The exported values, overridden by those given on import; defaults of the core change neither."""
        blob = self._blob(core, PERF_COUNT=True, NUM_STREAMS=2)
        core.set_property({"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 3})
        kept = core.import_model(blob, self.device)
        changed = core.import_model(blob, self.device, {"NUM_STREAMS": 1, "PERF_COUNT": False})
        names = ("PERF_COUNT", "NUM_STREAMS", "PERFORMANCE_HINT")
        assert [kept.get_config(name) for name in names] == [True, 2, "THROUGHPUT"]
        assert [changed.get_config(name) for name in names] == [False, 1, "THROUGHPUT"]
        request = kept.create_infer_request()
        self.assert_outputs(request.infer(self.basic.sample().inputs), self.basic.sample().outputs)
        assert request.profiling_info.stages
        for wrong in ({"NUM_STREAMS": "2"}, {"STREAMS": 2}):
            with pytest.raises(PropertyError, match="NUM_STREAMS"):
                core.import_model(blob, self.device, wrong)

    def test_description_of_ports_travels(self, core: Core) -> None:
        """Layout and preprocessing of inputs and outputs, which the application set on the model."""
        self.require_export(core)
        model, blob = core.read_model(self.basic.model()), io.BytesIO()
        model.parameter("a").rt_info.update(layout="NC", preprocess={"mean": [0.5, 0.25], "order": "RGB"})
        model.result("total").rt_info["layout"] = "CN"
        network = core.compile_model(model, self.device, dict(self.config))
        network.export_model(blob)
        imported = core.import_model(blob.getvalue(), self.device)
        for one in (network, imported):
            assert (one.inputs[0].layout, one.inputs[1].layout, one.outputs[0].layout) == ("NC", "", "CN")
            assert one.inputs[0].preprocess == {"mean": [0.5, 0.25], "order": "RGB"}
        assert (imported.inputs, imported.outputs) == (network.inputs, network.outputs)

    def test_import_in_another_process(self, core: Core, tmp_path: Path) -> None:
        """The other process has only the blob."""
        blob, sample = tmp_path / "network.blob", self.basic.sample(3)
        blob.write_bytes(self._blob(core, PERF_COUNT=True, NUM_STREAMS=2))
        said, result = self._run_elsewhere(blob, sample, tmp_path, {"NUM_STREAMS": 1})
        assert (said["name"], said["metric"]) == ("basic", "basic")
        assert (said["config"]["PERF_COUNT"], said["config"]["NUM_STREAMS"]) == (True, 1)
        self.assert_outputs(result, sample.outputs)

    @pytest.mark.parametrize("case", [case for case in CASES if case.name in ("convolution", "loop")], ids=str)
    def test_case_in_another_process(self, core: Core, case: Case, tmp_path: Path) -> None:
        """An imported blob computes the same in another process, with weights and bodies."""
        self.require_export(core)
        blob = tmp_path / "network.blob"
        self.compile_or_skip(core, case).export_model(blob)
        _, result = self._run_elsewhere(blob, case.samples[0], tmp_path, {})
        self.assert_outputs(result, case.samples[0].outputs)

    def test_export_does_not_disturb_the_network(self, core: Core) -> None:
        """A request keeps its tensors, and a failing export to a stream changes nothing."""
        self.require_export(core)
        network, sample = self.compile(core, self.basic.model()), self.basic.sample()
        request, whole = network.create_infer_request(), io.BytesIO()
        request.infer(sample.inputs)
        network.export_model(whole)
        for limit in (0, 1, len(whole.getvalue()) // 2, len(whole.getvalue()) - 1):
            with pytest.raises(BlobError) as caught:
                network.export_model(cast(BinaryIO, _FullDisk(limit)))
            assert isinstance(caught.value.__cause__, OSError)
            self.assert_outputs(request.infer(), sample.outputs)
        self.assert_outputs(core.import_model(whole.getvalue(), self.device)(sample.inputs), sample.outputs)

    def test_failed_export_leaves_no_file(self, core: Core, tmp_path: Path) -> None:
        """No file remains under the final name or another one; an existing file is kept."""
        self.require_export(core)
        network = self.compile(core, self.basic.model())
        for target in (tmp_path / "no such folder" / "network.blob", tmp_path):
            with pytest.raises(EngineError):
                network.export_model(target)
        assert list(tmp_path.iterdir()) == []

    def test_truncated_blob_is_refused(self, core: Core) -> None:
        """A blob that is cut off at any length is refused with a `BlobError`."""
        blob = self._blob(core)
        lengths = {*range(0, 128, 7), *range(128, len(blob), max(1, len(blob) // 48)), len(blob) - 1}
        for length in lengths:
            with pytest.raises(BlobError):
                core.import_model(blob[:length], self.device)

    def test_flipped_bit_is_found(self, core: Core) -> None:
        """On import, or at the latest when the bytes are first used: no wrong result, and no crash."""
        blob, sample = self._blob(core), self.basic.sample()
        for position in {*range(96), *range(96, len(blob), max(1, len(blob) // 160)), len(blob) - 1}:
            damaged = bytearray(blob)
            damaged[position] ^= 1 << position % 8
            with pytest.raises(BlobError):
                core.import_model(damaged, self.device)(sample.inputs)

    @pytest.mark.parametrize("what", _FOREIGN)
    def test_foreign_blob_is_refused(self, core: Core, what: str) -> None:
        """By import and by the manifest check, with the reason."""
        changes, expected = _FOREIGN[what]
        blob = _rewritten(self._blob(core), manifest=lambda manifest: replace(manifest, **changes))
        with pytest.raises(BlobIncompatibleError, match=expected):
            core.import_model(blob, self.device)
        check = core.check_blob(blob, self.device)
        assert not check.compatible
        assert any(expected in reason for reason in check.reasons)

    def test_sections_that_are_not_ours(self, core: Core) -> None:
        """A missing, empty or random section with a valid hash: an error or a result, never a crash."""
        blob, sample = self._blob(core), self.basic.sample()
        randomness = np.random.default_rng(0)
        for name in BlobReader(blob).section_names:
            for change in (lambda data: None, lambda data: b"", lambda data: randomness.bytes(len(data))):
                forged = _rewritten(blob, sections={name: change})
                try:
                    network = core.import_model(forged, self.device)
                    result = network(sample.inputs)
                except EngineError:
                    continue
                assert [value.shape for value in result.values()] == [self.basic.shape] * 2

    @pytest.mark.parametrize("what", [b"", b"\x08\x08\x12\x04onnx", b"\0" * 4096, "model"])
    def test_what_is_no_blob_is_refused(self, core: Core, what: Any, tmp_path: Path) -> None:
        """An empty file, an ONNX model, zeros; from memory and from a path; a path that does not exist."""
        self.require_export(core)
        data = self.basic.model().SerializeToString() if what == "model" else what
        path = tmp_path / "network.blob"
        path.write_bytes(data)
        for source in (data, path, io.BytesIO(data), tmp_path / "missing.blob", tmp_path):
            with pytest.raises(BlobError):
                core.import_model(source, self.device)

    def test_cached_network(self, core: Core, tmp_path: Path) -> None:
        """With CACHE_DIR, the second compilation is loaded from the cache, reports so, and computes the same."""
        self.require_export(core)
        sample = self.basic.sample()
        for is_cached in (False, True):
            network = self.compile(Core(), self.basic.model(), CACHE_DIR=str(tmp_path), PERF_COUNT=True)
            assert network.get_metric("LOADED_FROM_CACHE") is is_cached
            assert network.get_config("PERF_COUNT") is True
            self.assert_outputs(network(sample.inputs), sample.outputs)

    def test_signed_blob(self, core: Core, tmp_path: Path) -> None:
        """Where signatures are required, a signed blob is imported with all that it contains, and an unsigned one is
        refused.
        """
        self.require_export(core)
        key, blob = tmp_path / "key", io.BytesIO()
        make_key_files(key, "behaviour", "hmac-sha256")
        self.compile(core, self.basic.model()).export_model(blob, sign=key)
        unsigned = self._blob(core)
        core.set_property({"TRUSTED_KEYS": [str(key)], "REQUIRE_SIGNATURE": True})
        sample = self.basic.sample()
        self.assert_outputs(core.import_model(blob.getvalue(), self.device)(sample.inputs), sample.outputs)
        with pytest.raises(BlobSignatureError):
            core.import_model(unsigned, self.device)

    def test_export_that_is_not_declared_is_refused(self, core: Core, network: ExecutableNetwork) -> None:
        """A device without IMPORT_EXPORT_SUPPORT refuses an export and writes nothing."""
        if core.get_property(self.device, "IMPORT_EXPORT_SUPPORT"):
            pytest.skip(f"{self.device} declares IMPORT_EXPORT_SUPPORT; the other checks of this group apply")
        blob = io.BytesIO()
        with pytest.raises(UnsupportedError, match=self.plugin_name):
            network.export_model(blob)
        assert blob.getvalue() == b""

    def _blob(self, core: Core, **config: object) -> bytes:
        self.require_export(core)
        blob = io.BytesIO()
        self.compile(core, self.basic.model(), **config).export_model(blob)
        return blob.getvalue()

    def _run_elsewhere(
        self, blob: Path, sample: Sample, folder: Path, config: Mapping[str, object]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, outputs = folder / "inputs.npz", folder / "outputs.npz"
        np.savez(inputs, **sample.inputs)
        said = run_python(_IN_ANOTHER_PROCESS, str(blob), self.device, json.dumps(config), str(inputs), str(outputs))
        with np.load(outputs) as result:
            return json.loads(said), dict(result)


class _FullDisk:
    """A stream that fails after `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def write(self, data: memoryview) -> int:
        if len(data) > self._left:
            raise OSError(28, "No space left on device")
        self._left -= len(data)
        return len(data)


def _rewritten(
    blob: bytes,
    *,
    manifest: Callable[[BlobManifest], BlobManifest] = lambda manifest: manifest,
    sections: Mapping[str, Callable[[memoryview], bytes | None]] | None = None,
) -> bytes:
    """A blob with a changed manifest or changed sections, and valid sizes and hashes; None drops a section."""
    reader, target = BlobReader(blob), io.BytesIO()
    writer = BlobWriter(manifest(reader.manifest))
    for name in reader.section_names:
        data: bytes | memoryview | None = reader.section(name)
        if sections and name in sections:
            data = sections[name](cast(memoryview, data))
        if data is not None:
            writer.add_section(name, data)
    writer.write(target)
    return target.getvalue()
