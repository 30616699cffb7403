"""`engine.startup.onnx_library` gives what the package `onnx` gives, and leaves a package that works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from engine.startup import onnx_library
from engine.testing.networks import NETWORKS, seeded_network


def run(script: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


COMPILE = """
import sys
from engine import Core
network = Core().compile_model("model.onnx", "CPU", {"CACHE_DIR": ""})
assert "onnx" not in sys.modules
"""


@pytest.mark.parametrize("name", ["mlp", "efficientnet_b0", "bert_base", "lstm", "segformer_b0"])
def test_a_model_is_compiled_without_the_package(name: str, tmp_path: Path) -> None:
    assert name in NETWORKS
    (tmp_path / "model.onnx").write_bytes(seeded_network(name, small=True).model.SerializeToString())
    run(COMPILE, tmp_path)


@pytest.mark.parametrize(
    "later",
    [
        "import onnx; parsed = onnx.load('model.onnx')",
        "import onnx.helper; parsed = onnx.helper.onnx.load('model.onnx')",
        "from onnx import helper, load; parsed = load('model.onnx')",
        "import onnx.onnx_cpp2py_export as native, onnx; parsed = onnx.load('model.onnx')",
    ],
)
def test_a_later_import_finds_the_same_classes(later: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(seeded_network("mlp", small=True).model.SerializeToString())
    check = """
from engine.startup import onnx_library
import onnx, onnx.checker, onnx.shape_inference
from importlib.machinery import SourceFileLoader
assert type(onnx.__spec__.loader) is type(onnx.__loader__) is SourceFileLoader
assert not any(type(each).__module__.startswith("engine") for each in sys.meta_path)
assert type(parsed) is onnx.ModelProto is onnx_library.onnx.ModelProto is onnx.onnx_ml_pb2.ModelProto
assert onnx.defs.OpSchema is onnx_library.onnx.defs.OpSchema is onnx.onnx_cpp2py_export.defs.OpSchema
assert onnx.checker.ValidationError is onnx_library.onnx.checker.ValidationError
assert onnx.defs.get_schema("Shrink").function_body.node
onnx.checker.check_model(onnx.shape_inference.infer_shapes(parsed))
assert Core().compile_model(parsed, "CPU").inputs
"""
    run(COMPILE + later + check, tmp_path)


def test_the_package_is_looked_at_before_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(seeded_network("mlp", small=True).model.SerializeToString())
    look = """
import pkgutil
from importlib.util import find_spec
assert pkgutil.get_data("onnx", "py.typed") is not None
loader = find_spec("onnx").loader
assert loader.is_package("onnx") and loader.get_filename("onnx").endswith("__init__.py") and loader.get_code("onnx")
assert not hasattr(loader, "no_such_name")
"""
    run(COMPILE + look, tmp_path)


def test_threads_that_import_the_package_meanwhile(tmp_path: Path) -> None:
    run(
        """
import threading
from engine.startup.onnx_library import onnx
failed = []
def library():
    onnx.defs.get_schema("Relu")
def package():
    import onnx.helper
    onnx.helper.make_node("Relu", ["x"], ["y"])
def guarded(function):
    ready.wait()
    try:
        function()
    except BaseException as e:
        failed.append(e)
ready = threading.Barrier(8)
threads = [threading.Thread(target=guarded, args=[each]) for each in (library, package) * 4]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
""",
        tmp_path,
    )


def test_values_are_those_of_the_package() -> None:
    for schema in onnx.defs.get_all_schemas_with_history():
        for attribute in schema.attributes.values():
            assert onnx_library.default_value(attribute) == attribute.default_value
        if schema.has_function:
            assert onnx_library.function_body(schema) == schema.function_body


def test_inference_is_that_of_the_package(tmp_path: Path) -> None:
    """The arguments of the native functions are in the order in which the package hands them on."""
    (tmp_path / "model.onnx").write_bytes(seeded_network("bert_base", small=True).model.SerializeToString())
    run(
        """
import sys
from engine.startup import onnx_library
light = onnx_library.onnx
assert light.defs.has("Relu") and light.defs.has("Scaler", "ai.onnx.ml") and not light.defs.has("Relu", "ai.onnx.ml")
assert "onnx" not in sys.modules
model = light.ModelProto.FromString(open("model.onnx", "rb").read())
node = light.NodeProto(op_type="Reshape", input=["x", "s"], output=["y"])
types = {name: light.TypeProto() for name in "xs"}
for name, kind, shape in (("x", 1, [2, 6]), ("s", 7, [2])):
    types[name].tensor_type.elem_type = kind
    for length in shape:
        types[name].tensor_type.shape.dim.add().dim_value = length
data = {"s": light.TensorProto(data_type=7, dims=[2], int64_data=[3, -1])}
opsets = [light.OperatorSetIdProto(version=21)]

def results(library):
    schema = library.defs.get_schema("Reshape", 21)
    nodes = library.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets)
    return [nodes, *(library.shape_inference.infer_shapes(model, data_prop=each) for each in (False, True))]

def error(library):
    types["s"].tensor_type.elem_type = 1
    try:
        schema = library.defs.get_schema("Reshape", 21)
        library.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets)
    except (library.shape_inference.InferenceError, library.checker.ValidationError) as e:
        return type(e)
    finally:
        types["s"].tensor_type.elem_type = 7

found, failed = results(light), error(light)
try:
    light.defs.has_no_such_name
except AttributeError as e:
    assert "has_no_such_name" in str(e)
else:
    raise AssertionError

import onnx
assert found == results(onnx)
assert failed is error(onnx) is not None
assert [each.dim_value for each in found[0]["y"].tensor_type.shape.dim] == [3, 4]
""",
        tmp_path,
    )


def test_a_package_that_is_there_is_used(tmp_path: Path) -> None:
    run(
        "import onnx\nfrom engine.startup import onnx_library as light\n"
        "assert light.onnx.defs is onnx.defs and light.onnx.helper is onnx.helper",
        tmp_path,
    )
