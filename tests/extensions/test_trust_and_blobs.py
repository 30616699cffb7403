"""Compiled networks name the extensions that they need; nothing but the application or an installed package loads one.

If this fails, a file from outside makes a machine run code, or a blob fails long after it was imported.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Core, Extension, Operator
from engine.blob import BlobReader, BlobWriter, is_blob
from engine.cli.main import main
from engine.errors import (
    BlobError,
    BlobIncompatibleError,
    Cancelled,
    DeviceError,
    EngineError,
    ExtensionConflictError,
    ExtensionError,
    MissingExtensionError,
)
from engine.ops import find_op
from tests.extensions.conftest import Build, model_of

X = np.array([[1, -2, 3], [4, 5, 6]], np.float32)
MODULE = textwrap.dedent("""
    from engine import Extension, Operator

    TRIPLE = Operator(
        name="Triple", domain="test.module", inputs=["x"], infer=lambda inputs, attributes: inputs[0],
        evaluate=lambda x: x * 3,
    )
    EXTENSION = Extension("triples", "2.1", [TRIPLE])
    LIST = [TRIPLE]
    NOTHING = 3
""")
RUN = textwrap.dedent("""
    import sys
    import numpy as np
    from engine import Core, EngineError
    core, end = Core(), sys.argv.index("--")
    for extension in sys.argv[end + 1 :]:
        core.add_extension(extension)
    for blob in sys.argv[1:end]:
        try:
            print(core.check_blob(blob).compatible)
            print(core.import_model(blob)(np.array([[1, -2, 3], [4, 5, 6]], np.float32))["y"].tolist())
        except EngineError as e:
            print(type(e).__name__, e)
""")


def triple() -> onnx.ModelProto:
    """6 * max(x, 0)."""
    return model_of(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Triple", ["r"], ["t"], "triple", domain="test.module"),
        helper.make_node("Affine", ["t"], ["y"], "affine", domain="test.native", scale=2.0, axis=0),
    )


@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("module") / "triple_operators.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


def in_another_process(*command: object, path: Path | None = None, cwd: Path | None = None) -> tuple[int, str, str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def command(*arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process, where extensions belong to cores all the same."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


# -- blobs ------------------------------------------------------------------------------------------------------


def test_a_blob_needs_its_extension_in_another_process(module: Path, build: Build, tmp_path: Path) -> None:
    core, blobs = Core(), []
    core.add_extension(module)
    core.add_extension(build())
    for device in ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"):
        blobs.append(tmp_path / f"{len(blobs)}.blob")
        core.compile_model(triple(), device).export_model(blobs[-1])
        assert BlobReader(blobs[-1]).manifest.requirements["extensions"] == ["tests 1.0", "triples 2.1"]
    code, out, err = in_another_process("-c", RUN, *blobs, "--", module, build())
    assert (code, out) == (0, f"True\n{(np.maximum(X, 0) * 6).tolist()}\n" * 3), err
    code, out, err = in_another_process("-c", RUN, *blobs, "--", build())
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0::2] == ["False"] * 3
    for line in lines[1::2]:
        assert line.startswith("BlobIncompatibleError the blob needs extension triples 2.1, which this core does not")
        for way in ("core.add_extension", "--extension", "engine.ops"):
            assert way in line
    for path in blobs:
        with pytest.raises(BlobIncompatibleError, match=r"extension tests 1.0, .*extension triples 2.1"):
            Core().import_model(path)


def test_who_imports_a_blob_and_exports_it_needs_the_same(build: Build, tmp_path: Path) -> None:
    core = Core()
    core.add_extension(build())
    node = helper.make_node("Affine", ["x"], ["y"], domain="test.native", scale=2.0, axis=0)
    core.compile_model(model_of(node), "CPU").export_model(tmp_path / "first.blob")
    core.import_model(tmp_path / "first.blob").export_model(tmp_path / "again.blob")
    assert BlobReader(tmp_path / "again.blob").manifest.requirements["extensions"] == ["tests 1.0"]
    np.testing.assert_array_equal(core.import_model(tmp_path / "again.blob")(X)["y"], X * 2)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE", "AUTO:TEMPLATE"])
def test_a_blob_whose_requirement_was_removed_runs_by_no_extension_of_another_core(build: Build, device: str) -> None:
    """Definitions of operators are the process's; that a core may use them is the core's."""
    core, stream = Core(), io.BytesIO()
    core.add_extension(build())
    node = helper.make_node("Affine", ["x"], ["y"], domain="test.native", scale=2.0, axis=0)
    core.compile_model(model_of(node), device).export_model(stream)
    with pytest.raises(BlobIncompatibleError, match=r"extension tests 1\.0"):
        Core().import_model(stream.getvalue())
    for removed in ({}, {"extensions": []}, {"extensions": "others 1.0"}):
        stripped = without_requirement(stream.getvalue(), removed)
        for importing in (Core(), core):
            with pytest.raises(
                BlobError, match=r"Affine.* is an operator of extension tests 1\.0|needs extension others"
            ):
                importing.import_model(stripped)


def without_requirement(blob: bytes, other: dict[str, Any]) -> bytes:
    """The blob with other requirements, also in the blobs inside it; all hashes are right."""
    reader, written = BlobReader(blob), io.BytesIO()
    kept = {name: value for name, value in reader.manifest.requirements.items() if name != "extensions"}
    writer = BlobWriter(replace(reader.manifest, requirements={**kept, **other}))
    for name in reader.section_names:
        data = bytes(reader.section(name))
        writer.add_section(name, without_requirement(data, other) if is_blob(data) else data)
    writer.write(written)
    return written.getvalue()


def test_a_forged_blob_cannot_make_a_kernel_write_beyond_its_output(build: Build) -> None:
    """Its hashes are right; it declares one element where the kernel writes a million."""
    core, count = Core(), 1 << 20
    core.add_extension(build())

    def edit(graph: onnx.GraphProto) -> None:
        (declared,) = [each for each in graph.value_info if each.name == "a"]
        declared.type.tensor_type.shape.dim[0].dim_value = 1

    said = (
        r"Affine `affine` \(tests 1.0\): its outputs are declared as f32\[1\], but the type rule gives f32\[1048576\]"
    )
    with pytest.raises(DeviceError, match=said):
        core.import_model(forged(core, "CPU", (count,), edit))(np.ones(count, np.float32))


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize("shape", [(4,), ("n",)])
def test_a_forged_blob_cannot_give_a_kernel_attributes_of_other_types(build: Build, device: str, shape: Any) -> None:
    """Kernels read an attribute's values by its declared type."""
    core = Core()
    core.add_extension(build())
    for name, value in (("scale", "1"), ("mode", 1), ("mode", [1]), ("offsets", "1"), ("offsets", ["1"])):

        def edit(graph: onnx.GraphProto, name: str = name, value: Any = value) -> None:
            (node,) = [each for each in graph.node if each.op_type == "Affine"]
            (given,) = [each for each in node.attribute if each.name == name]
            given.CopyFrom(helper.make_attribute(name, value))

        with pytest.raises(EngineError, match=rf"Affine `affine`: attribute '{name}' must be of type"):
            core.import_model(forged(core, device, shape, edit))(np.ones(4, np.float32))


def forged(core: Core, device: str, shape: Any, edit: Callable[[onnx.GraphProto], None]) -> bytes:
    """A blob with an Affine `affine` to `a`, whose graph was changed and whose hashes are right."""
    attributes = {"axis": 0, "scale": 1.0, "mode": "add", "offsets": [1.0]}
    model = model_of(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Affine", ["r"], ["a"], "affine", domain="test.native", **attributes),
        helper.make_node("Softmax", ["a"], ["y"]),
        shape=shape,
    )
    exported, written = io.BytesIO(), io.BytesIO()
    core.compile_model(model, device).export_model(exported)
    blob = BlobReader(exported.getvalue())
    writer = BlobWriter(blob.manifest)
    for name in blob.section_names:
        content = bytes(blob.section(name))
        if name == "graph":
            proto = onnx.ModelProto.FromString(content)
            edit(proto.graph)
            content = proto.SerializeToString()
        writer.add_section(name, content)
    writer.write(written)
    return written.getvalue()


def test_another_version_is_not_the_extension(module: Path, build: Build, tmp_path: Path) -> None:
    blob = tmp_path / "triple.blob"
    core, other = Core(), Core()
    core.add_extension(module)
    for each in (core, other):
        each.add_extension(build())
    core.compile_model(triple(), "TEMPLATE").export_model(blob)
    operator = Operator(name="Other", domain="test.versions", inputs=["x"], infer=lambda i, a: i[0], evaluate=abs)
    other.add_extension(Extension("triples", "2.0", [operator]))
    with pytest.raises(BlobIncompatibleError, match=r"triples 2.1, .* this core has version 2.0 of it"):
        other.import_model(blob)
    with pytest.raises(ExtensionConflictError, match=r"triples 2.1: this core has version 2.0"):
        other.add_extension(module)


def test_a_network_without_extensions_requires_none(module: Path, tmp_path: Path) -> None:
    core = Core()
    core.add_extension(module)
    core.compile_model(model_of(helper.make_node("Relu", ["x"], ["y"])), "CPU").export_model(tmp_path / "r.blob")
    assert "extensions" not in BlobReader(tmp_path / "r.blob").manifest.requirements


def test_a_cached_network_is_not_used_for_another_version(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import numpy as np
        from engine import Core, Extension, Operator
        operator = Operator(
            name="Factor", domain="test.cached", inputs=["x"], infer=lambda inputs, attributes: inputs[0],
            evaluate=lambda x: x * np.float32(FACTOR),
        )
        core = Core()
        core.set_property({"CACHE_DIR": CACHE})
        core.add_extension(Extension("cached", VERSION, [operator]))
        for _ in range(2):
            network = core.compile_model(MODEL, "CPU")
            print(network({"x": np.ones(1, np.float32)})["y"].item(), network.get_property("LOADED_FROM_CACHE"))
    """)
    proto = model_of(
        helper.make_node("Factor", ["c"], ["f"], domain="test.cached"),
        helper.make_node("Mul", ["x", "f"], ["y"]),
        shape=[1],
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([5]), "c"))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    files = f"CACHE, MODEL = {str(tmp_path / 'cache')!r}, {str(tmp_path / 'm.onnx')!r}\n"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(f"{files}FACTOR, VERSION = 2, '1'\n{program}", {})
    assert printed.getvalue() == "10.0 False\n10.0 True\n"
    # In another process, since an operator has one definition in each.
    _, out, err = in_another_process("-c", f"{files}FACTOR, VERSION = 3, '2'\n{program}")
    assert out == "15.0 False\n15.0 True\n", err


# -- what is loaded, and by whom --------------------------------------------------------------------------------


def test_neither_model_nor_blob_loads_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module and a library of the name that the files give lie where Python and the loader look for them."""
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n{MODULE}", encoding="utf-8")
    node = helper.make_node("Triple", ["x"], ["y"], domain="evil")
    (tmp_path / "m.onnx").write_bytes(model_of(node).SerializeToString())
    blob = tmp_path / "m.blob"
    core = Core()
    core.add_extension(Operator(name="Triple", domain="evil", inputs=["x"], infer=lambda i, a: i[0], evaluate=abs))
    core.compile_model(str(tmp_path / "m.onnx"), "CPU").export_model(blob)
    code, out, err = in_another_process("-c", RUN, blob, "--", path=tmp_path, cwd=tmp_path)
    assert (code, out.splitlines()[0]) == (0, "False"), err
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = command("run", "m.onnx", "-d", "CPU")
    assert (code, "core.add_extension" in err) == (3, True)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no_such_module", "importing module no_such_module failed: ModuleNotFoundError: No module named"),
        ("triple_operators:MISSING", "module triple_operators has no MISSING, which must be an engine.Extension"),
        ("triple_operators:NOTHING", "an extension is an engine.Extension, .*; got 3"),
        ("a b", "extension 'a b': expected a path, or"),
        ("./missing.py", r"extension missing.py: the file does not exist"),
        (7, "an extension is an engine.Extension, .*; got 7"),
        ([], r"an extension is an engine.Extension, .*; got \[\]"),
    ],
)
def test_a_source_that_is_no_extension(module: Path, source: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(module.parent)
    core = Core()
    with pytest.raises(ExtensionError, match=said):
        core.add_extension(source)
    assert core.extensions == ()


@pytest.mark.parametrize("kind", ["name", "name:EXTENSION", "object", "file"])
def test_a_module_is_added_by_name_object_or_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"by_{kind.partition(':')[0]}_{'attribute' if ':' in kind else 'itself'}"
    path = tmp_path / f"{name}.py"
    path.write_text(MODULE.replace("test.module", f"test.{name}").replace("triples", name), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sources = {"name": name, "name:EXTENSION": f"{name}:EXTENSION", "file": str(path)}
    source = sources[kind] if kind in sources else importlib.import_module(name)
    core = Core()
    for _ in range(2):
        assert str(core.add_extension(source)) == f"{name} 2.1"
    assert [info.operators for info in core.extensions] == [(f"test.{name}.Triple",)]
    by_name = core.registered_extensions[f"{name} 2.1"]  # as another process adds it
    assert by_name == (name if kind == "object" else source)
    assert str(Core().add_extension(by_name)) == f"{name} 2.1"


def test_operators_without_an_extension_have_the_name_of_their_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MODULE.replace("test.module", "test.listed").replace("LIST = [TRIPLE]", "LIST = [TRIPLE, OTHER]")
    other = source.replace('name="Triple"', 'name="Other"').replace("TRIPLE =", "OTHER =").split("EXTENSION")[0]
    (tmp_path / "listed_operators.py").write_text(other + source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert str(Core().add_extension("listed_operators:LIST")) == "test.listed 0"
    made = [
        Operator(name="Each", domain=domain, inputs=["x"], infer=lambda i, a: i[0], evaluate=abs)
        for domain in ("test.one", "test.two")
    ]
    with pytest.raises(ExtensionError, match=r"operators of several domains \(test.one, test.two\) need a name"):
        Core().add_extension(made)


def test_operators_are_added_one_by_one(tmp_path: Path) -> None:
    """A blob needs the one that its model uses, and a core that has the other one does not have it."""
    one, two = (
        Operator(name=name, domain="test.single", inputs=["x"], infer=lambda i, a: i[0], evaluate=np.negative)
        for name in ("One", "Two")
    )
    core, other = Core(), Core()
    for operator in (one, two, one):
        core.add_extension(operator)
    other.add_extension(one)
    assert other.registered_extensions == {"test.single.One 0": ""}
    assert [(str(info), info.operators) for info in core.extensions] == [
        ("test.single.One 0", ("test.single.One",)),
        ("test.single.Two 0", ("test.single.Two",)),
    ]
    model = model_of(helper.make_node("Two", ["x"], ["y"], domain="test.single"))
    network = core.compile_model(model, "CPU")
    np.testing.assert_array_equal(network(X)["y"], -X)
    network.export_model(tmp_path / "two.blob")
    assert BlobReader(tmp_path / "two.blob").manifest.requirements["extensions"] == ["test.single.Two 0"]
    with pytest.raises(MissingExtensionError, match=r"of extension test.single.Two 0, which this core does not have"):
        other.compile_model(model, "CPU")


def test_an_extension_has_one_definition() -> None:
    """A blob names extensions, so two of one name and version would let one run that lacks an operator."""
    operators = [
        Operator(name=name, domain="test.namesake", inputs=["x"], infer=lambda i, a: i[0], evaluate=abs)
        for name in ("A", "B")
    ]
    core = Core()
    core.add_extension(Extension("namesake", "1.0", operators[:1]))
    said = r"namesake 1.0: another .* with the operators test.namesake.A instead of test.namesake.B; give this one"
    for each in (core, Core()):
        with pytest.raises(ExtensionConflictError, match=said):
            each.add_extension(Extension("namesake", "1.0", operators[1:]))
    assert [info.operators for info in core.extensions] == [("test.namesake.A",)]
    assert find_op("B", "test.namesake") is None


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs distributions with entry points of `engine.ops`."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(name: str, entries: dict[str, str], **modules: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[engine.ops]\n{lines}", encoding="utf-8")
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")

    return installed


def test_installed_packages_add_theirs_and_broken_ones_are_named(install: Install, tmp_path: Path) -> None:
    sound = MODULE.replace("test.module", "test.installed").replace("triples", "installed")
    install("sound", {"sound": "sound_operators"}, sound_operators=sound)
    install(
        "broken",
        {"raises": "raising", "exits": "exiting:EXTENSION", "nothing": "json:EXTENSION", "again": "clashing"},
        raising="import driver_that_nobody_has",
        exiting="raise SystemExit('no licence')",
        clashing=sound.replace("2.1", "3.0"),
    )
    node = helper.make_node("Triple", ["x"], ["y"], domain="test.installed")
    np.testing.assert_array_equal(Core().compile_model(model_of(node), "CPU")(X)["y"], X * 3)
    code, out, err = command("devices")
    assert (code, err) == (0, "")
    assert "installed  2.1      test.installed.Triple" in out
    loaded = "cannot be loaded: extension"
    for said in (
        f"extension raises (raising of broken 1.0) {loaded} raising: importing module raising failed: ModuleNotFound",
        f"extension exits (exiting:EXTENSION of broken 1.0) {loaded} exiting:EXTENSION: importing module exiting",
        "SystemExit: no licence",
        "extension nothing (json:EXTENSION of broken 1.0) cannot be loaded: module json has no EXTENSION",
    ):
        assert said in out
    listed = json.loads(command("devices", "--json")[1])
    assert [each["name"] for each in listed["extensions"]] == ["installed"]
    assert {each["name"] for each in listed["unavailable_extensions"]} == {"raises", "exits", "nothing", "again"}


def test_an_installed_extension_is_loaded_only_for_models_and_blobs(install: Install) -> None:
    source = MODULE.replace("test.module", "test.lazy").replace("triples", "lazy")
    install("lazy", {"lazy": "lazy_operators"}, lazy_operators=source)
    core = Core()
    core.get_versions()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    assert "lazy_operators" not in sys.modules
    core.read_model(model_of(helper.make_node("Triple", ["x"], ["y"], domain="test.lazy")))
    assert "lazy_operators" in sys.modules
    assert [str(each) for each in core.extensions] == ["lazy 2.1"]


# -- the command line -------------------------------------------------------------------------------------------


def test_every_command_that_reads_models_takes_extensions(
    module: Path, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(triple().SerializeToString())
    for arguments in (
        ("query", "m.onnx", "-d", "CPU"),
        ("run", "m.onnx", "-d", "CPU"),
        ("compile", "m.onnx", "-d", "CPU", "-o", "m.blob"),
        ("run", "m.blob"),
        ("inspect", "m.onnx"),
        ("inspect", "m.blob"),
        ("benchmark", "m.onnx", "-d", "CPU", "-t", "0.01"),
        ("compare", "m.onnx", "m.onnx", "-d", "CPU"),
        ("passes", "explain", "m.onnx", "PadConvFusion"),
    ):
        code, out, err = command(*arguments, "--extension", module, "--extension", build())
        assert code == 0, (arguments, out, err)


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        ("ABI=2", "version 2 of engine_kernel.h"),
        ("NO_SYMBOL", "no function engine_kernels"),
        ("CHECK_FAILS", "its check refuses this machine: the CPU has no quantum unit"),
    ],
)
def test_a_bad_library_is_one_line_exit_code_3_and_no_file(
    build: Build, module: Path, macro: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(triple().SerializeToString())
    options = ("-o", "m.blob", "--extension", module, "--extension", build(macro))
    code, out, err = command("compile", "m.onnx", "-d", "CPU", *options)
    assert (code, out) == (3, "")
    assert err.startswith("engine compile: error: extension library ")
    assert said in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_blob_without_its_extension_has_documented_codes(module: Path, build: Build, tmp_path: Path) -> None:
    core = Core()
    core.add_extension(module)
    core.add_extension(build())
    blob = tmp_path / "m.blob"
    core.compile_model(triple(), "TEMPLATE").export_model(blob)
    for name, expected in (("inspect", 1), ("run", 3)):
        code, out, err = command(name, blob)
        assert code == expected
        assert "the blob needs extension triples 2.1" in out + err


# -- cancelling -------------------------------------------------------------------------------------------------


def test_an_inference_is_cancelled_between_steps(build: Build) -> None:
    core = Core()
    core.add_extension(build())
    nodes, before = [], "x"
    for index in range(400):
        nodes.append(helper.make_node("Affine", [before], [f"v{index}"], domain="test.native", axis=0, offsets=[1.0]))
        before = f"v{index}"
    nodes.append(helper.make_node("Neg", [before], ["y"]))
    network = core.compile_model(model_of(*nodes, shape=(1 << 20,)), "CPU")
    request = network.create_infer_request()
    request.start_async({"x": np.ones(1 << 20, np.float32)})
    threading.Timer(0.01, request.cancel).start()
    with pytest.raises(Cancelled):
        request.wait(timeout=60)
    assert request.infer({"x": np.zeros(1 << 20, np.float32)})["y"][0] == -400
