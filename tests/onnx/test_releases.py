"""The onnx package: the definitions of its releases are known here, and later additions are refused by name.

`python tests/onnx/test_releases.py > tests/onnx/definitions.txt` takes over the definitions of the installed release.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import helper

from engine import Core
from engine.errors import UnsupportedError
from engine.onnx.importer import read_model
from engine.onnx.releases import NEWEST_IR, additions
from engine.ops import CANONICAL_VERSIONS

DEFINITIONS = Path(__file__).with_name("definitions.txt")


def digest(schema: onnx.defs.OpSchema) -> str:
    """Of all that a call may be, without the texts."""
    kinds = {each.type_param_str: sorted(each.allowed_type_strs) for each in schema.type_constraints}
    ports = [
        [(port.name, str(port.option), kinds.get(port.type_str, port.type_str), port.is_homogeneous) for port in each]
        for each in (schema.inputs, schema.outputs)
    ]
    attributes = [
        (name, str(each.type), each.required, each.default_value.SerializeToString(deterministic=True))
        for name, each in sorted(schema.attributes.items())
    ]
    counts = (schema.min_input, schema.max_input, schema.min_output, schema.max_output, schema.deprecated)
    return hashlib.sha256(repr((ports, attributes, counts)).encode()).hexdigest()[:8]


def definitions() -> dict[str, str]:
    """A digest for each operator of the canonical opsets, as the installed release defines it."""
    found = {}
    for domain, name in {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}:
        if domain not in CANONICAL_VERSIONS:
            continue
        try:
            schema = onnx.defs.get_schema(name, CANONICAL_VERSIONS[domain], domain)
        except onnx.defs.SchemaError:  # newer
            continue
        found[f"{domain}{'.' * bool(domain)}{name}-{schema.since_version}"] = digest(schema)
    return dict(sorted(found.items()))


def test_the_installed_release_defines_operators_as_they_are_known() -> None:
    """Types of calls, defaults of attributes and blobs follow from these definitions, so that a model could mean
    something else after an upgrade of the onnx package."""
    known = dict(line.split() for line in DEFINITIONS.read_text(encoding="utf-8").splitlines())
    now = definitions()
    changed = sorted(name for name in known.keys() | now.keys() if known.get(name) != now.get(name))
    assert not changed, (
        f"onnx {onnx.__version__} defines {', '.join(changed)} otherwise than before: read what has changed, adapt the "
        f"operators, and write {DEFINITIONS.name} again (see {Path(__file__).name})"
    )


def test_the_installed_release_adds_nothing_that_is_unknown() -> None:
    """Models that use it are refused by name, so that only ENGINE_NEW_ONNX=fail makes it an error."""
    if found := additions():
        message = (
            f"onnx {onnx.__version__} adds {', '.join(found)}; models that use them are refused. To support "
            "them, raise CANONICAL_OPSET (engine/ops/registry.py) and NEWEST_IR (engine/onnx/releases.py)"
        )
        if os.environ.get("ENGINE_NEW_ONNX") == "fail":
            pytest.fail(message)
        pytest.skip(message)


LATER_RELEASE = """
import numpy as np
import onnx.defs
from onnx import helper
from onnx.defs import OpSchema

def define(name, version):
    ports = [OpSchema.FormalParameter("X", "T")], [OpSchema.FormalParameter("Y", "T")]
    kinds = [("T", ["tensor(float)"], "")]
    onnx.defs.register_schema(OpSchema(name, "", version, inputs=ports[0], outputs=ports[1], type_constraints=kinds))

later = onnx.defs.onnx_opset_version() + 1
define("Relu", later)
define("Fresh", later)

from engine import Core
from engine.errors import UnsupportedError
from engine.onnx.releases import additions

def model(*operators, functions=()):
    info = helper.make_tensor_value_info
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    graph = helper.make_graph(nodes, "g", [info("v0", 1, [2])], [info(f"v{len(nodes)}", 1, [2])])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", later), helper.make_opsetid("own", 1)], functions=functions
    )

print("adds", f"Relu-{later}" in additions(), f"Fresh-{later}" in additions())
print("runs", Core().compile_model(model("Neg", "Abs"), "TEMPLATE")(np.float32([1, -2]))["v2"].tolist())
body = [helper.make_node("Fresh", ["x"], ["y"], name="inner")]
own = helper.make_function("own", "Own", ["x"], ["y"], body, [helper.make_opsetid("", later)])
for refused in (model("Relu", "Neg", "Fresh", "Relu"), model("Neg", functions=[own])):
    try:
        Core().read_model(refused)
    except UnsupportedError as e:
        print("refused", e)
"""


def test_a_later_release_runs_what_it_has_not_changed_and_the_rest_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATER_RELEASE], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    adds, runs, refused, in_function = done.stdout.splitlines()
    assert adds == "adds True True"
    assert runs == "runs [1.0, 2.0]"
    assert "(ai.onnx 28, ai.onnx.ml 5, " in refused
    later = onnx.defs.onnx_opset_version() + 1
    used = f"Fresh-{later} (`n2`), Relu-{later} (2 nodes, first `n0`); install a newer engine, or write the model at"
    assert used in refused
    assert f"Fresh-{later} (`inner`)" in in_function


def test_an_earlier_release_is_refused_with_what_to_install() -> None:
    """A resolver that was told to ignore requirements installs one."""
    code = "import onnx.defs\nonnx.defs.onnx_opset_version = lambda: 27\nimport engine.ops"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert "up to opset 27; opset 28 is needed, which onnx 1.23 has: pip install 'onnx>=1.23'" in done.stderr


def identity(ir_version: int) -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def test_a_later_version_of_the_file_format_is_read_if_it_uses_nothing_new() -> None:
    network = Core().compile_model(identity(NEWEST_IR + 1).SerializeToString(), "TEMPLATE")
    np.testing.assert_array_equal(network(np.float32([1, -2]))["y"], np.float32([-1, 2]))


def test_a_field_that_is_not_known_is_refused_in_a_file_of_a_later_format() -> None:
    """It may say what the node computes."""
    model = identity(NEWEST_IR + 1)
    field = bytes([31 << 3 & 0x7F | 0x80, 31 >> 4, 1])  # the number 31, of a varint
    model.graph.node[0].MergeFromString(field)
    with pytest.raises(UnsupportedError, match=r"field 31 of NodeProto of ONNX's file format, newer than version 14"):
        read_model(model.SerializeToString())
    model.ir_version = NEWEST_IR
    read_model(model.SerializeToString())  # not from ONNX: protobuf keeps such fields for others


if __name__ == "__main__":
    for name, value in definitions().items():
        print(name, value)
