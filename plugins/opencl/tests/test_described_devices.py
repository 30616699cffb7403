"""Networks for devices that are described, and are not on the machine that compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_opencl.description import describe, described_facts
from engine_opencl.devices.device import find_devices

from engine import Core
from engine.errors import TargetError
from engine.testing.networks import seeded_network

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def target() -> str:
    return str(Core().get_property("OPENCL", "OWN_TARGET"))


def test_a_description_has_all_facts_of_a_device(target: str) -> None:
    facts = find_devices()[0].facts
    assert described_facts(target) == facts
    assert described_facts(describe(facts)) == facts


def test_a_machine_without_a_runtime_compiles_for_a_device(target: str, tmp_path: Path) -> None:
    network = seeded_network("resnet50", small=True)
    onnx.save(network.model, str(tmp_path / "model.onnx"))
    (tmp_path / "device.json").write_text(target)
    done = subprocess.run(
        [sys.executable, "-m", "engine", "compile", "model.onnx", "-d", "OPENCL", "--target", "@device.json"],
        cwd=tmp_path,
        env={**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "OCL_ICD_FILENAMES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = Core().import_model(tmp_path / "model.blob", config={"CACHE_DIR": ""})
    here = Core().compile_model(network.model, "OPENCL", {"CACHE_DIR": ""})
    for port in here.outputs:  # the same kernels
        assert np.array_equal(imported(network.inputs)[port.name], here(network.inputs)[port.name])


def test_the_network_refuses_requests(target: str) -> None:
    network = Core().compile_model(seeded_network("mlp", small=True).model, "OPENCL", target=target)
    with pytest.raises(TargetError, match="as it was described, and is not on a device: export the network"):
        network.create_infer_request()


def test_a_network_for_a_described_device_is_cached(target: str, tmp_path: Path) -> None:
    model = seeded_network("mlp", small=True).model
    for expected in (False, True):
        network = Core().compile_model(model, "OPENCL", {"CACHE_DIR": str(tmp_path)}, target=target)
        assert network.get_property("LOADED_FROM_CACHE") is expected
        with pytest.raises(TargetError):
            network.create_infer_request()
    changed = json.dumps({**json.loads(target), "compute_units": 1000})
    network = Core().compile_model(model, "OPENCL", {"CACHE_DIR": str(tmp_path)}, target=changed)
    assert not network.get_property("LOADED_FROM_CACHE")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "npu"}, "field 'kind' is 'npu'"),
        ({"memory": 0}, "field 'memory' is 0"),
        ({"memory": True}, "field 'memory' is True"),
        ({"has_fp64": 1}, "field 'has_fp64' is 1"),
        ({"max_work_items": []}, "field 'max_work_items'"),
        ({"matrix_unit": "wmma"}, "field 'matrix_unit'"),
        ({"name": ""}, "field 'name'"),
        ({"tensor_cores": 8}, "field 'tensor_cores' is unknown"),
    ],
)
def test_a_description_of_no_device(target: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(TargetError, match=problem):
        described_facts(json.dumps({**json.loads(target), **changes}))


@pytest.mark.parametrize("text", ["", "gpu", "[]", "{}", "3", "x86-64:avx2", "[" * 100000])
def test_a_target_that_is_no_description(text: str) -> None:
    with pytest.raises(TargetError, match="--describe"):
        described_facts(text)


def test_what_does_not_go_with_a_described_device(target: str) -> None:
    core, model = Core(), seeded_network("mlp", small=True).model
    with pytest.raises(TargetError, match="COMPILE_EFFORT is quick"):
        core.compile_model(model, "OPENCL", {"COMPILE_EFFORT": "quick"}, target=target)
    with core.create_context("OPENCL") as context, pytest.raises(TargetError, match="on a device of this machine"):
        core.compile_model(model, context, target=target)
    with pytest.raises(TargetError, match="TEMPLATE compiles for this machine only"):
        core.compile_model(model, "HETERO:OPENCL,TEMPLATE", target=target)
