"""Core: device strings, configuration in its layers, export and import, and what goes wrong.

If these fail, a model lands on another device or with another configuration than its user asked for, or a fault of
a plugin reaches the user as something that cannot be caught or understood.
"""

from __future__ import annotations

import copy
import gc
import gzip
import io
import json
import mmap
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine import Core, EngineError
from engine.blob import BlobReader, BlobWriter
from engine.core.plugin_core import PluginCore
from engine.errors import (
    BlobCorruptError,
    BlobError,
    BlobFormatError,
    BlobIncompatibleError,
    DeviceNotFoundError,
    GraphError,
    ModelReadError,
    PluginConflictError,
    PluginContractError,
    PluginError,
    PluginLoadError,
    PropertyError,
)
from engine.ir import Model, Parameter, f32
from engine.plugin_api import CONFIG, Plugin, Property
from engine.properties import DEVICE_PRIORITIES

Scale = Any
"""The class of the test's own SCALE plugin."""


# -- models -----------------------------------------------------------------------------------------------------


def test_every_kind_of_source_gives_the_same_network(
    core: Core, model: onnx.ModelProto, x: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    data = model.SerializeToString()
    for source in (path, str(path), data, bytearray(data), io.BytesIO(data), model, core.read_model(path)):
        network = core.compile_model(source, "SCALE")
        np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
        assert network.get_property("NETWORK_NAME") == "scaling"


@pytest.mark.parametrize("source", ["no such file.onnx", b"", b"nonsense", 3, None])
def test_an_unreadable_model_is_a_model_error(core: Core, source: Any) -> None:
    for use in (core.read_model, lambda s: core.compile_model(s, "SCALE"), lambda s: core.query_model(s, "SCALE")):
        with pytest.raises(ModelReadError):
            use(source)


def test_a_malformed_graph_is_refused_before_the_plugin_sees_it(core: Core, scale: Scale) -> None:
    foreign = Parameter(f32, [2], "foreign")
    model = Model([foreign.output(0)], [Parameter(f32, [2], "x")])
    with pytest.raises(GraphError, match="foreign"):
        core.compile_model(model, "SCALE")
    with pytest.raises(GraphError, match="foreign"):
        core.query_model(model, "SCALE")
    assert scale.compiled == []


def test_query_answers_by_friendly_name(core: Core, model: onnx.ModelProto) -> None:
    answer = core.query_model(model, "SCALE")
    assert answer.is_supported
    assert "mul0" in answer


# -- device strings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("", "name is missing"),
        (":", "name is missing"),
        (".", "name is missing"),
        (".0", "name is missing"),
        ("SCALE.", "after the dot"),
        ("SCALE..1", "after the dot"),
        ("SCALE.0.1", "after the dot"),
        ("SCALE.0 ", "after the dot"),
        ("SCALE:", "list of devices"),
        ("SCALE:A,", "list of devices"),
        ("SCALE:A,,B", "list of devices"),
        ("SCALE:A:B", "list of devices"),
        ("SCALE:A,B,A", "A is listed twice"),
        ("SCALE:A(1),A(2)", "A is listed twice"),
        ("SCALE:A(1", "an argument of letters, digits"),
        ("SCALE:A)", "an argument of letters, digits"),
        ("SCALE:A(1)(2)", "an argument of letters, digits"),
        ("SCALE:A(a b)", "an argument of letters, digits"),
        ("SCALE:a(1)", "upper-case"),
        ("SCALE:A.0(1)", "SCALE does not take a list of devices"),
        ("SCALE(1)", "is for a device that runs on this one"),
        ("SCALE:a", "part 'a'"),
        ("SCALE: A", "part ' A'"),
        ("SCALE:A", "SCALE does not take a list of devices"),
        ("scale", "did you mean 'SCALE'"),
        ("scale.0", "did you mean 'SCALE'"),
        (" SCALE", "did you mean 'SCALE'"),
        ("SCALE\n", "upper-case"),
        ("SCÄLE", "upper-case"),
        ("SCAL", "did you mean 'SCALE'"),
        ("OTHER.0", "no plugin provides device 'OTHER.0'"),
        (7, "a device is a string"),
        (b"SCALE", "a device is a string"),
    ],
)
def test_a_wrong_device_string_says_what_is_wrong_and_what_there_is(
    core: Core, model: onnx.ModelProto, device: Any, words: str
) -> None:
    for use in (core.compile_model, core.query_model):
        with pytest.raises(DeviceNotFoundError) as caught:
            use(model, device)
        assert words in str(caught.value)
        if "does not take a list" not in words:
            assert "available devices: " in str(caught.value)
            assert "SCALE" in str(caught.value).partition("available devices: ")[2]


def test_a_device_id_selects_the_device(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    scale.ids = ("0", "gpu-1")
    network = core.compile_model(model, "SCALE.gpu-1")
    assert network.get_config("DEVICE_ID") == "gpu-1"
    assert network.get_property("EXECUTION_DEVICES") == ("SCALE.gpu-1",)
    assert core.compile_model(model, "SCALE.0", {"DEVICE_ID": "0"}).get_config("DEVICE_ID") == "0"
    with pytest.raises(DeviceNotFoundError, match=r"'2'.*0, gpu-1"):
        core.compile_model(model, "SCALE.2")
    with pytest.raises(PropertyError, match=r"DEVICE_ID is '0' in device .* 'gpu-1' in the configuration"):
        core.compile_model(model, "SCALE.0", {"DEVICE_ID": "gpu-1"})


def test_a_list_of_devices_reaches_the_plugin(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    from engine.properties import DEVICE_PRIORITIES

    class Spread(scale):  # type: ignore[misc]
        properties = (*scale.properties, DEVICE_PRIORITIES)

        def compile_model(self, model: Model, config: Any) -> Any:
            part = self.core.compile_model(model, config[DEVICE_PRIORITIES].split(",")[0])
            self.compiled.append(config)
            return part

    core.register_plugin("SPREAD", Spread)
    scale.ids = ("0", "1")
    network = core.compile_model(model, "SPREAD:SCALE.1,SCALE.0")
    assert Spread.compiled[0]["DEVICE_PRIORITIES"] == "SCALE.1,SCALE.0"
    assert network.get_config("DEVICE_ID") == "1"
    with pytest.raises(DeviceNotFoundError, match="'OTHER'"):
        core.compile_model(model, "SPREAD:OTHER")


# -- devices and plugins ----------------------------------------------------------------------------------------


def test_devices_are_listed_as_they_can_be_compiled_for(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    class Several(scale):  # type: ignore[misc]
        ids = ("a", "b")

    class Absent(scale):  # type: ignore[misc]
        ids = ()

    class Failing(scale):  # type: ignore[misc]
        def device_ids(self) -> Any:
            raise OSError("the driver does not answer")

    class Nameless(scale):  # type: ignore[misc]
        ids = ("0.1",)

    for plugin in (Several, Absent, Failing, Nameless):
        core.register_plugin(plugin.__name__.upper(), plugin)
    core.register_plugin("BROKEN", "module_that_is_not_there:Plugin")
    listed = core.available_devices
    own = [d for d in listed if d.startswith(("S", "A", "F", "N", "B")) and d not in ("AUTO", "BATCH")]
    assert own == ["SCALE", "SEVERAL.a", "SEVERAL.b"]
    for device in listed:
        if device.startswith("S"):
            core.compile_model(model, device)
    unavailable = core.unavailable_devices
    assert "no device on this machine" in str(unavailable["ABSENT"])
    assert "the driver does not answer" in str(unavailable["FAILING"])
    assert "0.1" in str(unavailable["NAMELESS"])
    assert isinstance(unavailable["BROKEN"].__cause__, ModuleNotFoundError)
    with pytest.raises(DeviceNotFoundError, match="no device on this machine"):
        core.compile_model(model, "ABSENT")
    with pytest.raises(PluginLoadError) as caught:
        core.compile_model(model, "BROKEN")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_versions_say_where_a_plugin_comes_from(core: Core) -> None:
    core.register_plugin("BROKEN", "module_that_is_not_there:Plugin")
    versions = core.get_versions()
    assert (versions["SCALE"].version, versions["SCALE"].api_version) == ("1.2.0", 2)
    assert "ScalePlugin" in str(versions["SCALE"].origin)
    assert "BROKEN" not in versions


def test_versions_of_some_plugins_load_no_others(core: Core) -> None:
    created: list[str] = []

    def other(_: object) -> Any:
        created.append("OTHER")
        raise PluginError("no driver")

    core.register_plugin("OTHER", other)
    assert core.get_versions("SCALE").keys() == {"SCALE"}
    assert not created
    assert core.get_versions("OTHER", "NOSUCH") == {}
    assert created


def test_networks_survive_their_plugin_and_their_core(core: Core, model: onnx.ModelProto, x: Any) -> None:
    network = core.compile_model(model, "SCALE")
    core.unload_plugin("SCALE")
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
    again = core.compile_model(model, "SCALE")
    assert again.plugin is not network.plugin
    del core
    gc.collect()
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
    request = again.create_infer_request()
    request.start_async({"x": x})
    request.wait(60)
    np.testing.assert_array_equal(request.results["y"], 3 * x)


def test_unloading_lets_another_plugin_take_the_name(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    class Other(scale):  # type: ignore[misc]
        version = "2.0.0"

    with pytest.raises(PluginConflictError):
        core.register_plugin("SCALE", Other)
    core.unload_plugin("SCALE")
    core.register_plugin("SCALE", Other)
    assert core.get_versions()["SCALE"].version == "2.0.0"
    with pytest.raises(DeviceNotFoundError, match="upper-case"):
        core.unload_plugin("scale")


def test_a_core_with_loaded_plugins_is_collected(scale: Scale, model: onnx.ModelProto) -> None:
    core = Core()
    core.register_plugin("SCALE", scale)
    core.compile_model(model, "SCALE")
    plugin = weakref.ref(core._registry.get("SCALE"))
    reference = weakref.ref(core)
    del core
    gc.collect()
    assert reference() is None
    assert plugin() is None


# -- properties -------------------------------------------------------------------------------------------------


def test_configuration_comes_from_the_nearest_layer(core: Core, model: onnx.ModelProto) -> None:
    def hint(config: Mapping[str, object] | None = None) -> list[Any]:
        network = core.compile_model(model, "SCALE", config)
        return [network.get_config("PERF_COUNT"), network.get_config("NUM_STREAMS")]

    assert hint() == [False, 0]
    core.set_property({"PERF_COUNT": True, "NUM_STREAMS": 1})
    assert hint() == [True, 1]
    core.set_property("SCALE", {"NUM_STREAMS": 2})
    assert hint() == [True, 2]
    assert hint({"NUM_STREAMS": 3}) == [True, 3]
    core.set_property({"NUM_STREAMS": 4})
    assert hint() == [True, 2], "a device's own default goes before one for all devices"
    assert core.get_property("NUM_STREAMS") == 4
    assert core.get_property("SCALE", "NUM_STREAMS") == 2
    assert core.get_property("SCALE", "PERF_COUNT") is True, "what the next compilation takes"


def test_a_configuration_object_overrides_with_what_was_set(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    core.compile_model(model, "SCALE", {"SHIFT": 1})
    core.set_property("SCALE", {"NUM_STREAMS": 2})
    network = core.compile_model(model, "SCALE", scale.compiled[0])
    assert (network.get_config("SHIFT"), network.get_config("NUM_STREAMS")) == (1, 2)


def test_metrics_and_ids_are_read_by_device_string(core: Core, scale: Scale) -> None:
    scale.ids = ("0", "1")
    assert core.get_property("SCALE", "AVAILABLE_DEVICES") == ("0", "1")
    assert core.get_property("SCALE.1", "DEVICE_ID") == "1"
    assert core.get_property("SCALE", "IMPORT_EXPORT_SUPPORT") is True
    assert core.get_property("CACHE_DIR") == ""
    with pytest.raises(DeviceNotFoundError, match="does not take a list of devices"):
        core.get_property("SCALE:CPU", "FULL_DEVICE_NAME")


def test_a_path_may_be_bytes_and_a_stream_may_fail_in_its_own_way(
    core: Core, model: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)

    class BytesPath:
        def __fspath__(self) -> bytes:
            return bytes(path)

    assert core.read_model(BytesPath()).name == "scaling"  # type: ignore[arg-type]
    packed = tmp_path / "model.onnx.gz"
    packed.write_bytes(gzip.compress(model.SerializeToString()))
    with gzip.open(packed) as whole:
        assert core.read_model(whole).name == "scaling"  # type: ignore[arg-type]
    packed.write_bytes(packed.read_bytes()[:-12])
    with gzip.open(packed) as cut_off, pytest.raises(ModelReadError, match=r"stream cannot be read: .*end"):
        core.read_model(cut_off)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"NO_SUCH": 1},), "NO_SUCH"),
        (({"PERF_COUNT": 1},), "bool"),
        (({"SHIFT": 1},), "SHIFT"),
        (({"DEVICE_ID": "1"},), "DEVICE_ID"),
        (({"CACHE_MAX_BYTES": -1},), "at least 0"),
        (("SCALE", {"NO_SUCH": 1}), "SCALE"),
        (("SCALE", {"SHIFT": "1"}), "SCALE"),
        (("SCALE", {"AVAILABLE_DEVICES": ("0",)}), "read-only"),
        (("SCALE.0", {"SHIFT": 1}), "set them for 'SCALE'"),
        (("SCALE",), "a device and a mapping"),
        (({"PERF_COUNT": True}, {"PERF_COUNT": True}), "a device and a mapping"),
        (("SCALE", []), "a device and a mapping"),
        ((["PERF_COUNT"],), "mapping"),
        ((None,), "mapping"),
    ],
)
def test_a_wrong_property_is_refused_whole(core: Core, arguments: Any, words: str) -> None:
    good = {"EXCLUSIVE_ASYNC_REQUESTS": True}
    with pytest.raises(PropertyError, match=words):
        core.set_property(*({**good, **a} if isinstance(a, dict) else a for a in arguments))
    assert core.get_property("SCALE", "EXCLUSIVE_ASYNC_REQUESTS") is False


@pytest.mark.parametrize("config", [{"NO_SUCH": 1}, {"SHIFT": True}, {"SHIFT": None}, [("SHIFT", 1)], "SHIFT", {3: 4}])
def test_a_wrong_configuration_is_refused_before_anything_is_compiled(
    core: Core, model: onnx.ModelProto, scale: Scale, config: Any
) -> None:
    with pytest.raises(PropertyError):
        core.compile_model(model, "SCALE", config)
    with pytest.raises(PropertyError):
        core.query_model(model, "SCALE", config)
    assert scale.compiled == []


def test_unknown_properties_are_listed(core: Core) -> None:
    with pytest.raises(PropertyError, match="CACHE_DIR"):
        core.get_property("CACHE_DIRECTORY")
    with pytest.raises(PropertyError, match="SHIFT"):
        core.get_property("SCALE", "SHIFTS")


# -- export and import ------------------------------------------------------------------------------------------


def exported(core: Core, model: onnx.ModelProto, config: Mapping[str, object] | None = None) -> bytes:
    stream = io.BytesIO()
    core.compile_model(model, "SCALE", config).export_model(stream)
    return stream.getvalue()


def test_a_network_is_imported_from_path_bytes_and_stream(
    core: Core, model: onnx.ModelProto, x: Any, tmp_path: Path, scale: Scale
) -> None:
    path = tmp_path / "network.blob"
    core.compile_model(model, "SCALE").export_model(path)
    data = path.read_bytes()
    stream = io.BytesIO(b"before" + data + b"after")
    stream.seek(6)
    for source in (path, str(path), data, bytearray(data), stream):
        network = core.import_model(source)
        np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
        assert network.get_property("NETWORK_NAME") == "scaling"
        assert network.get_property("LOADED_FROM_CACHE") is False
    assert stream.read() == b"after"
    assert len(scale.compiled) == 1


def test_the_exported_configuration_is_overridden_by_the_given_one(core: Core, model: onnx.ModelProto, x: Any) -> None:
    blob = exported(core, model, {"SHIFT": 5, "NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 4})
    other = Core()
    other.register_plugin("SCALE", type(core._registry.get("SCALE")))
    other.set_property({"NUM_STREAMS": 7, "INFERENCE_NUM_THREADS": 7, "PERF_COUNT": True})
    other.set_property("SCALE", {"SHIFT": 9})
    network = other.import_model(blob, config={"NUM_STREAMS": 3})
    keys = ("SHIFT", "INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERF_COUNT")
    # Exported, then given, then the core's defaults for what neither says.
    assert [network.get_config(key) for key in keys] == [5, 4, 3, True]
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x + 5)


def test_another_process_gets_the_merged_configuration(
    core: Core, model: onnx.ModelProto, tmp_path: Path, here: Path
) -> None:
    path = tmp_path / "network.blob"
    core.compile_model(model, "SCALE", {"SHIFT": 5, "PERF_COUNT": True}).export_model(path)
    program = """
import json, sys
import numpy as np
from engine import Core
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
network = core.import_model(sys.argv[1], config={"PERF_COUNT": False})
result = network({"x": np.array([1, -2], "float32")})["y"].tolist()
print(json.dumps([network.get_config("SHIFT"), network.get_config("PERF_COUNT"), result]))
"""
    output = subprocess.run([sys.executable, "-c", program, path], capture_output=True, cwd=here, check=True).stdout
    assert json.loads(output) == [5, False, [8.0, -1.0]]


def test_the_exported_device_is_used_unless_another_is_given(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    scale.ids = ("0", "1")
    blob = exported(core, model, {"DEVICE_ID": "1"})
    assert core.import_model(blob).get_config("DEVICE_ID") == "1"
    assert core.import_model(blob, "SCALE.0").get_config("DEVICE_ID") == "0"
    scale.ids = ("0",)
    with pytest.raises(DeviceNotFoundError, match="'1'"):
        core.import_model(blob)
    assert core.check_blob(blob).reasons == ("SCALE has no device '1'; devices: 0",)
    assert core.check_blob(blob, "SCALE.0").compatible


def test_a_user_file_is_mapped_only_when_asked_for(
    core: Core, model: onnx.ModelProto, scale: Scale, tmp_path: Path
) -> None:
    path = tmp_path / "network.blob"
    core.compile_model(model, "SCALE", {"ENABLE_MMAP": True}).export_model(path)

    def is_mapped(**config: object) -> bool:
        core.import_model(path, config=config)
        return isinstance(scale.imported[-1].obj, mmap.mmap)

    assert not is_mapped(), "what the blob says about mapping must not count"
    assert is_mapped(ENABLE_MMAP=True)
    core.set_property("SCALE", {"ENABLE_MMAP": True})
    assert is_mapped()
    assert not is_mapped(ENABLE_MMAP=False)


def test_a_blob_decides_on_no_folder_and_on_no_trust(
    core: Core, model: onnx.ModelProto, scale: Scale, tmp_path: Path
) -> None:
    """Otherwise a stranger's blob reads a folder of programs that the stranger wrote, or declares itself trusted."""
    file = Property("TABLE_FILE", str, "", CONFIG, "A file that compiling reads.", is_file=True)
    trust = Property("TRUST", bool, False, CONFIG, "Whether to run code of a blob.", is_local=True)
    scale.properties = (*scale.properties, file, trust)
    folder = str(tmp_path / "cache")
    said = {"CACHE_DIR": folder, "ENABLE_MMAP": True, "TABLE_FILE": "/etc/passwd", "TRUST": True}
    said["ALLOW_SHARED_CACHE"] = True
    blob = exported(core, model, {**said, "CACHE_DIR": "", "SHIFT": 5})
    manifest = BlobReader(blob).manifest
    assert manifest.config == {"SHIFT": 5}, "nor is anything of this machine written"
    forged = io.BytesIO()
    writer = BlobWriter(replace(manifest, config={**manifest.config, **said}))
    writer.add_section("factor", BlobReader(blob).section("factor"))
    writer.write(forged)
    network = core.import_model(forged.getvalue())
    assert {name: network.get_config(name) for name in (*said, "SHIFT")} == {
        "CACHE_DIR": "", "ENABLE_MMAP": False, "TABLE_FILE": "", "TRUST": False, "SHIFT": 5,
        "ALLOW_SHARED_CACHE": False,
    }  # fmt: skip
    core.set_property({"CACHE_DIR": "here"})
    assert core.import_model(forged.getvalue()).get_config("CACHE_DIR") == "here"
    assert core.import_model(forged.getvalue(), config={"TRUST": True}).get_config("TRUST") is True


def test_a_blob_of_something_else_says_why_it_cannot_be_used(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    blob = exported(core, model)
    core.register_plugin("TWIN", scale)

    class Newer(scale):  # type: ignore[misc]
        version = "1.3.0"

    class Lesser(scale):  # type: ignore[misc]
        features = {"unit": ("adder",)}

    class Mute(scale):  # type: ignore[misc]
        import_network = Plugin.import_network

    def other_core(plugin: Any) -> Core:
        other = Core()
        other.register_plugin("SCALE", plugin)
        return other

    for other, device, words in (
        (core, "TWIN", "compiled for 'SCALE', this host has 'TWIN'"),
        (other_core(Newer), None, "1.2.0, this host has 1.3.0"),
        (other_core(Lesser), None, "requirement 'unit': the blob needs scaler"),
        (other_core(Mute), None, "cannot import"),
    ):
        check = other.check_blob(blob, device)
        assert not check.compatible
        assert words in " ".join(check.reasons)
        with pytest.raises(BlobIncompatibleError) as caught:
            other.import_model(blob, device)
        assert str(caught.value) == "; ".join(check.reasons)
    assert core.check_blob(blob).compatible


def test_a_blob_of_another_plugin_for_a_device_of_the_same_name_is_refused(core: Core, model: onnx.ModelProto) -> None:
    """One reason is given: a blob for another device is from another plugin anyway."""
    blob = exported(core, model)
    reader = BlobReader(blob)
    for changes, reason in (
        ({"plugin_name": "OTHER"}, "plugin: the blob was compiled for 'OTHER', this host has 'SCALE'"),
        (
            {"device": "OTHER", "plugin_name": "OTHER"},
            "device: the blob was compiled for 'OTHER', this host has 'SCALE'",
        ),
    ):
        forged = io.BytesIO()
        writer = BlobWriter(replace(reader.manifest, **changes))
        writer.add_section("factor", reader.section("factor"))
        writer.write(forged)
        (found,) = core.check_blob(forged.getvalue(), "SCALE").reasons
        assert found.startswith(reason)
        with pytest.raises(BlobIncompatibleError, match=reason):
            core.import_model(forged.getvalue(), "SCALE")


def test_requirements_are_compared_with_the_device_that_is_meant(
    core: Core, model: onnx.ModelProto, scale: Scale
) -> None:
    scale.ids = ("0", "1", "2")
    scale.host_features = lambda _, device_id: {"unit": ["adder"]} if device_id == "0" else {"unit": ["scaler"]}
    blob = exported(core, model, {"DEVICE_ID": "1"})
    for device, is_fit in ((None, True), ("SCALE", True), ("SCALE.2", True), ("SCALE.0", False)):
        assert core.check_blob(blob, device).compatible is is_fit
        if is_fit:
            core.import_model(blob, device)
        else:
            with pytest.raises(BlobIncompatibleError, match="scaler"):
                core.import_model(blob, device)
    core.set_property("SCALE", {"DEVICE_ID": "2"})
    core.import_model(exported(core, model))


def test_a_blob_without_plugin_here_is_answered_and_refused(core: Core, model: onnx.ModelProto) -> None:
    blob = exported(core, model)
    empty = Core()
    (reason,) = empty.check_blob(blob).reasons
    assert "no plugin provides device 'SCALE'" in reason
    with pytest.raises(DeviceNotFoundError, match="no plugin provides device 'SCALE'"):
        empty.import_model(blob)
    with pytest.raises(DeviceNotFoundError, match="did you mean 'SCALE'"):
        core.check_blob(blob, "scale")


@pytest.mark.parametrize(
    ("source", "error"),
    [(b"", BlobFormatError), (b"nonsense", BlobFormatError), ("no such file", BlobError), (3, BlobError)],
)
def test_what_is_no_blob_is_a_blob_error(core: Core, source: Any, error: type[EngineError]) -> None:
    for use in (core.import_model, core.check_blob):
        with pytest.raises(error):
            use(source)


def test_a_damaged_section_is_found_before_use(core: Core, model: onnx.ModelProto) -> None:
    blob = bytearray(exported(core, model))
    blob[-1] ^= 1
    assert core.check_blob(blob).compatible, "which reads no section"
    with pytest.raises(BlobCorruptError, match="factor"):
        core.import_model(blob)


def test_a_stream_is_put_back_after_a_check(core: Core, model: onnx.ModelProto, x: Any) -> None:
    stream = io.BytesIO(exported(core, model))
    assert core.check_blob(stream).compatible
    np.testing.assert_array_equal(core.import_model(stream)({"x": x})["y"], 3 * x)


# -- plugins that misbehave -------------------------------------------------------------------------------------


def raise_value_error(*_: Any) -> Any:
    raise ValueError("the device burns")


@pytest.mark.parametrize("method", ["compile_model", "import_network", "query_model", "host_features"])
def test_a_fault_in_a_plugin_is_an_engine_error_with_its_cause(
    core: Core, model: onnx.ModelProto, scale: Scale, method: str
) -> None:
    blob = exported(core, model)
    uses: dict[str, Callable[[], object]] = {
        "compile_model": lambda: core.compile_model(model, "SCALE"),
        "import_network": lambda: core.import_model(blob),
        "query_model": lambda: core.query_model(model, "SCALE"),
        "host_features": lambda: core.import_model(blob),
    }
    setattr(scale, method, raise_value_error)
    with pytest.raises(PluginError, match=r"SCALE.*the device burns") as caught:
        uses[method]()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("answer", [None, {"unit": 3}, {3: "unit"}, "unit"])
def test_malformed_features_are_the_plugins_fault(
    core: Core, model: onnx.ModelProto, scale: Scale, answer: Any
) -> None:
    blob = exported(core, model)
    scale.features = answer
    with pytest.raises(PluginContractError, match=r"SCALE: host_features"):
        core.import_model(blob)


def test_what_is_no_network_is_the_plugins_fault(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    scale.compile_model = lambda *_: object()
    with pytest.raises(PluginContractError, match="SCALE: compile_model returned object"):
        core.compile_model(model, "SCALE")


def test_an_engine_error_of_a_plugin_arrives_as_it_is(core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    error = EngineError("its own words")

    def refuse(*_: Any) -> Any:
        raise error

    scale.compile_model = refuse
    with pytest.raises(EngineError) as caught:
        core.compile_model(model, "SCALE")
    assert caught.value is error


# -- the package ------------------------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = """
import sys
import engine
print(any(name in sys.modules for name in ("numpy", "onnx", "engine.core")))
from engine import *
print(sorted(name for name in engine.__all__ if name not in globals()))
print(engine.__version__ == __version__, "Core" in dir(engine))
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert output.splitlines() == ["False", "[]", "True True"]
    import engine

    with pytest.raises(AttributeError, match="Cores"):
        engine.Cores  # noqa: B018


def test_a_blob_reader_is_not_needed_to_read_a_manifest(core: Core, model: onnx.ModelProto) -> None:
    manifest = core.check_blob(exported(core, model, {"SHIFT": 2})).manifest
    assert manifest is not None
    assert manifest == BlobReader(exported(core, model, {"SHIFT": 2})).manifest
    assert (manifest.device, manifest.plugin_version, manifest.config) == ("SCALE", "1.2.0", {"SHIFT": 2})


# -- without a device -----------------------------------------------------------------------------------------


@pytest.fixture
def bare_core(monkeypatch: pytest.MonkeyPatch) -> Core:
    """A core without installed plugins."""
    monkeypatch.setattr("engine.registry.installed._distributions", list)
    return Core()


def test_without_a_device_the_only_one_is_used(bare_core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    with pytest.raises(DeviceNotFoundError, match=r"no device is given.*engine-plugin-auto; available devices: none"):
        bare_core.compile_model(model)
    bare_core.register_plugin("SCALE", scale)

    class Others(scale):  # type: ignore[misc, valid-type]
        properties = (*scale.properties, DEVICE_PRIORITIES)

    class Named(scale):  # type: ignore[misc, valid-type]
        def metric(self, name: str, device_id: str) -> object:
            return True if name == "ONLY_IF_NAMED" else super().metric(name, device_id)

    bare_core.register_plugin("NAMED", Named)
    bare_core.register_plugin("OTHERS", Others)  # it runs on other devices, and is not the plugin that is meant
    assert bare_core.default_device == "SCALE"
    assert bare_core.compile_model(model).get_metric("EXECUTION_DEVICES") == ("SCALE",)


def test_without_a_device_several_are_an_error(bare_core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    bare_core.register_plugin("SCALE", scale)
    bare_core.register_plugin("SECOND", scale)
    with pytest.raises(DeviceNotFoundError, match=r"no device is given.*available devices: SCALE, SECOND") as caught:
        bare_core.compile_model(model)
    assert "\n" not in str(caught.value)


def test_without_a_device_the_plugin_called_auto_is_used(bare_core: Core, model: onnx.ModelProto, scale: Scale) -> None:
    """Whoever wrote it: the bundled one is not privileged."""
    bare_core.register_plugin("SCALE", scale)
    bare_core.register_plugin("AUTO", scale)
    assert bare_core.installed_devices == ["SCALE", "AUTO"]
    assert bare_core.compile_model(model).get_metric("EXECUTION_DEVICES") == ("AUTO",)


def test_the_core_of_a_plugin_can_be_copied() -> None:
    """Such as by a plugin that copies what it is bound to."""
    core = PluginCore(Core())
    assert copy.copy(core).available_devices == core.available_devices
    with pytest.raises(AttributeError):
        PluginCore.__new__(PluginCore).get_versions()
