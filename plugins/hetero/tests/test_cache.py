"""CACHE_DIR: what changes the division of a model makes another entry, be it in a file or in the model.

If this fails, a user moves a node to another device, compiles again, and the node stays where it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from engine_hetero import set_affinity
from onnx import TensorProto, helper

from engine import Core
from engine.plugin_api import ExecutableNetwork


def chain() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y"))
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="first"), helper.make_node("Neg", ["a"], ["y"], name="last")]
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, Any]:
    return {"CACHE_DIR": str(tmp_path / "cache")}


def compiled(core: Core, config: dict[str, Any], model: Any = None, device: str = "HETERO:CPU,TEMPLATE") -> Any:
    network: ExecutableNetwork = core.compile_model(chain() if model is None else model, device, config)
    return network.loaded_from_cache, network.get_metric("SUBGRAPH_DEVICES")


def test_what_an_affinity_file_says_is_part_of_the_key(tmp_path: Path, cache: dict[str, Any]) -> None:
    core, file = Core(), tmp_path / "affinity.json"
    config = {**cache, "AFFINITY_FILE": str(file)}
    for device, division in (("CPU", ("CPU",)), ("TEMPLATE", ("CPU", "TEMPLATE"))):
        file.write_text(json.dumps({"last": device}))
        assert compiled(core, config) == (False, division)
        assert compiled(core, config) == (True, division)
    file.write_text(json.dumps({"last": "CPU"}))
    assert compiled(core, config) == (True, ("CPU",))


def test_the_times_that_were_measured_are_part_of_the_key(tmp_path: Path, cache: dict[str, Any]) -> None:
    core, file = Core(), tmp_path / "times.json"
    config = {**cache, "CALIBRATION_FILE": str(file)}
    for devices in ({}, {"CPU": {}}):
        file.write_text(json.dumps({"devices": devices}))
        assert compiled(core, config) == (False, ("CPU",))
        assert compiled(core, config) == (True, ("CPU",))


def test_the_affinity_in_a_model_is_part_of_the_key(cache: dict[str, Any]) -> None:
    core = Core()
    model = core.read_model(chain())
    for device, division in (("CPU", ("CPU",)), ("TEMPLATE", ("CPU", "TEMPLATE"))):
        set_affinity(model, {"last": device})
        assert compiled(core, cache, model) == (False, division)
        assert compiled(core, cache, model) == (True, division)


def test_the_configuration_of_single_devices_and_their_order_are_part_of_the_key(cache: dict[str, Any]) -> None:
    core = Core()
    assert compiled(core, cache) == (False, ("CPU",))
    for changed in (
        {"DEVICE_PROPERTIES": {"CPU": {"COMPILE_EFFORT": "quick"}}},
        {"PARTITION_STRATEGY": "rollback"},
        {"PARTITION_MODE": "connected"},
    ):
        assert compiled(core, {**cache, **changed}) == (False, ("CPU",))
    assert compiled(core, cache, device="HETERO:TEMPLATE,CPU") == (False, ("TEMPLATE",))
    core.set_property("CPU", {"COMPILE_EFFORT": "quick"})
    assert compiled(core, cache) == (False, ("CPU",))
    assert compiled(core, cache) == (True, ("CPU",))


def test_a_file_that_changes_during_a_compilation_is_not_stored_under_the_old_key(
    tmp_path: Path, cache: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    core, file = Core(), tmp_path / "affinity.json"
    config = {**cache, "AFFINITY_FILE": str(file)}
    file.write_text(json.dumps({"last": "TEMPLATE"}))
    from engine_hetero.network.compiling import Compiler

    compile_parts = Compiler.compile

    def changing(self: Compiler, *given: Any) -> Any:
        file.write_text(json.dumps({"last": "CPU"}))
        return compile_parts(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "compile", changing)
        assert compiled(core, config) == (False, ("CPU", "TEMPLATE"))
    file.write_text(json.dumps({"last": "TEMPLATE"}))
    assert not compiled(core, config)[0]


def test_cached_parts_need_no_signature(cache: dict[str, Any]) -> None:
    core = Core()
    core.set_property({"REQUIRE_SIGNATURE": True})
    assert compiled(core, cache, device="HETERO:CPU,TEMPLATE")[0] is False
    assert compiled(core, cache, device="HETERO:CPU,TEMPLATE")[0] is True
