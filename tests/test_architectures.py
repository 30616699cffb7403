"""Small networks as exporters write them give the results of onnxruntime on every device, at any length that is open.

`benchmarks/exports.py make` wrote the files: of at most 60 kB with their inputs, and one
of each other opset.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine import Core

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from exporting.check import check  # noqa: E402

FILES = sorted((ROOT / "tests" / "fixtures" / "architectures").glob("*.onnx"))
NAMES = [path.name.removesuffix(".onnx") for path in FILES]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_on_cpu(path: Path, core: Core) -> None:
    assert check(path, core, "CPU").problem == ""


# Each device gets other files, so that together they have many; all on all would take minutes.
_DEVICES = ("TEMPLATE", "HETERO:TEMPLATE,CPU", "OPENCL")
_ON_OTHERS = [
    pytest.param(path, device, id=f"{name}-{device}", marks=pytest.mark.opencl if device == "OPENCL" else ())
    for index, device in enumerate(_DEVICES)
    for path, name in list(zip(FILES, NAMES, strict=True))[index :: 3 * len(_DEVICES)]
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "device"), _ON_OTHERS)
def test_on_other_devices(path: Path, device: str, core: Core) -> None:
    found = check(path, core, device)
    # A device may refuse a node; its answer must not be wrong.
    assert not found.problem or found.problem.startswith("UnsupportedError"), found.problem


def test_the_files_cover_both_exporters_and_every_opset() -> None:
    kinds = {name.split(".")[1] for name in NAMES}
    assert {int(kind[6:]) for kind in kinds if kind.startswith(("script", "dynamo"))} == set(range(13, 25))
    assert {"skl2onnx", "onnxmltools", "tf2onnx"} <= {kind.rstrip("0123456789") for kind in kinds}
    assert any(name.endswith("dynamic") for name in NAMES)
