"""The corpus: plugins and blobs of earlier releases work, and compute what they did.

If these fail, a user who updates the engine loses the blobs in production, or the plugin of a vendor.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from engine_cpu import CpuPlugin

from engine import Core
from engine.blob import BlobAnswer, BlobCheck, BlobReader, BlobWriter
from engine.errors import BlobIncompatibleError, EngineError
from engine.hosting import version
from tests.testing.made_plugins import SOME_CHECKS

CORPUS = Path(__file__).parent / "corpus"
RELEASES = sorted(path.parent for path in CORPUS.glob("*/corpus.json"))
LISTS = {folder: json.loads((folder / "corpus.json").read_text()) for folder in RELEASES}
BLOBS = [(folder, blob) for folder in RELEASES for blob in LISTS[folder]["blobs"]]
NAMES = [f"{folder.name}-{blob['name']}" for folder, blob in BLOBS]
ALL = pytest.mark.parametrize(("folder", "blob"), BLOBS, ids=NAMES)
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
    given = {"weights": folder / blob["weights"]} if "weights" in blob else {}
    return given | ({"transform": private(folder / blob["encrypt"])} if "encrypt" in blob else {})


_PRIVATE = TemporaryDirectory()


def private(key: Path) -> Path:
    """A copy of a key that only its owner reads: a checkout has no such modes, and other keys are refused."""
    copy = Path(_PRIVATE.name, key.name)
    copy.write_bytes(key.read_bytes())
    copy.chmod(0o600)
    return copy


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


def assert_loads_or_says_why(core: Core, folder: Path, blob: dict[str, Any], refused: str = "") -> BlobCheck:
    """A blob computes what it did, or the check and the import refuse it for the reason `refused` and say the way out.

    Without kernels for it, or with other formats of packed weights, blobs for CPU without plain weights are refused.
    """
    skip_unless_loadable(folder, blob, core)
    path, given = folder / "blobs" / f"{blob['name']}.blob", options(folder, blob, core)
    check = core.check_blob(path, **given)
    if check.answer is not BlobAnswer.NO:
        assert_inferences(core.import_model(path, **given), folder / "values" / f"{blob['network']}.npz")
        return check
    kernels = r"requirement '(isa|architecture|packed weights)': the blob needs .*"
    for reason in check.reasons:
        assert re.fullmatch(rf"([\w/]+: )?({refused or kernels}); compile the model again and export it .*", reason), (
            reason
        )
    assert refused or ("CPU" in blob["device"] and not blob["name"].endswith(("-source", "-bound")))
    with pytest.raises(BlobIncompatibleError):
        core.import_model(path, **given)
    return check


def skip_unless_loadable(folder: Path, blob: dict[str, Any], core: Core) -> None:
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


@ALL
def test_a_blob_computes_what_it_did(core: Core, folder: Path, blob: dict[str, Any]) -> None:
    assert_loads_or_says_why(core, folder, blob)


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


@ALL
def test_a_damaged_blob_is_refused(core: Core, folder: Path, blob: dict[str, Any]) -> None:
    """A blob that is cut off, or has one wrong byte, is an error, on import or when it is run. A byte of a section that
    is not used, such as the reason why a blob has no program, changes no result.
    """
    skip_unless_loadable(folder, blob, core)
    if core.check_blob(folder / "blobs" / f"{blob['name']}.blob", **options(folder, blob, core)).reasons:
        pytest.skip("this machine has no kernels for it")
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


# -- other versions and machines --------------------------------------------------------------------------------

ALL = pytest.mark.parametrize(
    ("folder", "blob"), BLOBS, ids=[f"{folder.name}-{blob['name']}" for folder, blob in BLOBS]
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Have the engine state another version."""

    def change(minor: int) -> None:
        monkeypatch.setattr(version, "installed_distributions", lambda: {"engine-sdk": f"0.{minor}.0"})
        version.engine_version.cache_clear()

    yield change
    monkeypatch.undo()
    version.engine_version.cache_clear()


@ALL
def test_the_next_minor_release_loads_a_blob(core: Core, folder: Path, blob: dict[str, Any], engine: Any) -> None:
    """Plans are for one version: where a blob has some, they are made again, from its graph."""
    engine(int(folder.name.partition(".")[2]) + 1)
    check = assert_loads_or_says_why(core, folder, blob)
    has_plans = blob["name"].startswith(("cpu-", "hetero", "auto", "batch")) and not blob["name"].endswith(
        ("-dynamic", "-source", "-bound", "-stateful", "-frozen")
    )
    if check.answer is not BlobAnswer.NO:
        assert any("plans: the blob was made for 0.1.0 " in each for each in check.advice) is has_plans


@ALL
def test_the_release_after_that_refuses_a_blob(core: Core, folder: Path, blob: dict[str, Any], engine: Any) -> None:
    skip_unless_loadable(folder, blob, core)
    engine(int(folder.name.partition(".")[2]) + 2)
    refused = r"engine version: the blob has 0\.1\.0, this host has 0\.3\.0, which loads blobs of 0\.2 to 0\.3: .*"
    check = core.check_blob(folder / "blobs" / f"{blob['name']}.blob", **options(folder, blob, core))
    assert any(re.match(refused, reason) for reason in check.reasons)
    with pytest.raises(BlobIncompatibleError, match=refused):
        core.import_model(folder / "blobs" / f"{blob['name']}.blob", **options(folder, blob, core))


OTHER_MACHINES = {
    "packed weights": {"packed weights": "999"},
    "architecture": {"architecture": "another"},
    "isa": {"isa": ["generic"]},
}


@pytest.mark.parametrize(
    "name", ["cpu-packed", "cpu-source", "cpu-dynamic", "cpu-dynamic-source", "cpu-bound", "hetero"]
)
@pytest.mark.parametrize("change", OTHER_MACHINES)
@pytest.mark.parametrize("folder", RELEASES, ids=lambda each: each.name)
def test_a_blob_with_plain_weights_is_compiled_again(
    core: Core,
    folder: Path,
    name: str,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kernels are for another machine, or read weights in another form: the others are refused."""
    features = CpuPlugin.host_features
    monkeypatch.setattr(CpuPlugin, "host_features", lambda *args: {**features(*args), **OTHER_MACHINES[change]})
    (blob,) = [blob for blob in LISTS[folder]["blobs"] if blob["name"] == name]
    check = assert_loads_or_says_why(core, folder, blob)
    if name.endswith(("source", "bound")):
        assert check.answer is BlobAnswer.RECOMPILE
        path, given = folder / "blobs" / f"{name}.blob", options(folder, blob, core)
        with caplog.at_level("WARNING", "engine.cpu"):
            network = core.import_model(path, **given)
        said = "the blob was compiled for x86_64 with avx2, formats of weights 6, and is compiled again on each import"
        assert any(said in record.getMessage() for record in caplog.records)
        assert any(said in remark for remark in network.remarks)
        made = io.BytesIO()
        network.export_model(made)
        assert network.get_metric("INSTRUCTION_SET") == core.import_model(made.getvalue()).get_metric("INSTRUCTION_SET")
    else:
        assert any(f"requirement '{change}': " in reason for reason in check.reasons)


@pytest.mark.parametrize("folder", RELEASES, ids=lambda each: each.name)
def test_plans_of_another_format_are_made_again(core: Core, folder: Path) -> None:
    """Also if the version is the same, as in a build between two releases."""
    with BlobReader(folder / "blobs" / "cpu-packed.blob") as reader:
        writer, stream = BlobWriter(reader.manifest), io.BytesIO()
        for name in reader.section_names:
            data = bytes(reader.section(name))
            writer.add_section(name, data.replace(b'{"format":"3', b'{"format":"2', 1) if name == "program" else data)
        writer.write(stream)
    if core.check_blob(stream.getvalue()).compatible:
        assert_inferences(core.import_model(stream.getvalue()), folder / "values" / "images.npz")


@pytest.mark.parametrize("device", ["FROZEN", "FROZEN_MADE"])
@pytest.mark.parametrize("folder", RELEASES, ids=lambda each: each.name)
def test_the_conformance_kit_finds_no_fault_in_a_plugin(folder: Path, device: str, tmp_path: Path) -> None:
    """Some checks of the plugin's behaviour."""
    report = tmp_path / "score.json"
    paths = [*(folder / "plugins").iterdir(), *filter(None, sys.path)]
    command = [sys.executable, "-m", "engine", "conformance", device, "-k", SOME_CHECKS, "--json", str(report)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    score = json.loads(report.read_text())
    assert score["score"] == 100, score["mend_first"]
    assert sum(each["outcome"] == "passed" for each in score["checks"]) > 10


HERE = [
    (network, device, {}) for network in ("images", "tokens", "quantized") for device in ("CPU", "HETERO:CPU", "OPENCL")
]
HERE += [("images", "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}), ("tokens", "CPU", {"EXPORT_PACKED_WEIGHTS": False})]


@pytest.mark.filterwarnings("ignore:.*INFERENCE_PRECISION_HINT is bf16")
@pytest.mark.parametrize(("network", "device", "config"), HERE)
def test_a_blob_that_was_just_made_needs_no_new_compilation(network: str, device: str, config: dict[str, Any]) -> None:
    """Advice that is always given would not be read. It is the same for a blob of a blob."""
    core, made = Core(), [io.BytesIO(), io.BytesIO()]
    if device in core.unavailable_devices:
        pytest.skip(f"{device} is missing")
    core.compile_model(RELEASES[-1] / "models" / f"{network}.onnx", device, config).export_model(made[0])
    core.import_model(made[0].getvalue()).export_model(made[1])
    for blob in made:
        check = core.check_blob(blob.getvalue())
        assert check.answer is BlobAnswer.RUNS, (*check.reasons, *check.advice)
