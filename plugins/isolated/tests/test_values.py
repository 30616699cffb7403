"""Values between the processes: large results are the caller's own, variables stay here, blobs are the device's."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_isolated import isolated_blob
from onnx import TensorProto, helper

from engine import Core, ops
from engine.blob import BlobReader, make_key_files, read_encryption_key
from engine.core import compile_variants, export_variants
from engine.errors import (
    BlobError,
    BlobFormatError,
    BlobIncompatibleError,
    BlobTransformError,
    DeviceError,
    DeviceNotFoundError,
    EngineWarning,
    InputError,
    PluginError,
    PropertyError,
    UnsupportedError,
)
from engine.ir import Constant, Model, Parameter, Result, Variable, f32, i64, string

from . import faulty_device as faulty
from . import halving_extension
from .faulty_device import TARGET, doubling, values

LARGE = (300, 1000)


def test_large_results_are_independent_of_one_another_and_can_be_written(core: Core) -> None:
    network = core.compile_model(doubling(shape=("n", 1000)), "ISOLATED:FAULTY")
    held = [network({"x": values(shape=LARGE) + np.float32(i * 100)})["y"] for i in range(5)]
    parts = [result[1:3, ::2] for result in held[:3]]
    kept = [part.copy() for part in parts]
    held[4] += 1  # memory of its own
    del held[:3]
    gc.collect()
    for _ in range(4):  # which use the memory of results that are gone, and not that of their parts
        network({"x": np.zeros(LARGE, np.float32)})
    for part, before in zip(parts, kept, strict=True):
        assert np.array_equal(part, before)
    expected = (values(shape=LARGE) + np.float32(300)) * 2
    assert np.array_equal(held[0], expected)
    assert np.array_equal(held[1], expected + 201)


def test_memory_of_a_result_that_was_written_is_used_again_without_what_was_written(core: Core) -> None:
    network = core.compile_model(doubling(shape=LARGE), "ISOLATED:FAULTY")
    x = values(shape=LARGE)
    for _ in range(3):
        result = network({"x": x})["y"]
        assert np.array_equal(result, x * 2)
        result[:] = -1
        del result


def test_large_results_of_varying_shapes(core: Core) -> None:
    x = Parameter(f32, ["n"], "x")
    network = core.compile_model(Model([Result(ops.NonZero(x), "y")], [x], name="where"), "ISOLATED:TEMPLATE")
    for count in (3, 70000, 5, 100000):
        given = np.zeros(120000, np.float32)
        given[:count] = 1
        assert np.array_equal(network({"x": given})["y"], np.arange(count)[None])


def test_results_in_the_callers_arrays(core: Core) -> None:
    for shape in ((4,), LARGE):
        request = core.compile_model(doubling(shape=shape), "ISOLATED:FAULTY").create_infer_request()
        mine = np.zeros(shape, np.float32)
        request.set_output_tensor("y", mine)
        x = values(shape=shape)
        assert request.infer({"x": x})["y"] is mine
        assert np.array_equal(mine, x * 2)


def test_strings_and_sequences(core: Core) -> None:
    text = Parameter(string, [2], "text")
    x = Parameter(f32, [4, 3], "x")
    model = Model([Result(ops.StringConcat(text, text), "t"), Result(ops.SplitToSequence(x), "s")], [text, x], name="m")
    network = core.compile_model(model, "ISOLATED:TEMPLATE")
    given = np.arange(12, dtype=np.float32).reshape(4, 3)
    for _ in range(2):
        result = network({"text": np.array(["ä", "\udc80"], object), "x": given})
        assert result["t"].tolist() == ["ää", "\udc80\udc80"]
        assert [part.tolist() for part in result["s"]] == given[:, None].tolist()


def counting() -> Model:
    """Adds its input to a variable, whose first element then says how FAULTY fails."""
    x, before = Parameter(f32, [2], "x"), Parameter(f32, [2], "before")
    after = ops.Add(before, x)
    model = Model(
        [Result(ops.Mul(after, Constant(np.float32(1))), "y"), Result(after, "after")], [x, before], name="sum"
    )
    model.add_variable(Variable("sum", "before", "after", np.zeros(2, np.float32)))
    return model


def test_a_crash_keeps_the_variables_of_a_request(core: Core) -> None:
    request = core.compile_model(counting(), "ISOLATED:FAULTY").create_infer_request()
    one = np.array([0, 1], np.float32)
    for count in (1, 2):
        assert request.infer({"x": one})["y"].tolist() == [0, count]
    with pytest.raises(DeviceError, match="its variables have the values from before"):
        request.infer({"x": np.array([faulty.KILLED, 1], np.float32)})
    assert request.infer({"x": one})["y"].tolist() == [0, 3]


def test_a_blob_contains_the_devices_blob(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "network.blob"
    core.compile_model(doubling(), "ISOLATED:CPU").export_model(path)
    x = values()
    isolated = Core().import_model(path)
    assert np.array_equal(isolated({"x": x})["y"], x * 2)
    assert isolated.get_property("PROCESS_STATISTICS")["pid"] > 0
    plain = Core().import_model(BlobReader(path).nested("network"))
    assert plain.plugin.name == "CPU"
    assert np.array_equal(plain({"x": x})["y"], x * 2)


def test_a_devices_blob_is_imported_with_isolation(core: Core, tmp_path: Path) -> None:
    plain, isolated, x = tmp_path / "plain.blob", tmp_path / "isolated.blob", values()
    for model in (doubling(), counting()):
        core.compile_model(model, "CPU", {"COMPILE_EFFORT": "quick"}).export_model(plain)
        isolated_blob(plain).write_file(isolated)
        network = core.import_model(isolated)
        assert network.plugin.name == "ISOLATED"
        assert network.signature.inputs == core.import_model(plain).signature.inputs
        given = x[: network.inputs[0].shape[0].min]
        assert np.array_equal(network({"x": given})["y"], given * (2 if model.name == "doubling" else 1))
    with pytest.raises(BlobFormatError):
        isolated_blob(b"no blob")
    with pytest.raises(BlobError, match=r"absent\.blob: cannot be opened"):
        isolated_blob(tmp_path / "absent.blob")


def test_a_package_is_imported_with_isolation(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "package.blob"
    variants = compile_variants(core, doubling(), ["generic", "source"], "CPU")
    export_variants({each.name: each.network for each in variants}, path)
    isolated_blob(path).write_file(path)
    check = core.check_blob(path)
    assert check.compatible, check.reasons
    assert np.array_equal(core.import_model(path)({"x": values()})["y"], values() * 2)


def test_only_the_outer_blob_can_be_encrypted(core: Core, tmp_path: Path) -> None:
    make_key_files(tmp_path / "own.key", "own", "aes-256-gcm")
    path, key, network = tmp_path / "plain.blob", str(tmp_path / "own.key"), core.compile_model(doubling(), "CPU")
    network.export_model(path, transform=key)
    with pytest.raises(BlobTransformError, match="passes no key to the blob inside"):
        isolated_blob(path)
    network.export_model(path)
    isolated_blob(path).transformed(read_encryption_key(key)).write_file(path)
    assert np.array_equal(core.import_model(path, transform=key)({"x": values()})["y"], values() * 2)


def test_a_blob_without_weights_is_refused(core: Core, tmp_path: Path) -> None:
    x = Parameter(f32, [1, 64], "x")
    model = Model([Result(ops.MatMul(x, Constant(np.ones((64, 64), np.float32))), "y")], [x], name="layer")
    whole, bound = tmp_path / "whole.blob", tmp_path / "bound.blob"
    core.compile_model(model, "CPU").export_model(whole)
    core.compile_model(model, "CPU").export_model(bound, weights=whole)
    with pytest.raises(BlobIncompatibleError, match="passes no other file to the blob inside"):
        isolated_blob(bound)


def test_an_imported_network_survives_a_crash(core: Core) -> None:
    blob = io.BytesIO()
    core.compile_model(doubling(), "ISOLATED:FAULTY").export_model(blob)
    network = core.import_model(blob.getvalue())
    with pytest.raises(DeviceError, match="SIGKILL"):
        network({"x": values(faulty.KILLED)})
    assert np.array_equal(network({"x": values()})["y"], values() * 2)


def test_operators_of_extensions() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    node = helper.make_node("Half", ["x"], ["y"], "half", domain="test.isolated")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.isolated", 1)]
    model = helper.make_model(helper.make_graph([node], "halving", [x], [y]), opset_imports=opsets, ir_version=8)
    named, by_object = Core(), Core()
    named.add_extension(halving_extension.__name__)
    by_object.add_extension(halving_extension.EXTENSION)
    assert named.query_model(model, "ISOLATED:CPU").is_supported
    network = named.compile_model(model, "ISOLATED:TEMPLATE")
    blob = io.BytesIO()
    network.export_model(blob)
    for each in (network, named.import_model(blob.getvalue())):
        assert np.array_equal(each({"x": values()})["y"], values() / 2)
    with pytest.raises(UnsupportedError, match=r"halving 1\.0 was added as an object"):
        by_object.compile_model(model, "ISOLATED:TEMPLATE")


def test_the_answer_to_a_query_is_the_devices(core: Core) -> None:
    x = Parameter(i64, [3], "x")
    model = Model([Result(ops.Abs(ops.Neg(x)), "y")], [x], name="m")
    assert core.query_model(model, "ISOLATED:CPU").nodes == core.query_model(model, "CPU").nodes


def test_in_other_devices(core: Core) -> None:
    """The grammar of device strings has one colon, so that the isolated device is stated by a property."""
    x = values()
    isolated = {"ISOLATED": {"DEVICE_PRIORITIES": "FAULTY"}}
    hetero = core.compile_model(doubling(), "HETERO:ISOLATED,CPU", {"DEVICE_PROPERTIES": isolated})
    assert np.array_equal(hetero({"x": x})["y"], x * 2)
    batch = core.compile_model(
        doubling(shape=(1, 4)), "BATCH:ISOLATED(2)", {"DEVICE_PROPERTIES": isolated, "BATCH_TIMEOUT": 1}
    )
    assert np.array_equal(batch({"x": x[None]})["y"], x[None] * 2)
    with pytest.warns(EngineWarning, match="ISOLATED is left out: .* runs on other devices"):
        core.compile_model(doubling(), "AUTO:ISOLATED,CPU")


@pytest.mark.parametrize(
    ("device", "config", "error", "words"),
    [
        ("ISOLATED", {}, DeviceNotFoundError, 'name it: "ISOLATED:CPU"'),
        ("ISOLATED:CPU,TEMPLATE", {}, DeviceNotFoundError, "runs one other device, and got 'CPU,TEMPLATE'"),
        ("ISOLATED:ISOLATED", {}, DeviceNotFoundError, "got 'ISOLATED'"),
        ("ISOLATED:NOTHING", {}, DeviceNotFoundError, "no plugin provides device 'NOTHING'"),
        ("ISOLATED:LOCAL", {}, PluginError, "LOCAL was registered as .*another process cannot import"),
        ("ISOLATED:ABSENT", {}, PluginError, "No module named 'absent_module'"),
        ("ISOLATED:CPU", {"DEVICE_PROPERTIES": {"GPU": {}}}, PropertyError, "configures 'GPU'"),
        ("ISOLATED:CPU", {"DEVICE_PROPERTIES": {"CPU": {"SPEED": 3}}}, PropertyError, "SPEED"),
    ],
)
def test_wrong_use(core: Core, device: str, config: dict[str, Any], error: type[Exception], words: str) -> None:
    core.register_plugin("LOCAL", lambda handle: None)  # type: ignore[arg-type,return-value]
    core.register_plugin("ABSENT", "absent_module:Plugin")
    with pytest.raises(error, match=words):
        core.compile_model(doubling(), device, config)


def test_a_wrong_input_is_refused_here(core: Core) -> None:
    core.register_plugin("ACME", TARGET)
    network = core.compile_model(doubling(), "ISOLATED:ACME")
    with pytest.raises(InputError, match="expected"):
        network({"x": np.zeros(5, np.float32)})
