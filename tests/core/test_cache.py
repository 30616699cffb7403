"""CACHE_DIR: compiled networks that are found again.

If these fail, a user gets the network of another model, configuration or machine; or a damaged, full or shared
cache folder keeps a model from being compiled.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Core, Model, ops
from engine.errors import DeviceNotFoundError, UnsupportedError
from engine.ir import Constant, Parameter, Result, f32
from engine.plugin_api import ExecutableNetwork, Plugin
from engine.properties import DEVICE_PRIORITIES

Scale = Any
MakeModel = Callable[..., onnx.ModelProto]


@pytest.fixture
def cache(core: Core, tmp_path: Path) -> Path:
    """The folder in which `core` caches."""
    folder = tmp_path / "cache"
    core.set_property({"CACHE_DIR": str(folder)})
    return folder


@pytest.fixture(autouse=True)
def _no_surprises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "engine")


def is_hit(network: ExecutableNetwork) -> bool:
    found = network.get_property("LOADED_FROM_CACHE")
    assert isinstance(found, bool)
    return found


def another(scale: Scale, cache: Path) -> Core:
    """A core of a later run of the application."""
    core = Core()
    core.register_plugin("SCALE", scale)
    core.set_property({"CACHE_DIR": str(cache)})
    return core


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- hits -------------------------------------------------------------------------------------------------------


def test_an_equal_compilation_is_loaded(
    core: Core, cache: Path, scale: Scale, model: onnx.ModelProto, x: Any, caplog: pytest.LogCaptureFixture
) -> None:
    networks = [core.compile_model(model, "SCALE"), core.compile_model(model, "SCALE")]
    networks.append(another(scale, cache).compile_model(model, "SCALE"))
    assert [is_hit(network) for network in networks] == [False, True, True]
    assert len(scale.compiled) == 1
    assert len(files(cache)) == 1
    for network in networks:
        np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
        assert network.get_property("NETWORK_NAME") == "scaling"
        assert network.get_config("CACHE_DIR") == str(cache)
    assert caplog.records == []


def test_without_a_folder_nothing_is_cached(core: Core, model: onnx.ModelProto, cache: Path) -> None:
    assert not is_hit(core.compile_model(model, "SCALE", {"CACHE_DIR": ""}))
    assert not cache.exists()


def test_the_way_the_model_is_given_does_not_matter(core: Core, cache: Path, model: onnx.ModelProto) -> None:
    path = cache.parent / "model.onnx"
    onnx.save(model, path)
    onnx.save(onnx.load(path), cache.parent / "external.onnx", save_as_external_data=True, size_threshold=0)
    sources = [path, path.read_bytes(), model, core.read_model(path), cache.parent / "external.onnx"]
    assert [is_hit(core.compile_model(source, "SCALE")) for source in sources] == [False, True, True, True, True]


def test_unnamed_nodes_do_not_make_a_model_another(core: Core, cache: Path, make_model: MakeModel) -> None:
    model = make_model(2, 3)
    for node in model.graph.node:
        node.name = ""
    assert [is_hit(core.compile_model(model, "SCALE")) for _ in range(2)] == [False, True]


def test_a_model_built_twice_is_one_model(core: Core, cache: Path) -> None:
    def built(activation: Callable[[Any], Any]) -> Model:
        x = Parameter(f32, [2], "x")
        inner, outer = Parameter(f32, [2]), Parameter(f32, [2])
        branches = {
            "then_branch": Model([Result(activation(inner), "z")], captures=[inner]),
            "else_branch": Model([Result(ops.Identity(outer), "z")], captures=[outer]),
        }
        chosen = ops.create("If", [Constant(np.array(True)), x, x], branches)
        return Model([Result(ops.Mul(chosen, Constant([3.0, 3.0])), "y")], [x])

    hits = [is_hit(core.compile_model(built(op), "SCALE")) for op in (ops.Relu, ops.Relu, ops.Tanh, ops.Relu)]
    assert hits == [False, True, False, True]


def test_a_value_given_as_it_is_anyway_does_not_matter(core: Core, cache: Path, model: onnx.ModelProto) -> None:
    core.compile_model(model, "SCALE")
    assert is_hit(core.compile_model(model, "SCALE.0", {"SHIFT": 0}))


def test_a_network_compiled_without_a_pass_is_another(
    core: Core, cache: Path, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not is_hit(core.compile_model(model, "SCALE"))
    monkeypatch.setenv("ENGINE_PASSES_WITHOUT", "GeluFusion")
    assert [is_hit(core.compile_model(model, "SCALE")) for _ in range(2)] == [False, True]
    monkeypatch.delenv("ENGINE_PASSES_WITHOUT")
    assert is_hit(core.compile_model(model, "SCALE"))
    (tmp_path / "only").write_text("GeluFusion\n")
    monkeypatch.setenv("ENGINE_PASSES_ONLY", str(tmp_path / "only"))
    assert not is_hit(core.compile_model(model, "SCALE"))
    (tmp_path / "only").write_text("SwishFusion\n")
    assert not is_hit(core.compile_model(model, "SCALE"))


def test_a_hit_has_the_configuration_of_its_own_compilation(
    core: Core, cache: Path, scale: Scale, model: onnx.ModelProto
) -> None:
    keys = ("DEVICE_ID", "ENABLE_MMAP", "CACHE_DIR")
    core.compile_model(model, "SCALE.0", {"ENABLE_MMAP": True, "CACHE_DIR": f"{cache}/"})
    other = another(scale, cache)
    network = other.compile_model(model, "SCALE")
    assert is_hit(network)
    assert [network.get_config(key) for key in keys] == ["", False, str(cache)]
    other.set_property("SCALE", {"ENABLE_MMAP": True})
    assert other.compile_model(model, "SCALE").get_config("ENABLE_MMAP") is True


def test_a_moved_cache_is_still_one(core: Core, cache: Path, model: onnx.ModelProto) -> None:
    core.compile_model(model, "SCALE")
    moved = cache.rename(cache.parent / "moved")
    network = core.compile_model(model, "SCALE", {"CACHE_DIR": str(moved)})
    assert is_hit(network)
    assert network.get_config("CACHE_DIR") == str(moved)


def test_another_process_finds_it(core: Core, cache: Path, model: onnx.ModelProto, here: Path) -> None:
    core.compile_model(model, "SCALE", {"SHIFT": 1})
    (result,) = compile_in_processes(here, cache, model, 1)
    assert result == [True, [4.0, -5.0]]


def compile_in_processes(here: Path, cache: Path, model: onnx.ModelProto, count: int) -> list[Any]:
    """The answer of each of several concurrent processes: LOADED_FROM_CACHE and the result."""
    program = """
import json, sys
import numpy as np
from engine import Core, Model, ops
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
model = sys.stdin.buffer.read()
network = core.compile_model(model, "SCALE", {"CACHE_DIR": sys.argv[1], "SHIFT": 1})
result = network({"x": np.array([1, -2], "float32")})["y"].tolist()
print(json.dumps([network.get_property("LOADED_FROM_CACHE"), result]))
"""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program, str(cache)]
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=here) for _ in range(count)]
    results = []
    for process in running:
        output, error = process.communicate(model.SerializeToString(), timeout=120)
        assert (process.returncode, error.decode()) == (0, "")
        results.append(json.loads(output))
    return results


# -- misses -----------------------------------------------------------------------------------------------------


def test_another_model_is_compiled(core: Core, cache: Path, make_model: MakeModel, x: Any) -> None:
    models = [make_model(3), make_model(4), make_model(3, 1), make_model(3, name="other"), make_model(3, size=1)]
    renamed = make_model(3)
    renamed.graph.output[0].name = renamed.graph.node[0].output[0] = "z"
    networks = [core.compile_model(model, "SCALE") for model in (*models, renamed)]
    assert not any(map(is_hit, networks))
    assert [network(x[: network.inputs[0].shape.get_shape()[0]])[0].tolist() for network in networks] == [
        [3, -6], [4, -8], [3, -6], [3, -6], [3], [3, -6],
    ]  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 4095), st.integers(0, 31))
def test_one_bit_of_a_large_weight_makes_another_model(
    core: Core, cache: Path, make_model: MakeModel, position: int, bit: int
) -> None:
    model = make_model(3, size=4096)
    core.compile_model(model, "SCALE")
    weights = np.frombuffer(model.graph.initializer[0].raw_data, np.uint32).copy()
    weights[position] ^= np.uint32(1 << bit)
    model.graph.initializer[0].raw_data = weights.tobytes()
    network = core.compile_model(model, "SCALE", {"CACHE_DIR": str(cache / f"{position}-{bit}")})
    assert not is_hit(network)
    assert files(cache / f"{position}-{bit}")[0] not in files(cache)


def test_packed_weights_are_part_of_the_key(core: Core, cache: Path) -> None:
    """Their bytes are hashed as the file has them: one bit, and how they are unpacked, make another model."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (64, 4, 16), dtype=np.uint8)
    scales = rng.random((64, 4), np.float32)
    zero_points = np.full((64, 2), 0x77, np.uint8)

    def compiled(codes: Any, *, block: int = 32, is_offset: bool = False) -> tuple[Any, bool]:
        inputs = ["x", "codes", "scales", "zero_points"]
        weights = [("codes", codes), ("scales", scales), ("zero_points", zero_points)]
        info = onnx.helper.make_tensor_value_info
        node = onnx.helper.make_node(
            "MatMulNBits", inputs[: 3 + is_offset], ["y"], domain="com.microsoft", K=128, N=64, bits=4, block_size=block
        )
        graph = onnx.helper.make_graph(
            [node], "packed", [info("x", 1, [1, 128])], [info("y", 1, [1, 64])],
            [onnx.numpy_helper.from_array(value, name) for name, value in weights[: 2 + is_offset]],
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
        network = core.compile_model(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), "CPU")
        return network({"x": np.ones((1, 128), np.float32)})["y"], is_hit(network)

    first, was_hit = compiled(codes)
    again, is_now_hit = compiled(codes.copy())
    assert (was_hit, is_now_hit) == (False, True)
    np.testing.assert_array_equal(first, again)
    for change in (codes ^ (np.arange(codes.size).reshape(codes.shape) == 1000).astype(np.uint8), codes[::-1].copy()):
        found, was_hit = compiled(change)
        assert not was_hit
        assert not np.array_equal(found, first)
    assert not compiled(codes, is_offset=True)[1]


def test_another_configuration_device_or_machine_is_compiled(
    core: Core, cache: Path, model: onnx.ModelProto, scale: Scale
) -> None:
    def compiled(device: str = "SCALE", config: Mapping[str, object] | None = None) -> bool:
        return not is_hit(another(scale, cache).compile_model(model, device, config))

    assert compiled()
    assert not compiled()
    assert compiled(config={"SHIFT": 1})
    scale.ids = ("0", "1")
    assert compiled("SCALE.1")
    assert not compiled("SCALE.0")
    scale.features = {"unit": ["adder", "divider", "scaler"]}
    assert compiled(), "another machine's features"
    scale.features = {"unit": ["scaler", "adder", "divider"]}
    assert not compiled(), "the same features in another order"
    scale.version = "1.2.1"
    assert compiled()


def test_a_default_that_matters_is_part_of_the_key(core: Core, cache: Path, model: onnx.ModelProto, x: Any) -> None:
    core.compile_model(model, "SCALE")
    core.set_property("SCALE", {"SHIFT": 1})
    network = core.compile_model(model, "SCALE")
    assert not is_hit(network)
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x + 1)
    core.set_property({"PERF_COUNT": True})
    assert not is_hit(core.compile_model(model, "SCALE"))


def test_a_default_that_changes_during_a_compilation_is_not_stored_under_the_old_key(
    core: Core, cache: Path, model: onnx.ModelProto, x: Any, scale: Scale
) -> None:
    host_features = scale.host_features

    def features(plugin: Any, device_id: str) -> Any:
        plugin.set_config({"SHIFT": 1})  # as another thread may, after the key's configuration was read
        return host_features(plugin, device_id)

    scale.host_features = features
    np.testing.assert_array_equal(core.compile_model(model, "SCALE")({"x": x})["y"], 3 * x + 1)
    assert not cache.exists()


def test_what_the_devices_below_are_set_to_is_part_of_the_key(
    core: Core, cache: Path, model: onnx.ModelProto, scale: Scale
) -> None:
    class Spread(scale):  # type: ignore[misc]
        properties = (*scale.properties, DEVICE_PRIORITIES)

    core.register_plugin("SPREAD", Spread)
    core.register_plugin("OTHER", scale)

    def hit(device: str) -> bool:
        return is_hit(core.compile_model(model, device))

    assert [hit("SPREAD:SCALE,OTHER"), hit("SPREAD:SCALE,OTHER"), hit("SPREAD:OTHER,SCALE")] == [False, True, False]
    core.set_property("OTHER", {"SHIFT": 1})
    assert [hit("SPREAD:SCALE,OTHER"), hit("SPREAD:SCALE"), hit("SPREAD:SCALE")] == [False, False, True]
    assert [hit("SPREAD"), hit("SPREAD")] == [False, True], "no list is all devices"
    assert [hit("SPREAD:SPREAD"), hit("SPREAD:SPREAD")] == [False, True]
    with pytest.raises(DeviceNotFoundError):
        hit("SPREAD:ABSENT")


# -- folders that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:50],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: bytes([*data[:-1], data[-1] ^ 1]),
        lambda data: data.replace(b"1.2.0", b"1.3.0"),
        lambda data: b"not a blob at all",
    ],
    ids=["empty", "no header", "truncated", "longer", "a flipped bit", "another manifest", "another file"],
)
def test_a_corrupt_entry_is_compiled_again_and_replaced(
    core: Core,
    cache: Path,
    model: onnx.ModelProto,
    x: Any,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
) -> None:
    core.compile_model(model, "SCALE")
    (entry,) = cache.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    network = core.compile_model(model, "SCALE")
    assert not is_hit(network)
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
    assert [str(entry) in record.getMessage() for record in caplog.records] == [True]
    assert is_hit(core.compile_model(model, "SCALE"))
    assert files(cache) == [entry.name]


def test_an_entry_of_another_model_in_its_place_is_compiled_again(
    core: Core, cache: Path, make_model: MakeModel, x: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hashes are right, and its inputs and outputs are the same: only the key tells."""
    core.compile_model(make_model(3), "SCALE")
    (first,) = cache.iterdir()
    core.compile_model(make_model(4), "SCALE")
    (second,) = set(cache.iterdir()) - {first}
    first.write_bytes(second.read_bytes())
    network = core.compile_model(make_model(3), "SCALE")
    assert not is_hit(network)
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
    assert "the entry of another compilation" in caplog.text
    assert is_hit(core.compile_model(make_model(3), "SCALE")), "and replaced"


def test_an_exported_network_in_place_of_an_entry_is_compiled_again(
    core: Core, cache: Path, model: onnx.ModelProto, caplog: pytest.LogCaptureFixture
) -> None:
    core.compile_model(model, "SCALE")
    (entry,) = cache.iterdir()
    core.compile_model(model, "SCALE").export_model(entry)
    assert not is_hit(core.compile_model(model, "SCALE"))
    assert "its key is None" in caplog.text


posix = pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")


@posix
def test_entries_are_the_users_alone(core: Core, cache: Path, model: onnx.ModelProto) -> None:
    core.set_property({"CACHE_DIR": str(cache / "below")})
    core.compile_model(model, "SCALE")
    (entry,) = (cache / "below").iterdir()
    modes = [path.stat().st_mode & 0o777 for path in (cache, cache / "below", entry)]
    assert modes == [0o700, 0o700, 0o600]


@posix
@pytest.mark.parametrize("what", ["folder", "entry", "above"])
def test_what_another_user_can_change_is_not_loaded_unless_told(
    core: Core, cache: Path, model: onnx.ModelProto, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    folder = cache / "below"
    core.set_property({"CACHE_DIR": str(folder)})
    core.compile_model(model, "SCALE")
    (entry,) = folder.iterdir()
    path = {"folder": folder, "entry": entry, "above": cache}[what]
    path.chmod(0o777)
    assert not is_hit(core.compile_model(model, "SCALE"))
    assert f"{path} can be written by every user" in caplog.text
    assert "ALLOW_SHARED_CACHE" in caplog.text
    if what == "entry":  # it is replaced by one that is the user's alone
        assert is_hit(core.compile_model(model, "SCALE"))
        return
    core.set_property({"ALLOW_SHARED_CACHE": True})
    assert is_hit(core.compile_model(model, "SCALE"))


@posix
def test_nothing_is_written_where_another_user_can_change_it(
    core: Core, cache: Path, make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    for folder in (cache, cache / "new"):
        core.compile_model(make_model(3), "SCALE", {"CACHE_DIR": str(folder)})
    assert files(cache) == []
    assert caplog.text.count("is not cached") == 2
    core.compile_model(make_model(3), "SCALE", {"ALLOW_SHARED_CACHE": True})
    assert len(files(cache)) == 1


def test_an_entry_that_the_plugin_fails_on_is_compiled_again(
    core: Core, cache: Path, model: onnx.ModelProto, scale: Scale, caplog: pytest.LogCaptureFixture
) -> None:
    core.compile_model(model, "SCALE")

    def fail(*_: Any) -> Any:
        raise ValueError("cannot rebuild it")

    scale.import_network = fail
    assert not is_hit(core.compile_model(model, "SCALE"))
    assert "cannot rebuild it" in caplog.text


def test_an_entry_is_mapped_and_may_be_replaced_while_it_is(
    core: Core, cache: Path, model: onnx.ModelProto, x: Any, scale: Scale
) -> None:
    core.compile_model(model, "SCALE")
    network = core.compile_model(model, "SCALE")
    assert isinstance(scale.imported[-1].obj, mmap.mmap)
    (entry,) = cache.iterdir()
    replacement = cache / "replacement"
    replacement.write_bytes(b"")
    os.replace(replacement, entry)
    core.compile_model(model, "SCALE")
    np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are not there")
@pytest.mark.parametrize("limit", [0, 1, 300, 2000])
def test_a_full_disk_leaves_no_half_written_entry(cache: Path, here: Path, make_model: MakeModel, limit: int) -> None:
    """The system's own limit on file sizes fails writes as a full disk does, after `limit` bytes."""
    program = """
import json, resource, signal, sys
import numpy as np
from engine import Core, Model, ops
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
network = core.compile_model(sys.stdin.buffer.read(), "SCALE", {"CACHE_DIR": sys.argv[1]})
print(network({"x": np.full(1000, 2, "float32")})["y"].sum())
"""
    command = [sys.executable, "-B", "-c", program, str(cache), str(limit)]
    data = make_model(3, size=1000).SerializeToString()
    done = subprocess.run(command, input=data, capture_output=True, cwd=here, check=True)
    assert done.stdout.decode().strip() == "6000.0"
    assert "is not cached" in done.stderr.decode(), "the warning reaches a program that sets up no logging"
    assert files(cache) == []


def test_a_folder_that_cannot_be_made_is_a_warning(
    core: Core, model: onnx.ModelProto, tmp_path: Path, x: Any, caplog: pytest.LogCaptureFixture
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for folder in (taken, taken / "below", "nul\0byte"):
        caplog.clear()
        network = core.compile_model(model, "SCALE", {"CACHE_DIR": str(folder)})
        np.testing.assert_array_equal(network({"x": x})["y"], 3 * x)
        assert "is not cached" in caplog.text
    assert taken.read_text() == "a file"


def test_processes_share_a_folder(cache: Path, here: Path, model: onnx.ModelProto) -> None:
    results = compile_in_processes(here, cache, model, 4)
    assert [result for _, result in results] == [[4.0, -5.0]] * 4
    assert len(files(cache)) == 1
    assert compile_in_processes(here, cache, model, 1)[0][0] is True


def test_threads_share_a_folder(core: Core, cache: Path, make_model: MakeModel, x: Any) -> None:
    models = [make_model(factor) for factor in range(1, 5)]
    core.set_property({"CACHE_MAX_BYTES": 3000})  # so that entries disappear while others are read
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(10):
            for factor, model in enumerate(models, 1):
                result = core.compile_model(model, "SCALE")({"x": x})["y"]
                if not np.array_equal(result, factor * x):
                    wrong.append((factor, result))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert not [name for name in files(cache) if name.endswith(".tmp")]


# -- devices that cannot ----------------------------------------------------------------------------------------


def test_a_device_without_import_is_not_cached(
    core: Core, cache: Path, model: onnx.ModelProto, scale: Scale, caplog: pytest.LogCaptureFixture
) -> None:
    scale.import_network = Plugin.import_network
    for _ in range(2):
        assert not is_hit(core.compile_model(model, "SCALE"))
    assert not cache.exists()
    assert caplog.records == []


def test_a_network_that_cannot_be_exported_is_used_all_the_same(
    core: Core, cache: Path, model: onnx.ModelProto, x: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedError("this one cannot be exported")

    network_class = type(core.compile_model(model, "SCALE", {"CACHE_DIR": ""}))
    monkeypatch.setattr(network_class, "export_sections", refuse)
    np.testing.assert_array_equal(core.compile_model(model, "SCALE")({"x": x})["y"], 3 * x)
    assert "this one cannot be exported" in caplog.text
    assert files(cache) == []


def test_a_model_that_cannot_be_compiled_fails_as_without_cache(
    core: Core, cache: Path, model: onnx.ModelProto, scale: Scale
) -> None:
    error = UnsupportedError("not this one")

    def refuse(*_: Any) -> Any:
        raise error

    scale.compile_model = refuse
    with pytest.raises(UnsupportedError) as caught:
        core.compile_model(model, "SCALE")
    assert caught.value is error
    with contextlib.suppress(FileNotFoundError):
        assert files(cache) == []


# -- the limit --------------------------------------------------------------------------------------------------


def test_the_least_recently_used_are_deleted(core: Core, cache: Path, make_model: MakeModel) -> None:
    models = [make_model(factor) for factor in range(1, 5)]
    entries: list[Path] = []
    for age, model in zip((400, 300, 200), models[:3], strict=True):
        core.compile_model(model, "SCALE")
        (entry,) = set(cache.iterdir()) - set(entries)
        entries.append(entry)
        os.utime(entry, (time.time() - age,) * 2)
    assert is_hit(core.compile_model(models[0], "SCALE")), "and so it is the last one used"
    size = entries[0].stat().st_size
    core.set_property({"CACHE_MAX_BYTES": int(3.5 * size)})
    core.compile_model(models[3], "SCALE")
    kept = [entry.exists() for entry in entries]
    assert kept == [True, False, True]
    core.set_property({"CACHE_MAX_BYTES": size // 2})
    core.compile_model(make_model(9), "SCALE")
    assert files(cache) == []


def test_only_what_the_cache_wrote_is_deleted(core: Core, cache: Path, make_model: MakeModel) -> None:
    cache.mkdir()
    abandoned, fresh = cache / f".{'0' * 32}.tmp", cache / f".{'1' * 32}.tmp"
    others = [cache / name for name in ("mine.blob", "notes.tmp", "0.blob", f"{'0' * 64}.blob.bak")]
    for path in (abandoned, fresh, *others):
        path.write_bytes(b"x" * 1000)
    for path in (abandoned, *others):
        os.utime(path, (time.time() - 3e6,) * 2)
    core.set_property({"CACHE_MAX_BYTES": 1})
    core.compile_model(make_model(2), "SCALE")
    assert files(cache) == sorted(path.name for path in (fresh, *others))
