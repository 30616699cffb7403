"""The corpus: plugins and blobs of earlier releases work, and compute what they did.

If these fail, a user who updates the engine loses the blobs in production, or the plugin of a vendor.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.errors import EngineError

CORPUS = Path(__file__).parent / "corpus"
RELEASES = sorted(path.parent for path in CORPUS.glob("*/corpus.json"))
LISTS = {folder: json.loads((folder / "corpus.json").read_text()) for folder in RELEASES}
BLOBS = [(folder, blob) for folder in RELEASES for blob in LISTS[folder]["blobs"]]
TOLERANCE = {"quantized": 0.0}
"""Its numbers are exact. The others multiply 72 numbers at most, of which none is above 10."""


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Core:
    """A core with the plugins of the release that the test names first."""
    for wheel in (request.node.callspec.params["folder"] / "plugins").iterdir():
        monkeypatch.syspath_prepend(wheel)
    return Core()


def options(folder: Path, blob: dict[str, Any], core: Core) -> dict[str, Any]:
    """The options of an import: keys and the file of weights. A signature is required where the blob has one."""
    if "sign" in blob:
        core.set_property({"TRUSTED_KEYS": [str(folder / f"{blob['sign']}.pub")], "REQUIRE_SIGNATURE": True})
    names = {"encrypt": "transform", "weights": "weights"}
    return {option: folder / blob[name] for name, option in names.items() if name in blob}


def assert_inferences(network: Any, values: Path) -> None:
    """The inferences of one request in order; it keeps the variables."""
    request, tolerance = network.create_infer_request(), TOLERANCE.get(values.stem, 1e-4)
    with np.load(values) as stored:
        steps = sorted({int(name.partition("/")[0]) for name in stored})
        for step in steps:
            given, expected = (
                {name.rpartition("/")[2]: stored[name] for name in stored if name.startswith(f"{step}/{kind}/")}
                for kind in ("in", "out")
            )
            result = request.infer(given)
            assert set(result) == set(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(result[name], value, rtol=tolerance, atol=tolerance, strict=True)


def skip_unless_loadable(folder: Path, blob: dict[str, Any], core: Core) -> None:
    if "CPU" in blob["device"] and platform.machine().lower() != LISTS[folder]["architecture"]:
        pytest.skip(f"its kernels are for {LISTS[folder]['architecture']}")
    if "OPENCL" in blob["device"] and "OPENCL" in core.unavailable_devices:
        pytest.skip("this machine has no OpenCL device")


@pytest.mark.parametrize("folder", RELEASES, ids=lambda each: each.name)
def test_the_corpus_is_unchanged(folder: Path) -> None:
    """What was frozen stays as it was, and no file is missing or new."""
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "corpus.json"
    }
    assert found == LISTS[folder]["sha256"]


@pytest.mark.parametrize(("folder", "blob"), BLOBS, ids=[f"{folder.name}-{blob['name']}" for folder, blob in BLOBS])
def test_a_blob_computes_what_it_did(core: Core, folder: Path, blob: dict[str, Any]) -> None:
    skip_unless_loadable(folder, blob, core)
    path, given = folder / "blobs" / f"{blob['name']}.blob", options(folder, blob, core)
    assert core.check_blob(path, **given).compatible
    assert_inferences(core.import_model(path, **given), folder / "values" / f"{blob['network']}.npz")


@pytest.mark.parametrize(
    ("folder", "device"),
    [(folder, device) for folder in RELEASES for device in ("FROZEN", "FROZEN_MADE", "FROZEN_BATCH:FROZEN(4)")],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_plugin_compiles_exports_and_imports(core: Core, folder: Path, device: str, tmp_path: Path) -> None:
    name = "any_images" if "BATCH" in device else "images"
    network = core.compile_model(folder / "models" / f"{name}.onnx", device)
    assert_inferences(network, folder / "values" / f"{name}.npz")
    network.release_memory()
    network.export_model(tmp_path / "network.blob")
    assert_inferences(core.import_model(tmp_path / "network.blob"), folder / "values" / f"{name}.npz")


@pytest.mark.parametrize(("folder", "blob"), BLOBS, ids=[f"{folder.name}-{blob['name']}" for folder, blob in BLOBS])
def test_a_damaged_blob_is_refused(core: Core, folder: Path, blob: dict[str, Any]) -> None:
    """A blob that is cut off, or has one wrong byte, is an error, on import or when it is run. A byte of a section that
    is not used, such as the reason why a blob has no program, changes no result.
    """
    skip_unless_loadable(folder, blob, core)
    whole, given = (folder / "blobs" / f"{blob['name']}.blob").read_bytes(), options(folder, blob, core)
    with np.load(folder / "values" / f"{blob['network']}.npz") as values:
        inputs, (expected, *_) = {"x": values["0/in/x"]}, [values[name] for name in values if "0/out/" in name]
    for length in range(0, len(whole), max(1, len(whole) // 8)):
        with pytest.raises(EngineError):
            core.import_model(whole[:length], **given)
    for place in range(0, len(whole), max(1, len(whole) // 24)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        try:
            (result,) = core.import_model(damaged, **given)(inputs).values()
        except EngineError:
            continue
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
