"""The check whether a blob loads here includes the blobs in it, the parts of AUTO, HETERO and BATCH.

If this fails, a blob passes the check of a build step, and the hosts in production refuse it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from engine import Core
from engine.blob import AesGcmKey, BlobManifest, BlobReader, BlobWeights, BlobWriter, is_blob
from engine.cli.main import main
from engine.errors import BlobError, BlobFormatError, EngineError

KEY = AesGcmKey("model-1", bytes(range(32)))
PARTS = {
    "AUTO:TEMPLATE": ["network"],
    "HETERO:TEMPLATE": ["part0"],
    "BATCH:TEMPLATE(2)": ["full", "rest"],
}


class Pipe:
    """A stream that can only be read on."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._stream.read(size)


def exported(device: str, **options: Any) -> bytes:
    x, y = (helper.make_tensor_value_info(name, 1, [2, 300]) for name in "xy")
    bias = numpy_helper.from_array(np.linspace(-1, 1, 300, dtype=np.float32), "bias")
    graph = helper.make_graph([helper.make_node("Add", ["x", "bias"], ["y"])], "g", [x], [y], [bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    stream = io.BytesIO()
    Core().compile_model(model, device).export_model(stream, **options)
    return stream.getvalue()


def rewritten(blob: bytes, change: Callable[[BlobManifest], BlobManifest], at: str = "", **options: Any) -> bytes:
    """The blob whose manifest, or that of the part in section `at`, is changed; all hashes are right."""
    with BlobReader(blob) as reader:
        manifest, sections = reader.manifest, {name: bytes(reader.section(name)) for name in reader.section_names}
    first, _, rest = at.partition("/")
    if first:
        sections[first] = rewritten(sections[first], change, rest)
    return written(manifest if first else change(manifest), sections, **options)


def written(manifest: BlobManifest, sections: dict[str, bytes], transform: Any = None) -> bytes:
    writer, stream = BlobWriter(manifest), io.BytesIO()
    for name, data in sections.items():
        writer.add_section(name, data)
    (writer if transform is None else writer.transformed(transform)).write(stream)
    return stream.getvalue()


def needing(**requirements: str) -> Callable[[BlobManifest], BlobManifest]:
    return lambda manifest: replace(manifest, requirements=requirements)


def reasons_and_import(blob: bytes, **options: Any) -> tuple[tuple[str, ...], EngineError | None]:
    """The answer of the check, and the failure of the import, which must agree."""
    check = Core().check_blob(blob, **options)
    try:
        Core().import_model(blob, **options)
    except EngineError as e:
        return check.reasons, e
    return check.reasons, None


@pytest.mark.parametrize("device", ["AUTO:TEMPLATE", "HETERO:TEMPLATE", "BATCH:TEMPLATE(2)"])
def test_requirements_of_every_part_count(device: str) -> None:
    blob = exported(device)
    check = Core().check_blob(blob)
    assert check.compatible
    assert [(part.name, part.manifest and part.manifest.device) for part in check.parts] == [
        (name, "TEMPLATE") for name in PARTS[device]
    ]
    for part in PARTS[device]:
        for change, reason in (
            (needing(isa="avx4096"), "requirement 'isa': the blob needs avx4096"),
            (needing(extensions="acme 1.0"), "the blob needs extension acme 1.0"),
            (lambda manifest: replace(manifest, device="ACME"), "no plugin provides device 'ACME'"),
            (lambda manifest: replace(manifest, engine_version="99.0.0"), "engine version: the blob has 99.0.0"),
            (lambda manifest: replace(manifest, config={**manifest.config, "DEVICE_ID": "9"}), "no device '9'"),
        ):
            reasons, error = reasons_and_import(rewritten(blob, change, part))
            assert error is not None
            assert [each.startswith(f"{part}: ") and reason in each for each in reasons] == [True]


@pytest.mark.parametrize(("device", "part"), [("TEMPLATE", ""), ("HETERO:TEMPLATE", "part0")])
def test_what_a_network_is_made_of_counts(device: str, part: str) -> None:
    """The hash of a forged manifest may be right."""
    blob = exported(device)
    assert reasons_and_import(blob) == ((), None)
    for entry in ({"overridable": 3}, {"overridable": [1]}, {"overridable": None}, {"network_name": 3},
                  {"variables": 3}, {"variables": [3]}, {"model_identity": 3}):  # fmt: skip
        changed = rewritten(blob, lambda found, entry=entry: replace(found, metadata={**found.metadata, **entry}), part)
        reasons, error = reasons_and_import(changed)
        assert isinstance(error, BlobFormatError), entry
        assert [reason.removeprefix(f"{part}: ") in str(error) for reason in reasons] == [True], (entry, reasons)
    for ports in ([{}], [{"name": 3}], [{"name": "x", "type": 3}]):
        for field in ({"inputs": ports}, {"outputs": ports}):
            reasons, error = reasons_and_import(rewritten(blob, lambda found, f=field: replace(found, **f), part))
            assert isinstance(error, BlobFormatError), field
            assert len(reasons) == 1, (field, reasons)


@pytest.mark.parametrize("kind", ["path", "bytes", "stream", "pipe", "encrypted", "bound"])
def test_parts_are_found_wherever_the_blob_is(kind: str, tmp_path: Path) -> None:
    blob = rewritten(exported("HETERO:TEMPLATE"), needing(isa="avx4096"), "part0")
    core, reason = Core(), "part0: requirement 'isa'"
    (tmp_path / "net.blob").write_bytes(blob)
    stream = io.BytesIO(b"before" + blob + b"after")
    stream.seek(6)
    encrypted = rewritten(exported("HETERO:TEMPLATE"), needing(isa="avx4096"), "part0", transform=KEY)
    sources: dict[str, Any] = {"path": tmp_path / "net.blob", "bytes": blob, "stream": stream, "pipe": Pipe(blob)}
    if kind == "encrypted":
        assert core.check_blob(encrypted, transform=KEY).reasons[0].startswith(reason)
        (found,) = core.check_blob(encrypted).reasons
        assert "pass the key" in found
    elif kind == "bound":
        with BlobReader(blob) as reader:
            manifest, sections = reader.manifest, {name: bytes(reader.section(name)) for name in reader.section_names}
        writer = BlobWriter(manifest)
        for name, data in sections.items():
            writer.add_section(name, data)
        bound = io.BytesIO()
        writer.bound_to(BlobWeights(tmp_path / "net.blob")).write(bound)
        assert core.check_blob(bound.getvalue(), weights=tmp_path / "net.blob").reasons[0].startswith(reason)
    else:
        assert core.check_blob(sources[kind]).reasons[0].startswith(reason)
        if kind == "stream":
            assert stream.tell() == 6, "the stream is put back"


def test_no_section_of_a_file_is_read(tmp_path: Path) -> None:
    """A blob on a slow disk may have many gigabytes."""
    manifest = BlobManifest("TEMPLATE", "TEMPLATE", "0.1.0", "0.1.0", "1", {}, {}, [], [], {})
    blob = written(manifest, {"a": bytes(1 << 20), "b": exported("TEMPLATE"), "c": bytes(1 << 20)})

    class Counting(io.BytesIO):
        total = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.total += len(data)
            return data

    stream = Counting(blob)
    assert [part.name for part in Core().check_blob(stream).parts] == ["b"]
    assert stream.total < 1 << 14


def test_a_part_in_a_part_is_named_by_its_way() -> None:
    inner = rewritten(exported("HETERO:TEMPLATE"), needing(isa="avx4096"), "part0")
    with BlobReader(exported("AUTO:TEMPLATE")) as reader:
        outer = reader.manifest
    check = Core().check_blob(written(outer, {"device": b"{}", "network": inner}))
    assert [part.name for part in check.parts] == ["network", "network/part0"]
    assert [reason.partition(":")[0] for reason in check.reasons] == ["network/part0"]


@pytest.mark.parametrize("device", ["HETERO:TEMPLATE", "BATCH:TEMPLATE(2)", "AUTO:TEMPLATE"])
def test_devices_that_are_listed_and_not_there(device: str) -> None:
    """HETERO and BATCH need what they list; AUTO leaves out what is not there, as long as its choice is."""
    listed = "TEMPLATE,ACME" if device.startswith("AUTO") else "ACME"
    blob = rewritten(exported(device), lambda manifest: replace(manifest, config={"DEVICE_PRIORITIES": listed}))
    reasons, error = reasons_and_import(blob)
    assert bool(reasons) is (error is not None) is (not device.startswith("AUTO"))
    assert all("no plugin provides device 'ACME'" in reason for reason in reasons)


def test_damaged_and_endless_parts_are_reasons() -> None:
    blob = exported("HETERO:TEMPLATE")
    with BlobReader(blob) as reader:
        manifest, sections = reader.manifest, {name: bytes(reader.section(name)) for name in reader.section_names}
    assert is_blob(sections["part0"])
    for damaged in (sections["part0"][:50], sections["part0"][:-1], sections["part0"][:100] + b"\xff" * 60):
        reasons, error = reasons_and_import(written(manifest, {**sections, "part0": damaged}))
        assert isinstance(error, BlobFormatError)
        assert [reason.startswith("part0: ") for reason in reasons] == [True]
    for _ in range(40):
        blob = written(manifest, {"part0": blob})
    check = Core().check_blob(blob)
    assert any("nested deeper than 16 levels" in reason for reason in check.reasons)
    with pytest.raises(BlobError):
        Core().check_blob(Pipe(exported("HETERO:TEMPLATE")[:-1]))


def test_inspect_shows_the_devices_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.blob"
    path.write_bytes(rewritten(exported("AUTO:TEMPLATE"), needing(isa="avx4096"), "network"))
    assert main(["inspect", str(path), "--html", str(tmp_path / "page.html")]) == 1
    shown = capsys.readouterr().out
    assert "part network: for TEMPLATE\npart network requires isa: avx4096\n" in shown
    assert "loads here: NO\n  network: requirement 'isa': the blob needs avx4096" in shown
    assert "for TEMPLATE; requires isa avx4096" in (tmp_path / "page.html").read_text()
