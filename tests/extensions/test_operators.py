"""Operators that are defined in Python: every device that evaluates runs them, and says so.

If this fails, a model with a user's operator cannot be run, or its results are wrong without an error.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Core, Extension, Operator, ops
from engine.errors import (
    DeviceError,
    ExtensionConflictError,
    ExtensionError,
    MissingExtensionError,
    ModelError,
    TypeInferenceError,
    UnsupportedError,
)
from engine.ir import Constant, Model, Parameter, PartialShape, Result, TensorType, f32, f64
from engine.passes import Manager
from engine.passes.common.constant_folding import ConstantFolding
from tests.extensions.conftest import model_of

X = np.array([[1, -2, 3], [4, 5, 6]], np.float32)


def same(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    return inputs[0]


def shifted(x: Any, by: float, times: Sequence[int]) -> Any:
    return x + np.float32(by) * np.float32(sum(times))


SHIFT = Operator(
    name="Shift",
    domain="test.python",
    inputs=["x"],
    attributes={"by": 1.0, "times": (1,)},
    infer=same,
    evaluate=shifted,
)
JOIN = Operator(
    name="Join",
    domain="test.python",
    inputs=["x", "w?", "rest..."],
    outputs=["sum", "count"],
    attributes={"label": str, "limit": int | None},
    infer=lambda inputs, attributes: [inputs[0], TensorType(f32, PartialShape([]))],
    evaluate=lambda x, w, *rest, label, limit: (
        x + (0 if w is None else w) + sum(rest),
        np.float32(len(rest) + (limit or 0) + len(label)),
    ),
)
LIAR = Operator(
    name="Liar",
    domain="test.python",
    inputs=["x"],
    attributes={"how": "type"},
    infer=same,
    evaluate=lambda x, how: {
        "type": x.astype(np.float64),
        "shape": x[:1],
        "rank": x.ravel(),
        "list": x.tolist(),
        "none": None,
    }[how],
)
STRICT = Operator(
    name="Strict",
    domain="test.python",
    inputs=["x"],
    attributes={"mode": "refuse"},
    infer=lambda inputs, attributes: 1 / 0 if attributes["mode"] == "raise" else ["f32"],
    evaluate=lambda x, mode: x,
)
RANDOM = Operator(
    name="Noise", domain="test.python", inputs=["x"], infer=same, is_deterministic=False, evaluate=lambda x: x + 1
)
VANDAL = Operator(
    name="Vandal", domain="test.python", inputs=["x"], infer=same, evaluate=lambda x: np.multiply(x, 0, out=x)
)
NEWER = Operator(name="Newer", domain="test.newer", inputs=["x"], infer=same, version=3, evaluate=lambda x: x)
TEXT = Operator(
    name="Text",
    domain="test.text",
    inputs=["x"],
    attributes={"how": str},
    infer=same,
    evaluate=lambda x, how: {
        "upper": np.char.upper(x.astype(str)),
        "bytes": np.array([b"a", b"b"]),
        "mixed": np.array(["a", 1], object),
    }[how],
)
EXTENSION = Extension("python_tests", "1.0", [SHIFT, JOIN, LIAR, STRICT, RANDOM, VANDAL, NEWER])


@pytest.fixture
def core() -> Core:
    made = Core()
    made.add_extension(EXTENSION)
    return made


def shift(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Shift", ["x"], ["y"], "shift", domain="test.python", **attributes)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE,CPU", "HETERO:CPU"])
@pytest.mark.parametrize("shape", [(2, 3), ("n", 3)])
def test_a_device_that_evaluates_runs_it(core: Core, device: str, shape: Any) -> None:
    network = core.compile_model(model_of(shift(by=0.5, times=[2, 3]), shape=shape), device)
    np.testing.assert_array_equal(network(X)["y"], X + np.float32(2.5))
    np.testing.assert_array_equal(network(X)["y"], X + np.float32(2.5))
    assert network.outputs[0].type == TensorType(f32, PartialShape(shape))


def test_defaults_and_surrounding_operators(core: Core) -> None:
    node = helper.make_node("Shift", ["r"], ["s"], domain="test.python")
    model = model_of(helper.make_node("Relu", ["x"], ["r"]), node, helper.make_node("Neg", ["s"], ["y"]))
    for device in ("TEMPLATE", "CPU"):
        np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], -(np.maximum(X, 0) + 1))


def test_the_answer_of_each_device_says_how_it_runs(core: Core) -> None:
    model = model_of(shift())
    assert core.query_model(model, "TEMPLATE")["shift"].level.value == "native"
    on_cpu = core.query_model(model, "CPU")["shift"]
    assert on_cpu.level.value == "reference"
    assert on_cpu.reason == "test.python.Shift, an operator of extension python_tests 1.0, has no kernel on this device"
    request = core.compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer({"x": X})
    assert [(node.name, node.status) for node in request.profiling_info.nodes] == [("shift", "reference")]
    with pytest.raises(UnsupportedError, match=r"ALLOW_REFERENCE is off: Shift `shift`: test.python.Shift, an op"):
        core.compile_model(model, "CPU", {"ALLOW_REFERENCE": False})


@pytest.mark.opencl
def test_opencl_refuses_with_the_reason(core: Core) -> None:
    pytest.importorskip("pyopencl")
    if not any(device.startswith("OPENCL") for device in core.available_devices):
        pytest.skip("there is no OpenCL device")
    reason = "Shift, an operator of extension python_tests 1.0, has no kernel on this device"
    with pytest.raises(UnsupportedError, match=f"Shift `shift`.*{reason}.*HETERO:OPENCL,CPU"):
        core.compile_model(model_of(shift()), "OPENCL")
    np.testing.assert_array_equal(core.compile_model(model_of(shift()), "HETERO:OPENCL,CPU")(X)["y"], X + 1)


def test_optional_and_repeated_inputs_and_several_outputs(core: Core) -> None:
    def join(*inputs: str, **attributes: Any) -> onnx.ModelProto:
        node = helper.make_node("Join", inputs, ["s", "n"], domain="test.python", **attributes)
        return model_of(node, helper.make_node("Add", ["s", "n"], ["y"]))

    for device in ("TEMPLATE", "CPU"):
        for model, expected in (
            (join("x", label="ab"), X + 2),
            (join("x", "", "x", "x", label="ab"), X * 3 + 4),
            (join("x", "x", "x", label="", limit=5), X * 3 + 6),
        ):
            np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], expected)


def test_a_call_that_the_schema_does_not_allow_names_the_node(core: Core) -> None:
    for node, said in (
        (shift(wrong=1), "`shift`.*no attribute 'wrong'; it has by, times"),
        (shift(by=b"text"), "`shift`.*attribute 'by' is a float"),
        (helper.make_node("Join", ["x"], ["y"], "j", domain="test.python"), "`j`.*'label' is missing"),
        (helper.make_node("Shift", ["x", "x"], ["y"], "two", domain="test.python"), "`two`.*takes 1 inputs"),
        (helper.make_node("Shift", ["x"], ["y", "z"], "out", domain="test.python"), "`out`.*has 1 outputs, not 2"),
    ):
        with pytest.raises(ModelError, match=said):
            core.read_model(model_of(node))


def test_a_type_rule_that_refuses_or_fails_names_node_and_extension(core: Core) -> None:
    for mode, said in (
        (
            "raise",
            r"`s`: the type rule of python_tests 1.0 refuses it: ZeroDivisionError: division by zero.*x f32\[2,3\]",
        ),
        (
            "wrong",
            r"`s`: the type rule of python_tests 1.0 returns \['f32'\]; expected a TensorType for each of 1 outputs",
        ),
    ):
        with pytest.raises(TypeInferenceError, match=rf"^Strict {said}"):
            core.read_model(model_of(helper.make_node("Strict", ["x"], ["y"], "s", domain="test.python", mode=mode)))


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("type", r"output y is float64\[2, 3\], but the type rule says f32\[2,3\]"),
        ("shape", r"output y has the shape \[1, 3\], but the type rule says f32\[2,3\]"),
        ("rank", r"output y has the shape \[6\], but the type rule says f32\[2,3\]"),
        ("list", "output y is a list; evaluate must return numpy arrays"),
        ("none", "output y is a NoneType; evaluate must return numpy arrays"),
    ],
)
def test_a_result_that_contradicts_the_type_rule_is_an_error(core: Core, device: str, how: str, said: str) -> None:
    node = helper.make_node("Liar", ["x"], ["y"], "liar", domain="test.python", how=how)
    with pytest.raises(DeviceError, match=rf"Liar `liar` \(python_tests 1.0\): {said}"):
        core.compile_model(model_of(node), device)(X)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_an_evaluation_cannot_change_what_other_nodes_read(core: Core, device: str) -> None:
    vandal = helper.make_node("Vandal", ["r"], ["v"], "vandal", domain="test.python")
    model = model_of(helper.make_node("Relu", ["x"], ["r"]), vandal, helper.make_node("Add", ["r", "v"], ["y"]))
    with pytest.raises(DeviceError, match=r"Vandal `vandal`.*read-only"):
        core.compile_model(model, device)(X)


def test_only_deterministic_operators_are_folded(core: Core) -> None:
    for name, left in (("Shift", []), ("Noise", ["Noise"])):
        node = ops.create(name, [Constant(X)], domain="test.python")
        x = Parameter(f32, [2, 3], friendly_name="x")
        model = Model([Result(ops.Add(x, node))], [x], name="folded")
        manager = Manager()
        manager.register_pass(ConstantFolding)
        manager.run_passes(model)
        assert [each.op_type for each in model.ordered_nodes() if each.domain] == left


def test_a_model_is_written_and_read_again(core: Core) -> None:
    from engine.onnx import model_to_proto

    proto = model_to_proto(core.read_model(model_of(shift(by=2.0))))
    assert {entry.domain: entry.version for entry in proto.opset_import}["test.python"] == 1
    np.testing.assert_array_equal(core.compile_model(proto, "TEMPLATE")(X)["y"], X + 2)
    x = Parameter(f64, [2], friendly_name="x")
    made = ops.create("Newer", [x], domain="test.newer")
    written = model_to_proto(Model([Result(made, "y")], [x], name="newer"))
    assert {entry.domain: entry.version for entry in written.opset_import}["test.newer"] == 3


def test_a_model_of_an_older_version_of_the_domain_is_refused(core: Core) -> None:
    node = helper.make_node("Newer", ["x"], ["y"], "newer", domain="test.newer")
    assert core.compile_model(model_of(node, version=4), "TEMPLATE")(X)["y"].shape == X.shape
    with pytest.raises(UnsupportedError, match=r"`newer`.*version 2 of domain `test.newer`.*from version 3 on"):
        core.read_model(model_of(node, version=2))


# -- several cores and definitions -----------------------------------------------------------------------------


def test_a_core_uses_only_what_was_added_to_it(core: Core) -> None:
    other, model = Core(), model_of(shift())
    for use in (other.compile_model, other.query_model):
        with pytest.raises(MissingExtensionError, match=r"Shift `shift`.*python_tests 1.0.*core.add_extension.*--ext"):
            use(model, "TEMPLATE")
    assert [str(each) for each in other.extensions] == []
    other.add_extension(EXTENSION)
    other.add_extension(EXTENSION)
    assert [str(each) for each in other.extensions] == ["python_tests 1.0"]
    np.testing.assert_array_equal(other.compile_model(model, "TEMPLATE")(X)["y"], X + 1)


def test_networks_outlive_the_core(core: Core) -> None:
    network = core.compile_model(model_of(shift(), shape=("n", 3)), "CPU")
    del core
    gc.collect()
    np.testing.assert_array_equal(network(X)["y"], X + 1)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU"])
@pytest.mark.parametrize("shape", [(2, 3), ("n", 3)])
def test_an_unknown_operator_says_how_to_define_it_when_the_model_is_compiled(device: str, shape: Any) -> None:
    """Also in the middle of a model of unknown lengths, and in bodies; no blob is made of such a model."""
    unknown = helper.make_node("Nobody", ["r"], ["n"], domain="test.unknown")
    outer = helper.make_node("Relu", ["x"], ["r"]), unknown, helper.make_node("Neg", ["n"], ["y"])
    body = helper.make_graph(
        [helper.make_node("Nobody", ["v"], ["w"], domain="test.unknown"), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("i", 7, []), ("c", 9, []))]
        + [helper.make_tensor_value_info("v", 1, None)],
        [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info("w", 1, None)],
    )
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], "loop", body=body)
    for model in (model_of(*outer, shape=shape), model_of(loop, shape=shape, domains=("test.unknown",))):
        if model.graph.node[0] == loop:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(2), "count"))
        with pytest.raises(UnsupportedError, match=r"'Nobody' of domain 'test.unknown'.*core.add_extension"):
            Core().compile_model(model, device)


def operator(name: str = "Clash", domain: str = "test.clash", **more: Any) -> Operator:
    return Operator(**{"name": name, "domain": domain, "inputs": ["x"], "infer": same, "evaluate": abs, **more})


@pytest.mark.parametrize(
    ("extension", "said"),
    [
        (Extension("clash", "1", [operator("Shift", "test.python")]), "Shift is defined already.*python_tests 1.0"),
        (Extension("copy", "1", [SHIFT]), "Shift is defined already.*python_tests 1.0"),
        (Extension("onnx", "1", [operator("Relu", "ai.onnx.ml")]), "a domain that ONNX or the engine defines"),
        (Extension("onnx", "1", [operator("Relu", "ai.onnx")]), "a domain that ONNX or the engine defines"),
        (Extension("onnx", "1", [operator("Adam", "ai.onnx.training")]), "a domain that ONNX or the engine defines"),
        (Extension("inner", "1", [operator("ByteTable", "engine")]), "a domain that ONNX or the engine defines"),
        (Extension("ms", "1", [operator("Gelu", "com.microsoft")]), "the engine imports com.microsoft.Gelu itself"),
        (Extension("ms", "1", [operator("Tokenizer", "com.microsoft")]), "engine defines com.microsoft.Tokenizer"),
        (Extension("twice", "1", [operator(), operator(version=2)]), "twice 1 defines test.clash.Clash twice"),
        (Extension("python_tests", "2.0", [operator()]), "python_tests 2.0: this core has version 1.0"),
    ],
)
def test_a_clash_is_an_error_and_adds_nothing(core: Core, extension: Extension, said: str) -> None:
    before = core.extensions
    larger = Extension(extension.name, extension.version, [operator("Other"), *(extension.operators or ())])
    with pytest.raises(ExtensionConflictError, match=said):
        core.add_extension(larger)
    assert core.extensions == before
    assert ops.find_op("Other", "test.clash") is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "a b"}, "'a b' is not a valid name of an operator"),
        ({"domain": ""}, "'' is not a valid domain"),
        ({"inputs": "x"}, "inputs are 'x'; expected a list of names"),
        ({"inputs": ["x", "x?"]}, r"inputs are \['x', 'x\?'\]; expected names that differ"),
        ({"inputs": ["xs...", "y"]}, "only the last input may repeat"),
        ({"outputs": []}, "expected one output or more"),
        ({"outputs": ["y?"]}, "expected one output or more"),
        ({"version": 0}, "version 0; expected an int, 1 or more"),
        ({"infer": 3}, "infer must be a function; got 3"),
        ({"evaluate": "numpy"}, "evaluate must be a function"),
        ({"attributes": {"a": object}}, "attribute 'a' is declared as .*object.*; expected a default"),
        ({"attributes": {"a": ()}}, r"attribute 'a' is declared as \(\); expected a default"),
        ({"attributes": {"a": bytes | None}}, "attribute 'a' is declared as bytes | None; expected"),
        ({"attributes": {"a b": int}}, "'a b' is not a valid name of an attribute"),
        ({"attributes": ["a"]}, r"attributes must be a dict; got \['a'\]"),
    ],
)
def test_an_invalid_declaration_says_what_is_expected(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ExtensionError, match=said):
        operator(**wrong)


def test_an_invalid_extension_says_what_is_expected() -> None:
    for arguments, said in (
        (("a b", "1", [SHIFT]), "'a b' is not a valid name of an extension"),
        (("a", "", [SHIFT]), "'' is not a valid version of an extension"),
        (("a", "1", [abs]), "operators must be a list of engine.Operator"),
        (("a", "1", SHIFT), "operators must be a list of engine.Operator"),
        (("a", "1", []), "has neither operators nor a library"),
    ):
        with pytest.raises(ExtensionError, match=said):
            Extension(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ExtensionError, match=r"test.clash.Clash has neither an expression, nor evaluate, nor a kernel"):
        Core().add_extension(operator(evaluate=None))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OSError("no licence"), "OSError: no licence"),
        (OSError("no\n  licence\n"), "OSError: no; licence"),
        (ValueError(), "ValueError"),
        (SystemExit("no licence"), "SystemExit: no licence"),
        (False, "it returns False"),
    ],
)
def test_a_check_that_refuses_is_one_line_and_adds_nothing(answer: Any, said: str) -> None:
    def check() -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    core = Core()
    with pytest.raises(ExtensionError, match=rf"^extension checked 1: its check refuses this machine: {said}$"):
        core.add_extension(Extension("checked", "1", [operator()], check=check))
    assert core.extensions == ()
    assert ops.find_op("Clash", "test.clash") is None


def test_lists_are_defaults() -> None:
    core = Core()
    weighted = operator(
        "Listed",
        "test.lists",
        attributes={"ints": [1, 2], "floats": [0.5], "texts": ["a", "b"]},
        evaluate=lambda x, ints, floats, texts: x * np.float32(sum(ints) + sum(floats) + len(texts)),
    )
    core.add_extension(weighted)
    node = helper.make_node("Listed", ["x"], ["y"], domain="test.lists")
    np.testing.assert_array_equal(core.compile_model(model_of(node), "CPU")(X)["y"], X * 5.5)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_strings_are_str(device: str) -> None:
    core = Core()
    core.add_extension(TEXT)
    for how, said in (("upper", ""), ("bytes", r"\|S1"), ("mixed", "int")):
        model = model_of(helper.make_node("Text", ["x"], ["y"], "t", domain="test.text", how=how), shape=[2])
        model.graph.input[0].type.tensor_type.elem_type = model.graph.output[0].type.tensor_type.elem_type = 8
        network, x = core.compile_model(model, device), np.array(["a", "b"], object)
        if not said:
            assert network(x)["y"].tolist() == ["A", "B"]
            continue
        with pytest.raises(DeviceError, match=rf"Text `t` .*: output y holds {said}, but the type rule says strings"):
            network(x)
