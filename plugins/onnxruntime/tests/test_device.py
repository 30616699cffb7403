"""onnxruntime as a device: results, queries, blobs, cancellation, and the virtual devices on top of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import BlobIncompatibleError, Cancelled, DeadlineExceeded, InferError, InputError, UnsupportedError
from engine.ir import (
    Constant,
    ElementType,
    Model,
    Node,
    Parameter,
    PartialShape,
    Result,
    TensorType,
    Variable,
    bf16,
    boolean,
    f32,
    i4,
    i32,
    string,
)
from engine.plugin_api import RefusalCause, Transfers
from engine.testing.networks import seeded_network

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def core() -> Core:
    return Core()


def layer(rows: int | str = "N") -> Model:
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    x = Parameter(f32, [rows, 8], "x")
    return Model([Result(ops.Relu(ops.MatMul(x, Constant(weight), friendly_name="product")), "y")], [x], name="layer")


def endless() -> Model:
    """A loop of so many iterations that only a cancellation ends it."""
    import onnx
    from onnx import helper

    def value(name: str, kind: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    real, whole, truth = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Sin", ["a"], ["b"])],
        "body",
        [value("i", whole, []), value("go", truth, []), value("a", real, [4])],
        [value("on", truth, []), value("b", real, [4])],
    )
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body, name="loop")
    graph = helper.make_graph([loop], "endless", [value("count", whole, []), value("x", real, [4])],
                              [value("y", real, [4])])  # fmt: skip
    return Core().read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_base", "gru"])
def test_networks_give_the_results_of_the_reference(core: Core, name: str) -> None:
    network = seeded_network(name, small=True)
    expected = core.compile_model(network.model, "TEMPLATE")(network.inputs)
    found = core.compile_model(network.model, "ONNXRUNTIME")(network.inputs)
    for index in range(len(expected)):
        np.testing.assert_allclose(found[index], expected[index], rtol=1e-3, atol=1e-4)


def test_a_query_asks_the_runtime_once_for_each_kind_of_operation(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    session = onnxruntime.InferenceSession

    def counting(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return session(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counting)
    x = Parameter(f32, [4], "x")
    model = Model([ops.Abs(ops.Sin(ops.Sin(ops.Sin(x))))], [x])
    assert core.query_model(model, "ONNXRUNTIME").is_supported
    assert len(opened) == 2, "Sin and Abs"
    core.query_model(model, "ONNXRUNTIME")
    assert len(opened) == 2
    x = Parameter(f32, [5], "x")
    core.query_model(Model([ops.Sin(x)], [x]), "ONNXRUNTIME")
    assert len(opened) == 3, "a type has a shape"


def test_what_the_runtime_lacks_is_refused_in_its_own_words(core: Core) -> None:
    x = Parameter(i4, [2], "x")
    model = Model([ops.Identity(x, friendly_name="narrow")], [x])
    support = core.query_model(model, "ONNXRUNTIME")["narrow"]
    assert support.cause is RefusalCause.ELEMENT_TYPE
    assert "Identity" in support.reason
    with pytest.raises(UnsupportedError, match="narrow") as caught:
        core.compile_model(model, "ONNXRUNTIME")
    assert support.reason in str(caught.value)


def test_what_the_runtime_computes_wrong_is_refused(core: Core) -> None:
    x = Parameter(f32, [3, 2, 4], "x")
    lengths, initial = Parameter(i32, [2], "lengths"), Parameter(f32, [1, 2, 5], "initial")
    w, r = (Constant(np.ones((1, 5, columns), np.float32)) for columns in (4, 5))
    node = ops.RNN(x, w, r, None, lengths, initial, hidden_size=5, num_outputs=2, friendly_name="rnn")
    model = Model([Result(node.output(1), "y")], [x, lengths, initial])
    support = core.query_model(model, "ONNXRUNTIME")["rnn"]
    assert "a sequence of length 0" in support.reason
    with pytest.raises(UnsupportedError, match=r"`rnn`.*a sequence of length 0; run it on another device"):
        core.compile_model(model, "ONNXRUNTIME")
    inputs = {"x": np.ones((3, 2, 4), np.float32), "lengths": np.array([3, 0], np.int32)}
    inputs["initial"] = np.full((1, 2, 5), 7, np.float32)
    found = core.compile_model(model, "HETERO:ONNXRUNTIME,CPU")(inputs)["y"]
    np.testing.assert_array_equal(found[0, 1], np.full(5, 7, np.float32))


def test_sums_of_repeated_indices_are_refused(core: Core) -> None:
    """The runtime loses updates of rows that two of its threads add to at one time."""
    data, updates = Parameter(f32, [2, 3], "data"), Parameter(f32, [4, 3], "updates")
    indices = Constant(np.zeros((4, 1), np.int64))
    for reduction in ("none", "add"):
        scattered = ops.ScatterND(data, indices, updates, reduction=reduction, friendly_name="scattered")
        support = core.query_model(Model([scattered], [data, updates]), "ONNXRUNTIME")["scattered"]
        assert ("indices that repeat" in support.reason) == (reduction == "add")
    feed = {"data": np.zeros((2, 3), np.float32), "updates": np.ones((4, 3), np.float32)}
    found = core.compile_model(Model([scattered], [data, updates]), "HETERO:ONNXRUNTIME,CPU")(feed)[0]
    np.testing.assert_array_equal(found, [[4, 4, 4], [0, 0, 0]])


def test_a_refusal_inside_a_body_names_the_inner_node(core: Core) -> None:
    branches = []
    for op_type, domain in (("Strange", "com.example"), ("Neg", "")):
        node = Node(op_type, [Constant(np.ones(2, np.float32))], {}, domain=domain, friendly_name=f"inner_{op_type}",
                    types=[TensorType(f32, PartialShape([2]))])  # fmt: skip
        branches.append(Model([Result(node)], []))
    c = Parameter(boolean, [], "c")
    choice = ops.If(c, then_branch=branches[0], else_branch=branches[1], friendly_name="choice")
    with pytest.raises(UnsupportedError, match=r"`choice`: in its body, inner_Strange: com\.example:Strange"):
        core.compile_model(Model([Result(choice, "y")], [c]), "ONNXRUNTIME")


def test_lengths_that_vary(core: Core) -> None:
    network = core.compile_model(layer(), "ONNXRUNTIME")
    for rows in (1, 3, 0, 2):
        assert network({"x": np.ones((rows, 8), np.float32)})["y"].shape == (rows, 8)


def test_strings(core: Core) -> None:
    x, y = Parameter(string, [2], "x"), Parameter(string, [2], "y")
    model = Model([Result(ops.StringConcat(x, y), "z")], [x, y])
    found = core.compile_model(model, "ONNXRUNTIME")(
        {"x": np.array(["a", "ä"], object), "y": np.array(["b", ""], object)}
    )
    assert found["z"].tolist() == ["ab", "ä"]


@pytest.mark.parametrize("name", ["bf16", "f8e4m3fn", "f8e5m2", "i4", "u4"])
def test_types_that_numpy_lacks(core: Core, name: str) -> None:
    narrow = ElementType.parse(name)
    x, z = Parameter(narrow, ["N", 3], "x"), Parameter(f32, ["N", 3], "z")
    model = Model([Result(ops.Cast(x, to=f32.onnx), "wide"), Result(ops.Cast(z, to=narrow.onnx), "narrow")], [x, z])
    network = core.compile_model(model, "ONNXRUNTIME")
    values = np.array([[1, 2, 3], [0, 1, 4], [7, 6, 5]], np.float32)  # an odd number of 4 bits, too
    for rows in (3, 2, 0):
        wide = values[:rows]
        found = network({"x": wide.astype(narrow.numpy), "z": wide})
        np.testing.assert_array_equal(found["wide"], wide)
        np.testing.assert_array_equal(found["narrow"], wide.astype(narrow.numpy), strict=True)


def test_a_narrow_type_beside_a_sequence_is_refused_when_it_is_compiled(core: Core) -> None:
    x = Parameter(bf16, [3], "x")
    model = Model([Result(ops.SequenceConstruct(ops.Cast(x, to=f32.onnx)), "y")], [x])
    with pytest.raises(UnsupportedError, match="bf16 only beside tensors"):
        core.compile_model(model, "ONNXRUNTIME")


def test_a_profile_has_the_time_of_all_nodes_together(core: Core) -> None:
    request = core.compile_model(layer(), "ONNXRUNTIME", {"PERF_COUNT": True}).create_infer_request()
    request.infer({"x": np.ones((2, 8), np.float32)})
    (record,) = request.profiling_info.nodes
    assert record.nodes[0] == "product"
    assert len(record.nodes) == 2
    assert record.kernel == f"onnxruntime {onnxruntime.__version__}"


def test_values_that_requests_keep(core: Core) -> None:
    x, past = Parameter(f32, [2], "x"), Parameter(f32, [2], "past")
    total = ops.Add(x, past)
    model = Model([Result(ops.Identity(total), "y"), Result(total, "present")], [x, past])
    model.add_variable(Variable("sum", "past", "present", np.zeros(2, np.float32)))
    request = core.compile_model(model, "ONNXRUNTIME").create_infer_request()
    for step in (1, 2, 3):
        assert request.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [step, step]
    request.reset_state()
    assert request.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [1, 1]


def test_an_output_that_is_an_input_is_a_copy(core: Core) -> None:
    x = Parameter(f32, [4], "x")
    given = np.arange(4, dtype=np.float32)
    found = core.compile_model(Model([Result(x, "same"), Result(ops.Neg(x), "y")], [x]), "ONNXRUNTIME")({"x": given})
    given[:] = 0
    assert found["same"].tolist() == [0, 1, 2, 3]


def test_results_are_those_of_the_runtime_without_a_copy(core: Core) -> None:
    x = Parameter(f32, [1 << 16], "x")
    result = core.compile_model(Model([Result(ops.Neg(x), "y")], [x]), "ONNXRUNTIME")(np.ones(1 << 16, np.float32))
    assert not result["y"].flags.owndata
    assert result["y"].flags.writeable


def test_memory_of_the_runtime_and_of_other_libraries_is_used_in_place(core: Core) -> None:
    """An OrtValue, and any tensor with DLPack's methods."""
    model = layer(2)
    given = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    expected = core.compile_model(model, "ONNXRUNTIME")({"x": given})["y"]
    with core.create_context("ONNXRUNTIME") as context:
        network = core.compile_model(model, context)
        written = np.zeros((2, 8), np.float32)
        target = context.wrap(written, f32, [2, 8])
        source = context.wrap(onnxruntime.OrtValue.ortvalue_from_numpy(given), f32, [2, 8])
        request = network.create_infer_request()
        request.set_output_tensor("y", target)
        assert request.infer({"x": source})["y"] is target
        np.testing.assert_array_equal(written, expected)
        assert context.transfers == Transfers(0, 0)
        for handle, words in ((object(), "OrtValue"), (written.astype(np.int32), "does not fit")):
            with pytest.raises(InputError, match=words):
                context.wrap(handle, f32, [2, 8])
        with pytest.raises(UnsupportedError, match="bf16"):
            context.create_tensor(bf16, [2, 8])


@pytest.mark.parametrize("ends", [Cancelled, DeadlineExceeded])
def test_a_running_loop_ends_when_it_is_cancelled(core: Core, ends: type[InferError]) -> None:
    inputs = {"count": np.array(1 << 60), "x": np.ones(4, np.float32)}
    request = core.compile_model(endless(), "ONNXRUNTIME").create_infer_request()
    if ends is Cancelled:
        request.start_async(inputs)
        time.sleep(0.05)
        request.cancel()
    else:
        request.start_async(inputs, deadline=0.05)
    with pytest.raises(ends):
        request.wait(60)
    found = request.infer({"count": np.array(2), "x": np.zeros(4, np.float32)})
    assert found["y"].tolist() == [0, 0, 0, 0], "the request is usable"


def test_requests_of_threads_share_a_session(core: Core) -> None:
    network = core.compile_model(layer(), "ONNXRUNTIME", {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 3})
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
    inputs = [np.full((2, 8), number, np.float32) for number in range(16)]
    futures = [network.submit({"x": each}) for each in inputs]
    for each, future in zip(inputs, futures, strict=True):
        np.testing.assert_array_equal(future.result()["y"], network({"x": each})["y"])


def test_blobs(core: Core, tmp_path: Path) -> None:
    path, inputs = tmp_path / "layer.blob", np.ones((2, 8), np.float32)
    network = core.compile_model(layer(), "ONNXRUNTIME")
    network.export_model(path)
    np.testing.assert_array_equal(core.import_model(path)({"x": inputs})["y"], network({"x": inputs})["y"])


def test_a_compiled_form_is_used_only_if_it_is_trusted(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, inputs = tmp_path / "layer.blob", np.ones((2, 8), np.float32)
    network = core.compile_model(layer(), "ONNXRUNTIME", {"ONNXRUNTIME_EXPORT_COMPILED": True})
    network.export_model(path)
    loaded: list[bytes] = []
    session = onnxruntime.InferenceSession

    def seen(source: bytes, *arguments: Any, **options: Any) -> Any:
        loaded.append(source)
        return session(source, *arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", seen)
    for config in ({}, {"TRUST_BLOB": True}):
        imported = core.import_model(path, config=config)
        np.testing.assert_array_equal(imported({"x": inputs})["y"], network({"x": inputs})["y"])
        again = tmp_path / "again.blob"
        imported.export_model(again)
        np.testing.assert_array_equal(core.import_model(again)({"x": inputs})["y"], network({"x": inputs})["y"])
    optimized = [source for source in loaded if b"com.microsoft.nchwc" in source]
    assert len(optimized) == 1, "the runtime's own model, once"


def test_a_blob_of_another_version_of_the_runtime_is_refused(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "layer.blob"
    core.compile_model(layer(), "ONNXRUNTIME").export_model(path)
    installed = onnxruntime.__version__
    monkeypatch.setattr(onnxruntime, "__version__", "1.99.0")
    with pytest.raises(BlobIncompatibleError, match=rf"onnxruntime.*{installed}.*1\.99\.0.*compile the model again"):
        core.import_model(path)


@pytest.mark.parametrize("device", ["HETERO:ONNXRUNTIME,CPU", "BATCH:ONNXRUNTIME(4)", "AUTO:ONNXRUNTIME"])
def test_devices_that_run_on_others_run_on_it(core: Core, device: str, tmp_path: Path) -> None:
    model, inputs = layer(), np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    if device.startswith("HETERO"):
        model.node("product").rt_info["affinity"] = "CPU"
    network = core.compile_model(model, device)
    expected = core.compile_model(layer(), "TEMPLATE")({"x": inputs})["y"]
    np.testing.assert_allclose(network({"x": inputs})["y"], expected, rtol=1e-5, atol=1e-5)
    path = tmp_path / "network.blob"
    network.export_model(path)
    np.testing.assert_allclose(core.import_model(path)({"x": inputs})["y"], expected, rtol=1e-5, atol=1e-5)
    if device.startswith("HETERO"):
        assert set(network.get_property("EXECUTION_DEVICES")) == {"CPU", "ONNXRUNTIME"}


def test_auto_takes_it_only_if_it_is_named(core: Core) -> None:
    network = core.compile_model(layer(1), "AUTO", {"REUSE_CHOICE": False})
    assert network.wait_for_choice(60)  # type: ignore[attr-defined]
    assert "only if it is listed" in network.get_metric("CANDIDATES")["ONNXRUNTIME"]["why"]
    assert core.compile_model(layer(1), "AUTO:ONNXRUNTIME").get_metric("EXECUTION_DEVICES") == ("ONNXRUNTIME",)
