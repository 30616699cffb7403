"""Networks of models in files, which are cached without being asked for.

If these fail, a user gets the network of a model as it was before it was changed, or waits for a compilation that was
made before; or a folder that cannot be used keeps a model from being compiled.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine.core.cache as cache_module
import engine.core.code as code_module
from engine import Core, Extension, Operator
from engine.blob import BlobReader, BlobWriter
from engine.cli.health.surroundings import examine_caches
from engine.cli.main import main
from engine.core import CacheContents, compilation, model_files, storing
from engine.core.file_index import FileIndex
from engine.core.model_files import ModelFiles, Stamp
from engine.errors import MissingExtensionError, ModelReadError, UnsupportedError
from engine.plugin_api import ExecutableNetwork

MakeModel = Callable[..., onnx.ModelProto]
Scale = Any

posix = pytest.mark.skipif(os.name != "posix", reason="needs permissions and links of POSIX")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """The user's cache, in which networks are stored at once; files have settled as soon as they are written."""
    folder = tmp_path / "home" / "networks"
    folder.parent.mkdir()
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(folder))
    monkeypatch.setattr(storing, "DELAY_SECONDS", 0)
    monkeypatch.setattr(model_files, "SETTLED_NS", 0)
    monkeypatch.setattr(cache_module, "_said", set())
    caplog.set_level(logging.INFO, "engine.cache")
    return folder


@pytest.fixture
def file(tmp_path: Path, make_model: MakeModel) -> Path:
    """A model: y = 3 x."""
    return saved(make_model(3), tmp_path / "model.onnx")


def saved(model: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    if external:
        model = onnx.ModelProto.FromString(model.SerializeToString())
        name = f"{path.name}.data"
        (path.parent / name).unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def compiled(core: Core, path: object, device: str = "SCALE", **config: object) -> ExecutableNetwork:
    network = core.compile_model(path, device, config)  # type: ignore[arg-type]
    storing.wait_until_stored()
    return network


def factor(network: ExecutableNetwork) -> float:
    return float(network({network.inputs[0].name: np.ones(network.inputs[0].shape.get_shape(), np.float32)})[0][0])


def hits(core: Core, path: object, count: int = 2, **config: object) -> list[bool]:
    return [compiled(core, path, **config).loaded_from_cache for _ in range(count)]


def names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{suffix}"))


def another(scale: Scale) -> Core:
    """A core of a later run of the application."""
    core = Core()
    core.register_plugin("SCALE", scale)
    return core


# -- what is cached ---------------------------------------------------------------------------------------------


def test_a_model_in_a_file_is_compiled_once(
    core: Core, cache: Path, scale: Scale, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    networks = [compiled(core, file), compiled(core, str(file)), compiled(another(scale), file)]
    assert [network.get_property("LOADED_FROM_CACHE") for network in networks] == [False, True, True]
    assert len(scale.compiled) == 1
    for network in networks:
        assert factor(network) == 3
        assert network.get_property("NETWORK_NAME") == "scaling"
        assert network.get_config("CACHE_DIR") == ""
    assert caplog.records == []


def test_only_files_are_cached_unless_a_folder_is_stated(core: Core, cache: Path, file: Path) -> None:
    with open(file, "rb") as stream:
        sources = [file.read_bytes(), onnx.load(file), core.read_model(file), stream]
        assert not any(compiled(core, source).loaded_from_cache for source in sources)
    assert not cache.exists()


@pytest.mark.parametrize("way", ["property", "configuration", "variable"])
def test_it_is_turned_off(core: Core, cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "property":
        core.set_property({"CACHE_DIR": ""})
    if way == "variable":
        monkeypatch.setenv("ENGINE_CACHE_DIR", "")
    config = {"CACHE_DIR": ""} if way == "configuration" else {}
    assert hits(core, file, **config) == [False, False]
    assert not cache.exists()


def test_the_users_cache_folder_is_the_default(
    core: Core, cache: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENGINE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hits(core, file) == [False, True]
    assert len(names(tmp_path / "xdg" / "engine-networks", ".blob")) == 1


def test_a_stated_folder_also_finds_files_without_reading_them(
    core: Core, cache: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.set_property({"CACHE_DIR": str(tmp_path / "stated")})
    sources = [file, file.read_bytes(), file]
    assert [compiled(core, source).loaded_from_cache for source in sources] == [False, True, True]
    monkeypatch.setattr(compilation, "read_file", unread)
    assert compiled(core, file).loaded_from_cache
    assert len(names(tmp_path / "stated", ".blob")) == 1
    assert not cache.exists()


def unread(*_: Any) -> Any:
    raise AssertionError("the model was read")


def test_a_hit_reads_nothing_of_the_model(core: Core, cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(core, file)
    monkeypatch.setattr(compilation, "read_file", unread)
    monkeypatch.setattr(model_files, "_hash_of_file", unread)
    assert factor(compiled(core, file)) == 3


def test_a_hit_loads_nothing_of_the_compiler(cache: Path, make_model: MakeModel, tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
from engine import Core
network = Core().compile_model(sys.argv[1], "CPU")
assert network({"x": np.ones(2, "float32")})["y"][0] == 3
parts = "engine.onnx", "engine.ops", "engine.passes", "engine.lowering", "google.protobuf"
print(network.loaded_from_cache, *(each for each in parts if each in sys.modules))
"""
    path = saved(make_model(3), tmp_path / "model.onnx", external=True)
    for expected in ("False engine.onnx engine.ops engine.passes engine.lowering google.protobuf", "True"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, check=True, text=True
        )  # fmt: skip
        assert done.stdout.strip() == expected


def test_the_devices_of_auto_cache_their_networks(cache: Path, make_model: MakeModel, tmp_path: Path) -> None:
    path = saved(make_model(3), tmp_path / "model.onnx", external=True)
    for device in ("AUTO:CPU", "AUTO"):
        found = []
        for _ in range(2):
            core = Core()
            core.set_property("AUTO", {"MEASURE_SECONDS": 0.0, "REUSE_CHOICE": False})
            network = compiled(core, path, device)
            found.append((network.loaded_from_cache, factor(network)))
        assert found == [(device == "AUTO", 3), (True, 3)], device
    saved(make_model(4), path, external=True)
    network = compiled(Core(), path, "AUTO:CPU")
    assert (network.loaded_from_cache, factor(network)) == (False, 4)


def test_a_program_that_ends_at_once_stores_its_network(cache: Path, here: Path, file: Path) -> None:
    program = """
import sys
from engine import Core
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
print(core.compile_model(sys.argv[1], "SCALE").loaded_from_cache)
"""
    for expected in ("False", "True"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(file)], capture_output=True, cwd=here, check=True, text=True
        )
        assert (done.stdout.strip(), done.stderr) == (expected, "")


# -- the same content -------------------------------------------------------------------------------------------


@posix
def test_a_copy_a_link_and_a_touched_file_are_the_same_model(
    core: Core, cache: Path, file: Path, tmp_path: Path
) -> None:
    compiled(core, file)
    copy, link = tmp_path / "other" / "copy.onnx", tmp_path / "link.onnx"
    copy.parent.mkdir()
    shutil.copy(file, copy)
    link.symlink_to(copy)
    assert hits(core, copy, 1) == hits(core, link, 1) == [True]
    os.utime(file)
    assert hits(core, file) == [True, True]
    assert len(names(cache, ".blob")) == 1


def test_a_model_without_a_name_has_that_of_its_file(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model(3, name="")
    first, second = saved(model, tmp_path / "first.onnx"), saved(model, tmp_path / "second.onnx")
    found = [compiled(core, path).name for path in (first, second, first, second)]
    assert found == ["first", "second", "first", "second"]
    assert hits(core, second, 1) == [True]


def test_weights_that_the_device_leaves_as_they_are_stay_in_the_model(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(make_model(3, size=4000), tmp_path / "model.onnx", external=True)
    compiled(core, path)
    (entry,) = cache.glob("*.blob")
    assert entry.stat().st_size < 4 * 4000
    assert BlobReader(entry).manifest.metadata["bound"]["sections"][0]["place"] == {
        "file": "model.onnx.data",
        "start": 0,
    }
    network = compiled(core, path)
    assert (network.loaded_from_cache, factor(network)) == (True, 3)
    network.export_model(tmp_path / "whole.blob")
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert factor(core.import_model(tmp_path / "whole.blob")) == 3
    for each in (path, tmp_path / "model.onnx.data"):
        each.unlink()
    network = compiled(core, tmp_path / "copy" / "model.onnx")
    assert (network.loaded_from_cache, factor(network)) == (True, 3)


def test_weights_that_changed_after_the_model_was_found_are_not_used(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(make_model(3, size=4000), tmp_path / "model.onnx", external=True)
    data = tmp_path / "model.onnx.data"
    other = data.read_bytes().replace(np.float32(3).tobytes(), np.float32(4).tobytes())
    compiled(core, path)
    real = FileIndex.entry

    def replacing(index: FileIndex, key: str) -> str:
        (tmp_path / "new").write_bytes(other)
        os.replace(tmp_path / "new", data)
        return real(index, key)

    with monkeypatch.context() as patched:
        patched.setattr(FileIndex, "entry", replacing)
        network = compiled(core, path)
    assert (network.loaded_from_cache, factor(network)) == (False, 4)


# -- files that change ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("way", ["written", "replaced"])
def test_a_model_that_changed_is_compiled(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, external: bool, way: str
) -> None:
    """Its size stays the same, and so does its time of change, as when a copy keeps it."""
    path = saved(make_model(3, size=64), tmp_path / "model.onnx", external=external)
    data = tmp_path / "model.onnx.data" if external else path
    assert hits(core, path) == [False, True]
    status = data.stat()
    content = data.read_bytes().replace(np.float32(3).tobytes(), np.float32(4).tobytes())
    if way == "written":
        data.write_bytes(content)
    else:
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", data)
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))
    network = compiled(core, path)
    assert (network.loaded_from_cache, factor(network)) == (False, 4)
    assert hits(core, path, 1) == [True]


@posix
def test_a_link_that_leads_elsewhere_is_another_model(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    for number in (3, 4):
        (tmp_path / f"{number}").mkdir()
        saved(make_model(number), tmp_path / f"{number}" / "model.onnx", external=True)
    link = tmp_path / "model.onnx"
    for number, is_hit in ((3, False), (4, False), (3, True), (4, True)):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / f"{number}" / "model.onnx")
        network = compiled(core, link)
        assert (network.loaded_from_cache, factor(network)) == (is_hit, number)


@posix
def test_one_file_with_data_of_two_folders_is_two_models(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    """Hard links have one inode, and the data is beside each of them."""
    for number in (3, 4):
        (tmp_path / f"{number}").mkdir()
        saved(make_model(number), tmp_path / f"{number}" / "model.onnx", external=True)
    os.unlink(tmp_path / "4" / "model.onnx")
    os.link(tmp_path / "3" / "model.onnx", tmp_path / "4" / "model.onnx")
    for _ in range(2):
        for number in (3, 4):
            assert factor(compiled(core, tmp_path / f"{number}" / "model.onnx")) == number


def test_a_file_changed_just_before_is_found_by_its_content(
    core: Core, cache: Path, file: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coarse clock gives two changes one time: the stamp of a fresh file says nothing."""
    monkeypatch.setattr(model_files, "SETTLED_NS", 3600 * 10**9)
    real = Stamp.of.__func__  # type: ignore[attr-defined]
    times = file.stat()
    frozen = classmethod(lambda cls, status: real(cls, status)._replace(
        inode=times.st_ino, mtime_ns=times.st_mtime_ns, ctime_ns=times.st_ctime_ns))  # fmt: skip
    monkeypatch.setattr(Stamp, "of", frozen)
    assert hits(core, file) == [False, True]
    saved(make_model(4), file)
    network = compiled(core, file)
    assert (network.loaded_from_cache, factor(network)) == (False, 4)
    saved(make_model(3), file)
    network = compiled(core, file)
    assert (network.loaded_from_cache, factor(network)) == (True, 3)


def test_a_clock_that_jumped_back_makes_stamps_worthless(
    core: Core, cache: Path, file: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hits(core, file) == [False, True]
    (record,) = cache.glob("*.file")
    later = json.loads(record.read_text()) | {"written": time.time_ns() + 3600 * 10**9}
    # As if the file had been changed, and a clock set back had given it the same time.
    record.write_text(json.dumps(later))
    hashed: list[Path] = []
    real = model_files._hash_of_file

    def counted(path: Any, expected: Stamp) -> str | None:
        hashed.append(path)
        return real(path, expected)

    monkeypatch.setattr(model_files, "_hash_of_file", counted)
    assert hits(core, file, 1) == [True]
    assert hashed == [file]


@pytest.mark.parametrize("when", ["read", "compiled"])
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("settled", [0, 3600 * 10**9])
def test_a_model_that_changes_while_it_is_compiled_is_not_stored(
    core: Core,
    cache: Path,
    make_model: MakeModel,
    tmp_path: Path,
    scale: Scale,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
    external: bool,
    settled: int,
) -> None:
    monkeypatch.setattr(model_files, "SETTLED_NS", settled)
    path = saved(make_model(3), tmp_path / "model.onnx", external=external)
    data = tmp_path / "model.onnx.data" if external else path
    other = data.read_bytes().replace(np.float32(3).tobytes(), np.float32(4).tobytes())

    def replace() -> None:
        (tmp_path / "new").write_bytes(other)
        os.replace(tmp_path / "new", data)

    home, name = (compilation, "read_file") if when == "read" else (scale, "compile_model")
    real = getattr(home, name)

    def replacing(*arguments: Any) -> Any:
        if when == "read" and not external:
            replace()  # after the index looked at it
        made = real(*arguments)
        replace()
        return made

    with monkeypatch.context() as patched:
        patched.setattr(home, name, replacing)
        compiled(core, path)
    assert names(cache, ".blob") == []
    network = compiled(core, path)
    assert (network.loaded_from_cache, factor(network)) == (False, 4)
    assert hits(core, path, 1) == [True]


@posix
def test_what_is_no_file_is_read_as_without_a_cache(core: Core, cache: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (("pipe", "not a regular file"), (".", "is a directory"), ("absent", "cannot be opened")):
        with pytest.raises(ModelReadError, match=message):
            compiled(core, tmp_path / path)
    with pytest.raises(ModelReadError, match="path is empty"):
        compiled(core, "")
    assert not cache.exists()


def test_a_relative_path_is_of_the_folder_at_the_time(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (3, 4):
        (tmp_path / f"{number}").mkdir()
        saved(make_model(number), tmp_path / f"{number}" / "model.onnx")
    for number in (3, 4, 3, 4):
        monkeypatch.chdir(tmp_path / f"{number}")
        assert factor(compiled(core, "model.onnx")) == number


# -- what else a network depends on -----------------------------------------------------------------------------


def test_code_that_was_changed_compiles_again(
    core: Core, cache: Path, file: Path, scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A developer edits a pass, and the version stays the same."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "a_pass.py").write_text("x = 1\n")
    monkeypatch.setattr(code_module, "_ENGINE_FOLDER", str(folder))
    monkeypatch.setattr(code_module, "LOADED_NS", time.time_ns() + 3600 * 10**9)
    assert hits(core, file) == [False, True]
    (folder / "a_pass.py").write_text("x = 2\n")
    assert hits(another(scale), file) == [False, True]
    # A process that began before the change runs the old code.
    monkeypatch.setattr(code_module, "LOADED_NS", time.time_ns() - 3600 * 10**9)
    (folder / "a_pass.py").write_text("x = 3\n")
    assert hits(core, file) == [False, False]


def test_a_stated_folder_may_be_shared_by_machines(
    file: Path, scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """Each has installed the same version at another time; but a package that is edited where it is counts."""
    for folder, expected in (("site-packages", True), ("checkout", False)):
        package = tmp_path / folder / "engine"
        package.mkdir(parents=True)
        monkeypatch.setattr(code_module, "_ENGINE_FOLDER", str(package))
        monkeypatch.setattr(code_module, "LOADED_NS", time.time_ns() + 10**12)
        found = []
        for number in range(2):
            (package / "a_pass.py").write_text("x = 1\n")
            os.utime(package / "a_pass.py", (number, number))
            found.append(compiled(another(scale), file, CACHE_DIR=str(tmp_path / "shared" / folder)).loaded_from_cache)
        assert found == [False, expected]


def test_a_plugin_whose_code_is_in_no_file_is_not_cached(core: Core, cache: Path, file: Path, scale: Scale) -> None:
    namespace: dict[str, Any] = {"ScalePlugin": scale, "__name__": "console"}
    exec(compile("class Own(ScalePlugin):\n    def extra(self): pass\n", "<console>", "exec"), namespace)
    core.register_plugin("OWN", namespace["Own"])
    assert [compiled(core, file, "OWN").loaded_from_cache for _ in range(2)] == [False, False]
    assert not cache.exists()


def test_another_machine_and_configuration_compile_again(core: Core, cache: Path, file: Path, scale: Scale) -> None:
    assert hits(core, file) == [False, True]
    assert factor(compiled(core, file, SHIFT=1)) == 4
    scale.features = {"unit": ["scaler", "another"]}
    assert hits(core, file) == [False, True]


@pytest.mark.parametrize(
    "variable", ["ENGINE_PASSES_WITHOUT", "ENGINE_ENABLE_VISUALIZE_TRACING", "ENGINE_PROFILE_PASS_ENABLE"]
)
def test_who_examines_the_passes_gets_them_run(
    core: Core, cache: Path, file: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    compiled(core, file)
    monkeypatch.setenv(variable, "GeluFusion")
    assert hits(core, file) == [False, False]


def test_what_compiling_does_besides_is_done(core: Core, cache: Path, file: Path, scale: Scale) -> None:
    scale.compile_effects = ("SHIFT",)
    assert hits(core, file) == [False, True]
    assert hits(core, file, SHIFT=1) == [False, False]
    assert hits(core, file, SHIFT=0) == [True, True]


def test_a_model_with_operators_of_an_extension_is_not_cached(cache: Path, tmp_path: Path) -> None:
    """Its code is in no key."""
    thrice = Operator(
        name="Thrice",
        domain="test.files",
        inputs=["x"],
        infer=lambda inputs, _: inputs[0],
        evaluate=lambda x: x + x + x,
    )
    core = Core()
    core.add_extension(Extension("thrice", "1", [thrice]))
    graph = helper.make_graph(
        [helper.make_node("Thrice", ["x"], ["y"], "thrice", domain="test.files")],
        "extended",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.files", 1)]
    path = saved(helper.make_model(graph, ir_version=8, opset_imports=opsets), tmp_path / "model.onnx")
    networks = [compiled(core, path, "CPU") for _ in range(2)]
    assert [(network.loaded_from_cache, factor(network)) for network in networks] == [(False, 3), (False, 3)]
    networks = [compiled(core, path, "CPU", CACHE_DIR=str(tmp_path / "stated")) for _ in range(2)]
    assert [(network.loaded_from_cache, factor(network)) for network in networks] == [(False, 3), (True, 3)]
    with pytest.raises(MissingExtensionError):
        compiled(Core(), path, "CPU", CACHE_DIR=str(tmp_path / "stated"))


# -- initializers that are inputs -------------------------------------------------------------------------------


def overridable(path: Path, number: float = 3.0) -> Path:
    """y = x * f, whose f the file offers as an input."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "f"], ["y"], "mul")],
        "overridable",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "f")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.full(2, number, np.float32), "f")],
    )
    return saved(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_initializers_get_other_values_as_ever(cache: Path, tmp_path: Path) -> None:
    path, x = overridable(tmp_path / "model.onnx"), np.ones(2, np.float32)
    found = []
    for _ in range(2):
        network = compiled(Core(), path, "CPU")
        request = network.create_infer_request()
        results = [network({"x": x}), network({"x": x, "f": 5 * x}), network({"x": x}), request.infer({"x": x, "f": x})]
        values = [float(result["y"][0]) for result in results]
        found.append((network.loaded_from_cache, [str(port) for port in network.overridable], values))
    assert found == [(False, found[0][1], [3, 5, 3, 1]), (True, found[0][1], [3, 5, 3, 1])]
    assert len(found[0][1]) == 1


def test_initializers_of_a_file_that_changed_are_an_error(cache: Path, tmp_path: Path) -> None:
    path, x = overridable(tmp_path / "model.onnx"), np.ones(2, np.float32)
    compiled(Core(), path, "CPU")
    network = compiled(Core(), path, "CPU")
    assert network.loaded_from_cache
    overridable(path, 4.0)
    assert network({"x": x})["y"][0] == 3
    with pytest.raises(ModelReadError, match="has changed since its network was loaded"):
        network({"x": x, "f": x})


# -- folders and entries that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".blob", ".file", ".data"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff" * 100, b"[" * 100_000], ids=["empty", "{}", "bytes", "deep"])
def test_a_damaged_file_of_the_cache_is_replaced(
    core: Core, cache: Path, file: Path, caplog: pytest.LogCaptureFixture, suffix: str, damage: bytes
) -> None:
    compiled(core, file)
    (path,) = cache.glob(f"*{suffix}")
    path.write_bytes(damage)
    if suffix == ".data":
        os.utime(file)
    assert factor(compiled(core, file)) == 3
    assert len(caplog.records) == 1
    caplog.clear()
    assert hits(core, file, 1) == [True]
    assert caplog.records == []


@pytest.mark.parametrize(
    "change",
    [
        {"plugin_version": "9.9.0"},
        {"engine_version": "9.9.0"},
        {"api_version": "99"},
        {"requirements": {"unit": ["of another machine"]}},
        {"device": "OTHER"},
        {"inputs": [{"name": "x"}]},
        {"metadata": {"network_name": "scaling"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_forged_entry_whose_hashes_are_right_is_compiled_again(
    core: Core, cache: Path, file: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    compiled(core, file)
    (entry,) = cache.glob("*.blob")
    with BlobReader(entry) as reader:
        kept = {"metadata": reader.manifest.metadata} | change
        if "metadata" in change:
            kept["metadata"] = {**change["metadata"], "cache_key": reader.manifest.metadata["cache_key"]}
        writer = BlobWriter(replace(reader.manifest, **kept))
        for name in reader.section_names:
            writer.add_section(name, bytes(reader.section(name)))
    writer.write_file(entry, is_private=True)
    network = compiled(core, file)
    assert (network.loaded_from_cache, factor(network)) == (False, 3)
    (record,) = caplog.records
    assert "the model is compiled again" in record.getMessage()
    assert hits(core, file, 1) == [True]


@pytest.mark.parametrize("damage", [
    lambda data: data[:50], lambda data: data[:-1], lambda data: data + b"\0",
    lambda data: bytes([*data[:-1], data[-1] ^ 1]), lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
], ids=["header only", "cut", "longer", "a bit of a section", "a bit of the header"])  # fmt: skip
def test_an_entry_that_is_cut_or_has_a_wrong_bit_is_compiled_again(
    core: Core, cache: Path, file: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    compiled(core, file)
    (entry,) = cache.glob("*.blob")
    entry.write_bytes(damage(entry.read_bytes()))
    assert factor(compiled(core, file)) == 3
    assert len(caplog.records) == 1
    assert hits(core, file, 1) == [True]


def test_another_instruction_set_compiles_again(cache: Path, file: Path) -> None:
    program = """
import sys
from engine import Core
network = Core().compile_model(sys.argv[1], "CPU")
print(network.loaded_from_cache, network.get_property("INSTRUCTION_SET"))
"""
    found = []
    for isa in ("generic", "avx2", "generic"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(file)],
            capture_output=True, check=True, text=True, env={**os.environ, "ENGINE_MAX_ISA": isa},
        )  # fmt: skip
        found.append(done.stdout.split())
    assert found[0] == ["False", "generic"]
    assert found[2] == ["True", "generic"]
    assert found[1][0] == str(found[1][1] == "generic")


@pytest.mark.parametrize("suffix", [".blob", ".file", ".data"])
def test_a_file_of_another_model_in_its_place_is_not_used(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, suffix: str
) -> None:
    paths = [saved(make_model(number), tmp_path / f"{number}.onnx") for number in (3, 4)]
    found = []
    for path in paths:
        before = set(cache.glob(f"*{suffix}"))
        compiled(core, path)
        found += set(cache.glob(f"*{suffix}")) - before
    found[0].write_bytes(found[1].read_bytes())
    if suffix == ".data":
        os.utime(paths[0])
    assert [factor(compiled(core, path)) for path in paths] == [3, 4]


@posix
def test_what_others_can_change_is_not_used(
    core: Core, cache: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(core, file)
    cache.chmod(0o777)
    assert hits(core, file) == [False, False]
    (record,) = caplog.records
    assert "can be written by every user" in record.getMessage()
    assert record.levelname == "INFO"


@posix
@pytest.mark.parametrize("suffix", [".file", ".data"])
def test_an_index_that_others_can_change_is_not_used(core: Core, cache: Path, file: Path, suffix: str) -> None:
    compiled(core, file)
    (path,) = cache.glob(f"*{suffix}")
    path.chmod(0o666)
    if suffix == ".data":
        os.utime(file)
    assert hits(core, file) == ([True, True] if suffix == ".file" else [False, True])


@posix
def test_the_cache_is_the_users_alone(core: Core, cache: Path, file: Path) -> None:
    compiled(core, file)
    modes = {path.stat().st_mode & 0o777 for path in cache.iterdir()}
    assert (cache.stat().st_mode & 0o777, modes) == (0o700, {0o600})


def test_a_folder_that_cannot_be_made_is_said_once(
    core: Core, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(cache / "below"))
    assert hits(core, file, 3) == [False, False, False]
    (record,) = caplog.records
    assert record.levelname == "INFO"


@pytest.mark.parametrize("home", ["read-only", "unset", "absent"])
@posix
def test_without_a_usable_home_models_are_compiled(here: Path, file: Path, tmp_path: Path, home: str) -> None:
    program = """
import hashlib, os, sys
import numpy as np
from engine import Core
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
core.compile_model(sys.argv[1], "SCALE", {"CACHE_DIR": ""})  # loads all modules
if os.geteuid() == 0:
    os.seteuid(65534)
network = core.compile_model(sys.argv[1], "SCALE")
print(network.loaded_from_cache, network({"x": np.ones(2, "float32")})["y"][0])
"""
    (tmp_path / "read-only").mkdir(mode=0o500)
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "ENGINE_CACHE_DIR")}
    if home != "unset":
        environment["HOME"] = str(tmp_path / home)
    shutil.copy(file, model := Path(f"/tmp/{tmp_path.name}-{os.getpid()}.onnx"))
    model.chmod(0o644)
    try:
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-B", "-c", program, str(model)], capture_output=True, cwd=here, env=environment,
                text=True,
            )  # fmt: skip
            assert (done.stdout.strip(), done.stderr) == ("False 3.0", "")
    finally:
        model.unlink()


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are not there")
@pytest.mark.parametrize("limit", [0, 300, 2000])
def test_a_full_disk_leaves_no_half_written_entry(
    cache: Path, here: Path, make_model: MakeModel, tmp_path: Path, limit: int
) -> None:
    path = saved(make_model(3, size=1000), tmp_path / "model.onnx")
    program = """
import json, resource, signal, sys
import numpy as np
from engine import Core
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
network = core.compile_model(sys.argv[1], "SCALE")
print(network({"x": np.full(1000, 2, "float32")})["y"].sum())
"""
    command = [sys.executable, "-B", "-c", program, str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, cwd=here, check=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("6000.0", "")
    assert names(cache, "") == []


def test_an_entry_that_is_removed_while_it_is_mapped_stays_usable(core: Core, cache: Path, file: Path) -> None:
    compiled(core, file)
    network = compiled(core, file)
    assert network.loaded_from_cache
    shutil.rmtree(cache)
    assert factor(network) == 3
    assert hits(core, file) == [False, True]


def test_a_network_that_cannot_be_exported_is_used_all_the_same(
    core: Core, cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedError("this one cannot be exported")

    monkeypatch.setattr(type(compiled(core, file, CACHE_DIR="")), "export_sections", refuse)
    assert factor(compiled(core, file)) == 3
    assert "this one cannot be exported" in caplog.text
    assert names(cache, "") == []


# -- many at once -----------------------------------------------------------------------------------------------


def test_processes_store_and_find_one_model_at_once(cache: Path, here: Path, file: Path) -> None:
    program = """
import sys
import numpy as np
from engine import Core
core = Core()
core.register_plugin("SCALE", "conftest:ScalePlugin")
for _ in range(3):
    network = core.compile_model(sys.argv[1], "SCALE")
    print(network({"x": np.ones(2, "float32")})["y"][0])
"""
    command = [sys.executable, "-c", program, str(file)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=here) for _ in range(4)]
    outputs = [process.communicate(timeout=120)[0].decode() for process in running]
    assert outputs == ["3.0\n" * 3] * 4
    assert len(names(cache, ".blob")) == 1
    assert names(cache, ".tmp") == []


def test_a_program_that_compiles_faster_than_it_stores_stores_itself(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks that wait to be stored take memory."""
    monkeypatch.setattr(storing, "DELAY_SECONDS", 3600)
    is_over = threading.Event()
    monkeypatch.setattr(threading.main_thread(), "join", is_over.wait)
    try:
        for number in range(8):
            core.compile_model(saved(make_model(number), tmp_path / f"{number}.onnx"), "SCALE")
        assert len(names(cache, ".blob")) == 4
    finally:
        is_over.set()
    storing.wait_until_stored()
    assert len(names(cache, ".blob")) == 8


def test_threads_use_it_while_files_change(cache: Path, scale: Scale, make_model: MakeModel, tmp_path: Path) -> None:
    """A thread replaces the models by others of the same size: a result is of one of them, and in the end the last."""
    path = saved(make_model(1), tmp_path / "model.onnx")
    wrong: list[Any] = []
    is_done = threading.Event()

    def use() -> None:
        core = another(scale)
        last = 0.0
        while not is_done.is_set():
            found = factor(core.compile_model(path, "SCALE"))
            if found < last:
                wrong.append((last, found))
            last = found

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2, 12):
        saved(make_model(number), tmp_path / "new.onnx")
        os.replace(tmp_path / "new.onnx", path)
        time.sleep(0.05)
    is_done.set()
    for thread in threads:
        thread.join(120)
    storing.wait_until_stored()
    assert wrong == []
    assert factor(compiled(another(scale), path)) == 11


# -- the limit --------------------------------------------------------------------------------------------------


def test_the_limit_is_two_gibibytes(core: Core) -> None:
    assert core.get_property("CACHE_MAX_BYTES") == 2 << 30


def test_what_exceeds_the_limit_is_not_written(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core.set_property({"CACHE_MAX_BYTES": 3000})
    assert hits(core, saved(make_model(3, size=1000), tmp_path / "model.onnx")) == [False, False]
    assert names(cache, "") == []
    assert "more than CACHE_MAX_BYTES" in caplog.text


def test_index_files_count_and_are_deleted_with_the_entries(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    paths = [saved(make_model(number), tmp_path / f"{number}.onnx") for number in range(1, 9)]
    core.set_property({"CACHE_MAX_BYTES": 6000})
    for path in paths:
        compiled(core, path)
    assert sum(path.stat().st_size for path in cache.iterdir()) < 8000
    assert hits(core, paths[-1], 1) == [True]


def test_index_files_that_nobody_uses_are_deleted(
    core: Core, cache: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    paths = [saved(make_model(number), tmp_path / f"{number}.onnx") for number in (3, 4)]
    compiled(core, paths[0])
    for path in cache.iterdir():
        os.utime(path, (time.time() - 40 * 24 * 3600,) * 2)
    compiled(core, paths[1])
    assert [len(names(cache, suffix)) for suffix in (".blob", ".file", ".data")] == [2, 1, 1]
    assert hits(core, paths[0]) == [False, True]


def test_an_index_never_names_files_outside_of_the_models_folder(cache: Path, file: Path) -> None:
    files = ModelFiles(file)
    assert files.place("../secret") is None
    assert files.place("/etc/passwd") is None
    assert files.place("a\0b") is None
    assert FileIndex(cache_module.CompileCache(str(cache)).files).find(files) is None


# -- clearing ---------------------------------------------------------------------------------------------------


def test_it_is_cleared(core: Core, cache: Path, file: Path, tmp_path: Path) -> None:
    compiled(core, file)
    (cache / "mine.txt").write_text("not the cache's")
    size = sum(path.stat().st_size for path in cache.iterdir()) - len("not the cache's")
    assert core.clear_cache() == CacheContents(str(cache), 1, size)
    assert names(cache, "") == ["mine.txt"]
    assert hits(core, file) == [False, True]
    core.set_property({"CACHE_DIR": str(tmp_path / "stated")})
    assert core.clear_cache() == CacheContents(str(tmp_path / "stated"), 0, 0)
    compiled(core, file)
    assert core.clear_cache().networks == 1
    core.set_property({"CACHE_DIR": ""})
    assert core.clear_cache().networks == 0
    assert len(names(cache, ".blob")) == 1


def test_the_doctor_shows_and_clears_it(
    core: Core, cache: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(core, file)
    (shown,) = [each for each in examine_caches()[0] if each.path == str(cache)]
    assert (shown.networks, shown.files) == (1, 3)
    assert main(["doctor", "--clear-cache"]) == 0
    assert f"{cache}: 1 network deleted" in capsys.readouterr().out
    assert names(cache, "") == []
