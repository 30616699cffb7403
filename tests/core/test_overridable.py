"""Initializers that a file also lists as inputs: constants, unless an inference gives them another value."""

from __future__ import annotations

import asyncio
import io
import pickle
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from engine_template.plugin import TemplatePlugin
from onnx import TensorProto, helper, numpy_helper

from engine import AsyncInferQueue, Core, ExecutableNetwork
from engine.errors import InputError
from engine.ir import Model
from engine.passes import MakeStateful

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
W, GIVEN = np.array([1, 2, 3], np.float32), np.array([5, 6, 7], np.float32)
DEVICES = ("CPU", "TEMPLATE", "HETERO:CPU,TEMPLATE", "AUTO:CPU")


def info(name: str, shape: Any = (2, 3), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], constants: dict[str, Any], ir_version: int = 8
) -> onnx.ModelProto:
    """`constants` are initializers, the ones in `inputs` also inputs; the output is `y`."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def scaled(ir_version: int = 8) -> onnx.ModelProto:
    """y = x * w + b."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "b"], ["y"])]
    constants = {"w": W, "b": np.float32(1)}
    return model_of(nodes, [info("w", (3,)), info("x"), info("b", ())], constants, ir_version)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ir_version", [4, 8])
def test_calls_may_give_initializers_other_values(device: str, ir_version: int) -> None:
    proto = scaled(ir_version)
    network = Core().compile_model(proto, device)
    assert [port.name for port in network.inputs] == ["x"]
    assert sorted(port.name for port in network.overridable) == ["b", "w"]
    b: Any = np.float32(3)
    given: list[dict[Any, Any]] = [{}, {"w": GIVEN}, {"w": GIVEN, "b": b}, {"b": 2.0}, {}]
    for feeds in given:
        expected = X * feeds.get("w", W) + np.float32(feeds.get("b", 1))
        np.testing.assert_array_equal(network({"x": X, **feeds})["y"], expected)
        np.testing.assert_array_equal(network.submit({"x": X, **feeds}).result()["y"], expected)
        np.testing.assert_array_equal(asyncio.run(network.infer_async({0: X, **feeds}))["y"], expected)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        arrays = {name: np.asarray(value, np.float32) for name, value in feeds.items()}
        np.testing.assert_array_equal(session.run(None, {"x": X, **arrays})[0], expected)
    np.testing.assert_array_equal(network(X)["y"], X * W + 1)
    with pytest.raises(InputError, match="input `w`: shape is"):
        network({"x": X, "w": W[:2]})


@pytest.mark.parametrize("ir_version", [3, 8])
def test_keys_of_another_kind_are_errors(ir_version: int) -> None:
    request = Core().compile_model(scaled(ir_version), "TEMPLATE").create_infer_request()
    key: Any
    for key in ([0], {}, 1.5):
        with pytest.raises(InputError, match="no input"):
            request.set_input_tensor(key, X)
        with pytest.raises(InputError, match="no input"):
            request.get_input_tensor(key)


def test_files_before_version_4_have_constants_only() -> None:
    """They have to list all initializers as inputs."""
    proto = scaled(ir_version=3)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    model = Core().read_model(proto)
    network = Core().compile_model(model, "TEMPLATE")
    assert [*session.get_overridable_initializers(), *model.overridable, *network.overridable] == []
    np.testing.assert_array_equal(network(X)["y"], X * W + 1)
    model.make_input("w")
    np.testing.assert_array_equal(Core().compile_model(model, "TEMPLATE")({"x": X, "w": GIVEN})["y"], X * GIVEN + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_requests_keep_what_is_set(device: str) -> None:
    request = Core().compile_model(scaled(), device).create_infer_request()
    np.testing.assert_array_equal(request.get_tensor("w"), W)
    request.set_input_tensor("x", X)
    output = np.zeros((2, 3), np.float32)
    request.set_output_tensor("y", output)
    assert request.infer()["y"] is output
    request.set_tensor("w", GIVEN)
    assert request.infer()["y"] is output
    np.testing.assert_array_equal(output, X * GIVEN + 1)
    np.testing.assert_array_equal(request.infer(2 * X)["y"], 2 * X * GIVEN + 1)
    request.start_async({"b": np.float32(4)})
    request.wait()
    np.testing.assert_array_equal(request.results["y"], 2 * X * GIVEN + 4)
    np.testing.assert_array_equal(request.infer([X])["y"], X * GIVEN + 4)
    assert request.get_input_tensor("w") is GIVEN
    request.clear_tensors()
    np.testing.assert_array_equal(request.infer(X)["y"], X * W + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_jobs_of_a_queue_have_the_values_of_the_file_unless_they_give_others(device: str) -> None:
    """Each way of giving inputs, and each number of requests, which decides what a request ran before."""
    network, found = Core().compile_model(scaled(), device), {}
    kinds: list[tuple[Any, Any]] = [
        ({"x": X, "w": GIVEN}, X * GIVEN + 1),
        ({"x": X}, X * W + 1),
        ({"x": X, "b": np.float32(4)}, X * W + 4),
        ([X], X * W + 1),
        (X, X * W + 1),
        ({0: X, "w": GIVEN[::-1]}, X * GIVEN[::-1] + 1),  # which is copied
        ({0: X}, X * W + 1),
    ]
    for jobs in (1, 3):
        with AsyncInferQueue(
            network, jobs, callback=lambda request, i: found.update({i: request.results["y"]})
        ) as queue:
            for i in range(4 * len(kinds)):
                queue.start_async(kinds[i % len(kinds)][0], i)
        for i in range(4 * len(kinds)):
            np.testing.assert_array_equal(found[i], kinds[i % len(kinds)][1], err_msg=f"job {i} of {jobs}")


def test_a_request_takes_the_same_inputs_before_and_after_an_initializer_was_given() -> None:
    request = Core().compile_model(scaled(), "CPU").create_infer_request()
    for feeds in ({"x": X}, {"w": GIVEN}):
        request.infer(feeds)
        with pytest.raises(InputError, match="got 2 inputs, expected 1"):
            request.infer([X, GIVEN])
        with pytest.raises(InputError, match="no input 1"):
            request.infer({"x": X, 1: GIVEN})
    request.reset_initializers()
    np.testing.assert_array_equal(request.infer()["y"], X * W + 1)
    np.testing.assert_array_equal(request.get_tensor("w"), W)


def test_initializers_that_bodies_read_and_that_decide_shapes() -> None:
    """Bodies have copies of small constants; the shape of the output follows from `shape`."""
    inner = helper.make_graph([helper.make_node("Sub", ["x", "w"], ["n"])], "inner", [], [info("n", None)])
    nested = helper.make_node("If", ["c"], ["m"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph([nested, helper.make_node("Add", ["m", "w"], ["k"])], "outer", [], [info("k", None)])
    nodes = [
        helper.make_node("If", ["c"], ["t"], then_branch=outer, else_branch=inner),
        helper.make_node("Mul", ["t", "w"], ["u"]),
        helper.make_node("Reshape", ["u", "shape"], ["y"]),
    ]
    inputs = [info("x"), info("c", (), TensorProto.BOOL), info("w", (3,)), info("shape", (1,), TensorProto.INT64)]
    proto = model_of(nodes, inputs, {"w": W, "shape": np.array([6])})
    for device in DEVICES:
        network = Core().compile_model(proto, device)
        for c in (True, False):
            for w in (W, GIVEN):
                expected = (X if c else X - w) * w
                feeds = {"x": X, "c": np.array(c), "w": w}
                np.testing.assert_array_equal(network(feeds)["y"], expected.reshape(6))
        with pytest.raises(InputError, match="input `shape`"):
            network({**feeds, "shape": np.array([2, 3])})
        assert network({**feeds, "shape": np.array([-1])})["y"].shape == (6,)


def test_a_changed_constant_changes_the_copies_in_bodies() -> None:
    branch = helper.make_graph([helper.make_node("Sub", ["x", "w"], ["n"])], "b", [], [info("n", None)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [info("x"), info("c", (), TensorProto.BOOL)]
    model = Core().read_model(model_of([node], inputs, {"w": W}))
    model.set_constant("w", GIVEN)
    np.testing.assert_array_equal(Core().compile_model(model, "TEMPLATE")([X, np.array(True)])["y"], X - GIVEN)
    model.make_input("w")
    np.testing.assert_array_equal(Core().compile_model(model, "TEMPLATE")([X, np.array(True), W])["y"], X - W)


def test_variables_go_on_when_an_initializer_is_given() -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "past"], ["present"]),
             helper.make_node("Identity", ["present"], ["y"])]  # fmt: skip
    proto = model_of(nodes, [info("x"), info("past"), info("w", (3,))], {"w": W})
    proto.graph.output.append(info("present"))
    model = Core().read_model(proto)
    MakeStateful({"past": "present"}).run_on_model(model)
    request = Core().compile_model(model, "CPU").create_infer_request()
    request.infer({"x": X})
    np.testing.assert_array_equal(request.infer({"x": X, "w": GIVEN})["y"], X * W + X * GIVEN)
    request.reset_state()
    np.testing.assert_array_equal(request.infer({"x": X})["y"], X * GIVEN)


@pytest.mark.parametrize("device", DEVICES)
def test_a_blob_has_the_values_of_the_file_and_says_so(device: str) -> None:
    network = Core().compile_model(scaled(), device)
    stream = io.BytesIO()
    network.export_model(stream)
    imported = Core().import_model(stream.getvalue())
    np.testing.assert_array_equal(imported(X)["y"], X * W + 1)
    with pytest.raises(InputError, match=r"`w` has the value of the model's file, .* `model\.make_input\('w'\)`"):
        imported({"x": X, "w": GIVEN})


def test_batches_have_the_values_of_the_file_and_say_so() -> None:
    """Requests of one batch may give different values."""
    inputs = [info("x", ("n", 3)), info("w", (3,))]
    proto = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], inputs, {"w": W})
    network = Core().compile_model(proto, "BATCH:TEMPLATE(2)")
    assert network.overridable == ()
    np.testing.assert_array_equal(network(X)["y"], X * W)
    with pytest.raises(InputError, match=r"`w` has the value of the model's file, .* `model\.make_input\('w'\)`"):
        network({"x": X, "w": GIVEN})


def test_a_server_says_that_it_has_the_values_of_the_file() -> None:
    kserve = pytest.importorskip("kserve")
    from engine_serve.tensors import input_arrays

    network = Core().compile_model(scaled(), "TEMPLATE")
    given = kserve.InferInput("w", [3], "FP32")
    given.set_data_from_numpy(GIVEN)
    with pytest.raises(InputError, match="`w` is an initializer of the model"):
        input_arrays(kserve.InferRequest("m", [given]), network.inputs, {port.name for port in network.overridable})


def test_networks_from_the_cache_take_other_values_too(tmp_path: Any) -> None:
    for _ in range(2):
        network: ExecutableNetwork = Core().compile_model(scaled(), "CPU", {"CACHE_DIR": tmp_path})
        np.testing.assert_array_equal(network({"x": X, "w": GIVEN})["y"], X * GIVEN + 1)
    assert network.loaded_from_cache
    with pytest.raises(InputError, match="no input 'v'"):
        network({"x": X, "v": GIVEN})


def test_looking_initializers_up_does_not_search_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A search for each name made compiling, saving and calls quadratic."""
    model, core = Core().read_model(scaled()), Core()
    network = core.compile_model(model, "TEMPLATE")
    network({"x": X, "w": GIVEN, "b": np.float32(0)})
    monkeypatch.setattr(Model, "constant", None)
    np.testing.assert_array_equal(network({"x": X, "w": GIVEN})["y"], X * GIVEN + 1)
    model.save(tmp_path / "saved.onnx")
    assert [port.name for port in core.compile_model(model, "TEMPLATE").overridable] == model.overridable


def test_initializers_that_no_node_reads() -> None:
    proto = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x"), info("u", (3,))], {"u": W})
    core = Core()
    model = pickle.loads(pickle.dumps(core.read_model(proto)))
    assert model.overridable == ["u"]
    feeds = {"x": X, "u": GIVEN}
    np.testing.assert_array_equal(core.compile_model(model, "TEMPLATE")(feeds)["y"], X)
    changed = model.clone()
    changed.set_constant("u", GIVEN)
    np.testing.assert_array_equal(core.compile_model(changed, "TEMPLATE").create_infer_request().get_tensor("u"), GIVEN)
    changed.make_input("u")
    network = core.compile_model(changed, "TEMPLATE")
    assert ([port.name for port in network.inputs], network.overridable) == (["x", "u"], ())
    np.testing.assert_array_equal(network(feeds)["y"], X)
    np.testing.assert_array_equal(model.constant("u").data, W)


@pytest.mark.parametrize("device", DEVICES)
def test_an_initializer_with_open_lengths_takes_others(device: str, tmp_path: Any) -> None:
    node = helper.make_node("Concat", ["x", "w"], ["y"], axis=0)
    proto = model_of([node], [info("x", ("n", 3)), info("w", ("n", 3))], {"w": X})
    core = Core()
    core.read_model(proto).save(tmp_path / "saved.onnx")
    for source in (proto, tmp_path / "saved.onnx"):
        network = core.compile_model(source, device)
        for w in (X, X[:1], np.repeat(X, 3, axis=0)):
            np.testing.assert_array_equal(network({"x": X[:1], "w": w})["y"], np.concatenate([X[:1], w]))
        np.testing.assert_array_equal(network({"x": X[:1]})["y"], np.concatenate([X[:1], X]))
        with pytest.raises(InputError, match="input `w`: shape is"):
            network({"x": X, "w": X[:, :2]})


def test_an_initializer_that_decides_a_length() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"])
    proto = model_of([node], [info("x"), info("k", (1,), TensorProto.INT64)], {"k": np.array([2])})
    network = Core().compile_model(proto, "CPU")
    assert network(X)["y"].shape == (2, 2)
    assert network({"x": X, "k": np.array([1])})["y"].shape == (2, 1)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The inputs of each model that TEMPLATE compiles from now on."""
    found: list[list[str]] = []
    compile_model = TemplatePlugin.compile_model

    def counted(self: TemplatePlugin, model: Model, config: Any) -> Any:
        found.append([parameter.friendly_name for parameter in model.parameters])
        return compile_model(self, model, config)

    monkeypatch.setattr(TemplatePlugin, "compile_model", counted)
    return found


def test_all_that_is_given_at_once_is_compiled_once(compilations: list[list[str]]) -> None:
    network = Core().compile_model(scaled(), "TEMPLATE")
    feeds = {"x": X, "w": GIVEN, "b": np.float32(3)}
    for _ in range(2):
        np.testing.assert_array_equal(network(feeds)["y"], X * GIVEN + 3)
    assert compilations == [["x"], ["x", "w", "b"]]


def test_all_that_a_request_was_given_one_by_one_is_compiled_once(compilations: list[list[str]]) -> None:
    """At the next inference. A value that does not fit is refused where it is given."""
    request = Core().compile_model(scaled(), "TEMPLATE").create_infer_request()
    wide = np.stack([GIVEN, GIVEN], axis=1)[:, 0]
    request.set_tensor("x", X)
    request.set_tensor("w", wide)
    with pytest.raises(InputError, match="input `w`: shape is"):
        request.set_tensor("w", W[:2])
    np.testing.assert_array_equal(request.get_tensor("w"), GIVEN)
    request.set_tensor("b", np.float32(3))
    assert compilations == [["x"]]
    wide += 1  # what is not contiguous is copied when the inference begins
    np.testing.assert_array_equal(request.infer()["y"], X * (GIVEN + 1) + 3)
    wide += 1
    np.testing.assert_array_equal(request.infer(X)["y"], X * (GIVEN + 2) + 3)
    assert compilations == [["x"], ["x", "w", "b"]]


@pytest.mark.parametrize("forget", ["reset_initializers", "clear_tensors"])
def test_values_that_were_set_are_forgotten_before_an_inference_too(forget: str, compilations: list[list[str]]) -> None:
    request = Core().compile_model(scaled(), "TEMPLATE").create_infer_request()
    request.set_tensor("w", GIVEN)
    getattr(request, forget)()
    np.testing.assert_array_equal(request.get_tensor("w"), W)
    np.testing.assert_array_equal(request.infer(X)["y"], X * W + 1)
    assert compilations == [["x"]]


def test_a_wrong_input_beside_initializers_is_refused_before_anything_is_compiled(
    compilations: list[list[str]],
) -> None:
    request = Core().compile_model(scaled(), "TEMPLATE").create_infer_request()
    for feeds in ({0: X, "w": GIVEN, 1: np.float32(3)}, {"x": X, "w": GIVEN, "v": GIVEN}):
        with pytest.raises(InputError, match="no input"):
            request.infer(feeds)
    assert compilations == [["x"]]
