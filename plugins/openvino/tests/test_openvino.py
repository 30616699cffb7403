"""What a user of OPENVINO relies on beyond the suites: no hard dependency, full precision, typed errors, blobs."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine import Core, ops
from engine.errors import Cancelled, DeviceError, DeviceNotFoundError, EngineWarning, InputError, UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, bf16, f32, f64, i4, i64

openvino = pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def product(rows: int | None = None) -> Model:
    x = Parameter(f32, [rows, 3], "x")
    weights = Constant(np.arange(6, dtype=np.float32).reshape(3, 2))
    return Model([ops.Relu(ops.MatMul(x, weights), friendly_name="y")], [x])


@pytest.mark.parametrize("device", ["OPENVINO", "OPENVINO.CPU", "HETERO:OPENVINO,CPU", "BATCH:OPENVINO",
                                    "AUTO:OPENVINO,CPU"])  # fmt: skip
@pytest.mark.parametrize("rows", [4, None])
def test_results_also_from_a_blob_and_below_devices_that_run_on_it(core: Core, device: str, rows: int | None) -> None:
    data = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    expected = np.maximum(data @ np.arange(6, dtype=np.float32).reshape(3, 2), 0)
    network = core.compile_model(product(rows), device)
    np.testing.assert_allclose(network({"x": data})["y"], expected, rtol=1e-6)
    blob = io.BytesIO()
    network.export_model(blob)
    blob.seek(0)
    np.testing.assert_allclose(core.import_model(blob)({"x": data})["y"], expected, rtol=1e-6)


def test_after_a_fork_an_error_says_what_to_do(core: Core) -> None:
    """Nothing waits forever for threads that the child does not have. The parent goes on."""
    network, data = core.compile_model(product(4), "OPENVINO"), np.ones((4, 3), np.float32)
    expected = network({"x": data})["y"]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        for attempt in (lambda: network({"x": data}), lambda: Core().compile_model(product(4), "OPENVINO")):
            try:
                attempt()
            except DeviceError as e:
                os.write(writer, f"{e}\n".encode())
        os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reader) as told:
        lines = told.readlines()
    assert [f"OPENVINO was used in process {os.getpid()} before this one was forked" in each for each in lines] == [
        True
    ] * 2
    np.testing.assert_array_equal(network({"x": data})["y"], expected)


def test_compiled_models_in_blobs_are_used_where_they_fit_and_are_trusted(
    core: Core, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere, such as with another version of OpenVINO, the graph is compiled."""
    network = core.compile_model(product(4), "OPENVINO", {"EXPORT_COMPILED": True})
    stream, data = io.BytesIO(), np.ones((4, 3), np.float32)
    network.export_model(stream)
    blob, expected = stream.getvalue(), network(data)["y"]
    runtime = network.plugin.runtime  # type: ignore[attr-defined]
    compilations = []
    compile_model = type(runtime).compile
    monkeypatch.setattr(type(runtime), "compile", lambda *a, **k: compilations.append(1) or compile_model(*a, **k))
    caplog.set_level("INFO", "engine_openvino")

    np.testing.assert_array_equal(core.import_model(blob, None, {"TRUST_BLOB": True})(data)["y"], expected)
    assert not compilations
    np.testing.assert_array_equal(core.import_model(blob)(data)["y"], expected)
    assert "TRUST_BLOB" in caplog.text
    core.import_model(blob, None, {"TRUST_BLOB": True, "INFERENCE_PRECISION_HINT": "bf16"})
    monkeypatch.setattr(runtime.module, "__version__", "2027.0.0-1")
    np.testing.assert_array_equal(core.import_model(blob, None, {"TRUST_BLOB": True})(data)["y"], expected)
    assert len(compilations) == 3


def test_f32_is_not_computed_in_less(core: Core) -> None:
    """Where the CPU multiplies bf16 faster, OpenVINO's own default may be bf16."""
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    x = Parameter(f32, [64, 64], "x")
    network = core.compile_model(Model([ops.MatMul(x, Constant(b))], [x]), "OPENVINO")
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 64 * np.finfo(np.float32).eps * (np.abs(a).astype(np.float64) @ np.abs(b))
    assert (np.abs(network(a)[0] - exact) <= bound).all()
    assert network.compiled_model.network.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32  # type: ignore[attr-defined]


def test_a_precision_that_openvino_does_not_use_is_told(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = core.compile_model(product(4), "OPENVINO").plugin
    compile_model = type(plugin.runtime).compile  # type: ignore[attr-defined]

    def other(*args: Any, **options: Any) -> Any:
        compiled = compile_model(*args, **options)
        properties = {"INFERENCE_PRECISION_HINT": openvino.Type.f16, "OPTIMAL_NUMBER_OF_INFER_REQUESTS": 1}
        network = SimpleNamespace(get_property=properties.get, get_runtime_model=compiled.network.get_runtime_model)
        return type(compiled)(network, compiled.inputs)

    monkeypatch.setattr(type(plugin.runtime), "compile", other)  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="computes in f16, not in f32; accept it: INFERENCE_PRECISION_HINT=f16"):
        core.compile_model(product(4), "OPENVINO")
    with pytest.warns(EngineWarning, match="HINT is bf16, and is ignored: OpenVINO computes in f16 here"):
        core.compile_model(product(4), "OPENVINO", {"INFERENCE_PRECISION_HINT": "bf16"})


def test_a_device_that_is_installed_is_not_chosen_by_itself(core: Core) -> None:
    assert core.get_property("OPENVINO", "ONLY_IF_NAMED")


def test_without_the_package_discovery_says_how_to_install_it() -> None:
    code = """
        import sys
        sys.modules["openvino"] = None
        from engine import Core
        core = Core()
        assert "OPENVINO" not in core.available_devices
        print(core.unavailable_devices["OPENVINO"])
        try:
            core.get_property("OPENVINO", "FULL_DEVICE_NAME")
        except Exception as e:
            print(type(e).__name__, e)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.count('pip install "engine-plugin-openvino[runtime]"') >= 2
    assert "DeviceNotFoundError" in done.stdout


def test_types_that_openvino_narrows_are_refused_unless_allowed(core: Core) -> None:
    x, y = Parameter(f64, [2], "x"), Parameter(i64, [2], "y")
    for parameter in (x, y):
        model = Model([ops.Add(parameter, parameter, friendly_name="sum")], [parameter])
        support = core.query_model(model, "OPENVINO")["sum"]
        assert "ALLOW_NARROW_TYPES" in support.reason
        with pytest.raises(UnsupportedError, match=r"sum.*HETERO:OPENVINO,CPU"):
            core.compile_model(model, "OPENVINO")
        network = core.compile_model(model, "OPENVINO", {"ALLOW_NARROW_TYPES": True})
        assert network(np.array([1, -2], parameter.output(0).element_type.numpy))[0].tolist() == [2, -4]
        divided = core.compile_model(model, "HETERO:OPENVINO,CPU")
        assert divided(np.array([2**40, 1], parameter.output(0).element_type.numpy))[0].tolist() == [2**41, 2]


def test_quantization_to_16_bits_is_refused(core: Core) -> None:
    """OpenVINO's result is wrong if the value is that of a Relu behind a convolution."""
    x = Parameter(f32, [1, 2, 4, 4], "x")
    weights = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)
    scale, zero = Constant(np.float32(2**-12)), Constant(np.uint16(0))
    codes = ops.QuantizeLinear(ops.Relu(ops.Conv(x, Constant(weights))), scale, zero, friendly_name="codes")
    model = Model([ops.DequantizeLinear(codes, scale, zero, friendly_name="values")], [x])
    answer = core.query_model(model, "OPENVINO")
    assert "16 bits" in answer["codes"].reason
    assert "16 bits" in answer["values"].reason
    data = np.ones((1, 2, 4, 4), np.float32)
    expected = core.compile_model(model, "TEMPLATE")(data)[0]
    np.testing.assert_allclose(core.compile_model(model, "HETERO:OPENVINO,CPU")(data)[0], expected, atol=2**-11)


def test_integers_beyond_32_bits_are_an_error_and_not_clipped(core: Core) -> None:
    x = Parameter(i64, [2], "x")
    network = core.compile_model(Model([ops.Unsqueeze(x, Constant(np.array([0])))], [x]), "OPENVINO")
    with pytest.raises(InputError, match="`x` has integers beyond 32 bits"):
        network(np.array([2**31, 0]))
    assert network(np.array([2**31 - 1, -(2**31)]))[0].tolist() == [[2**31 - 1, -(2**31)]]


def test_lengths_may_be_computed(core: Core) -> None:
    """Sums of 64-bit integers that are only lengths always fit."""
    x = Parameter(f32, [None, 4], "x")
    rows = ops.Mul(ops.Gather(ops.Shape(x), Constant(np.array([0]))), Constant(np.array([2])))
    model = Model([ops.Reshape(x, ops.Concat(rows, Constant(np.array([2])), axis=0))], [x])
    assert core.compile_model(model, "OPENVINO")(np.zeros((3, 4), np.float32))[0].shape == (6, 2)


def test_bf16_tensors(core: Core) -> None:
    x = Parameter(bf16, [3], "x")
    network = core.compile_model(Model([ops.Add(x, x)], [x]), "OPENVINO")
    result = network(np.array([1, 2, 3], ml_dtypes.bfloat16))[0]
    assert result.dtype == ml_dtypes.bfloat16
    assert result.tolist() == [2, 4, 6]


@pytest.mark.parametrize("op_type", ["Dropout", "Identity", "Sum"])
def test_outputs_that_are_inputs(core: Core, op_type: str) -> None:
    x = Parameter(f32, [3], "x")
    network = core.compile_model(Model([Node(op_type, [x]), ops.Relu(x)], [x]), "OPENVINO")
    for start in (1, 2):
        data = np.arange(start, start + 3, dtype=np.float32)
        result = network(data)
        np.testing.assert_array_equal(result[0], data)
        np.testing.assert_array_equal(result[1], data)


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_elements_of_four_bits(core: Core, count: int) -> None:
    x = Parameter(i4, [count], "x")
    codes = np.resize(np.arange(-8, 8), count)
    network = core.compile_model(Model([ops.Identity(ops.Cast(x, to=1)), ops.Identity(x)], [x]), "OPENVINO")
    result = network(codes.astype(ml_dtypes.int4))
    np.testing.assert_array_equal(result[0], codes.astype(np.float32))
    assert result[1].dtype == ml_dtypes.int4
    np.testing.assert_array_equal(result[1].astype(np.int8), codes)


def test_read_only_arrays_and_results_that_outlive_the_request(core: Core) -> None:
    data = np.ones((4, 3), np.float32)
    data.flags.writeable = False
    request = core.compile_model(product(4), "OPENVINO").create_infer_request()
    first = request.infer({"x": data})["y"]
    second = request.infer({"x": 2 * data})["y"]
    del request
    np.testing.assert_array_equal(second, 2 * first)


def long_one(core: Core) -> Any:
    x = Parameter(f32, [512, 512], "x")
    value: Node = x
    for _ in range(60):
        value = ops.Tanh(ops.MatMul(value, x))
    return core.compile_model(Model([value], [x]), "OPENVINO").create_infer_request()


def test_a_cancellation_stops_openvino(core: Core) -> None:
    request = long_one(core)
    x = np.ones((512, 512), np.float32)
    request.start_async(x)
    threading.Timer(0.05, request.cancel).start()
    with pytest.raises(Cancelled):
        request.wait()
    with pytest.raises(RuntimeError, match="cancel"):  # OpenVINO's own request did not run to its end
        request._request._request.wait()
    assert not request.infer(np.zeros_like(x))[0].any()


@pytest.mark.parametrize("fault", ["an output is missing", "a length differs", "a type differs"])
def test_a_runtime_that_disagrees_is_an_error(core: Core, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    plugin = core.compile_model(product(4), "OPENVINO").plugin
    runtime = plugin.runtime  # type: ignore[attr-defined]
    real = runtime.core()
    port = SimpleNamespace(
        get_names=lambda: ["y"],
        element_type=openvino.Type.i32 if fault == "a type differs" else openvino.Type.f32,
        partial_shape=openvino.PartialShape([4, 3] if fault == "a length differs" else [4, 2]),
    )
    outputs = [] if fault == "an output is missing" else [port]

    def compile_model(*args: Any) -> Any:
        return SimpleNamespace(inputs=real.compile_model(*args).inputs, outputs=outputs)

    liar = SimpleNamespace(
        compile_model=compile_model, read_model=real.read_model, get_property=real.get_property,
        available_devices=real.available_devices, query_model=real.query_model,
    )  # fmt: skip
    monkeypatch.setattr(runtime, "_core", liar)
    message = "has 0 of the outputs y" if fault == "an output is missing" else "says that `y` is"
    with pytest.raises(UnsupportedError, match=message):
        core.compile_model(product(4), "OPENVINO")


def test_a_profile_names_nodes_of_the_model(core: Core) -> None:
    network = core.compile_model(product(4), "OPENVINO", {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer(np.ones((4, 3), np.float32))
    (node,) = request.profiling_info.nodes
    assert node.op_type in ("MatMul", "Relu")
    assert node.kernel.startswith("FullyConnected "), "OpenVINO runs both as one, and says by which kernel"


def test_devices_that_this_machine_lacks_are_named(core: Core) -> None:
    with pytest.raises(DeviceNotFoundError, match="devices: CPU"):
        core.compile_model(product(), "OPENVINO.NPU-7")


def test_a_runtime_that_disagrees_about_a_value_inside(core: Core) -> None:
    """OpenVINO keeps a window of ceil_mode that ONNX leaves out; a mean over the result would hide it."""
    x = Parameter(f32, [1, 1, 11, 11], "x")
    windows = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 1, 1), "ceil_mode": 1}
    pool = Node("MaxPool", [x], windows, friendly_name="pool")
    other = Node("GlobalAveragePool", [pool], friendly_name="mean")
    support = core.query_model(Model([other], [x]), "OPENVINO")
    compiled = core.compile_model(Model([other], [x]), "TEMPLATE")
    data = np.random.default_rng(0).standard_normal((1, 1, 11, 11)).astype(np.float32)
    if support.is_supported:  # a version without the fault
        np.testing.assert_allclose(
            core.compile_model(Model([other], [x]), "OPENVINO")(data)[0], compiled(data)[0], rtol=1e-5
        )
    else:
        assert "says that" in support["pool"].reason
        with pytest.raises(UnsupportedError, match="pool"):
            core.compile_model(Model([other], [x]), "OPENVINO")
