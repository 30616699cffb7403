"""`engine.session` does what onnxruntime does, side by side, for code that is written against onnxruntime.

If this fails, such code gets other names, types, shapes, values or kinds of values here than there, or an option that
changes results is ignored without a word.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine.session as ours
from engine import AsyncInferRequest, Core
from engine.errors import Cancelled, EngineError, EngineWarning, InputError, ModelReadError, UnsupportedError

theirs = pytest.importorskip("onnxruntime")

X = np.array([[1, 2], [3, 4]], np.float32)


def value(name: str, kind: int, shape: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(graph: onnx.GraphProto) -> bytes:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=10, producer_name="me", domain="org.acme", model_version=7,
        doc_string="what it does",
    )  # fmt: skip
    helper.set_model_props(model, {"author": "someone", "classes": "a,b"})
    return model.SerializeToString()


def mixed() -> bytes:
    """Outputs of several kinds: of known and unknown lengths, a scalar, integers, a sequence."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Shape", ["x"], ["lengths"]),
        helper.make_node("SequenceConstruct", ["x", "y"], ["both"]),
        helper.make_node("Identity", ["t"], ["u"]),
    ]
    ends = [
        value("y", TensorProto.FLOAT, None),
        value("s", TensorProto.FLOAT, []),
        value("lengths", TensorProto.INT64, [2]),
        helper.make_tensor_sequence_value_info("both", TensorProto.FLOAT, None),
        value("u", TensorProto.STRING, ["words"]),
    ]
    starts = [value("x", TensorProto.FLOAT, ["N", None]), value("t", TensorProto.STRING, ["words"])]
    weights = [numpy_helper.from_array(np.array([10, 20], np.float32), "w")]
    return saved(helper.make_graph(nodes, "mixed", starts, ends, weights, doc_string="of the graph"))


def classifier() -> bytes:
    """ZipMap, as skl2onnx writes it: lists of dicts."""
    names = {"classlabels_int64s": [3, 5]}, {"classlabels_strings": ["a", "b"]}
    nodes = [
        helper.make_node("ZipMap", ["x"], [out], domain="ai.onnx.ml", **kind)
        for out, kind in zip("yz", names, strict=True)
    ]
    ends = [
        helper.make_value_info(
            out,
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
            ),
        )
        for out, key in (("y", TensorProto.INT64), ("z", TensorProto.STRING))
    ]
    return saved(helper.make_graph(nodes, "classifier", [value("x", TensorProto.FLOAT, ["N", 2])], ends))


def sums() -> bytes:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0)]
    ends = [value("y", TensorProto.FLOAT, ["N", 2]), value("s", TensorProto.FLOAT, [])]
    return saved(helper.make_graph(nodes, "sums", [value("x", TensorProto.FLOAT, ["N", 2])], ends))


def endless() -> bytes:
    """A Loop of 10^9 steps."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["b"], ["d"]), helper.make_node("Sin", ["v"], ["w"])],
        "body",
        [value("i", TensorProto.INT64, []), value("b", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, ["N", 2])],
        [value("d", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, ["N", 2])],
    )
    nodes = [helper.make_node("Loop", ["n", "c", "x"], ["y"], body=body)]
    count = [numpy_helper.from_array(np.array(10**9), "n"), numpy_helper.from_array(np.array(True), "c")]
    ends = [value("y", TensorProto.FLOAT, ["N", 2])]
    return saved(helper.make_graph(nodes, "endless", [value("x", TensorProto.FLOAT, ["N", 2])], ends, count))


def both(content: bytes) -> tuple[ours.InferenceSession, Any]:
    return ours.InferenceSession(content), theirs.InferenceSession(content, providers=["CPUExecutionProvider"])


def described(args: Any) -> list[tuple[str, str, list[Any]]]:
    return [(arg.name, arg.type, arg.shape) for arg in args]


def equal(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return type(one) is np.ndarray and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(other, list):
        return type(one) is list and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(other, dict):
        same = all(type(a) is type(b) for a, b in zip([*one, *one.values()], [*other, *other.values()], strict=True))
        return type(one) is dict and one == other and same
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("make", [mixed, classifier], ids=lambda make: make.__name__)
def test_a_session_describes_its_model_alike(make: Callable[[], bytes]) -> None:
    mine, yours = both(make())
    assert described(mine.get_inputs()) == described(yours.get_inputs())
    assert described(mine.get_outputs()) == described(yours.get_outputs())
    assert [str(arg) for arg in mine.get_outputs()] == [str(arg) for arg in yours.get_outputs()]
    one, other = mine.get_modelmeta(), yours.get_modelmeta()
    for name in (name for name in dir(other) if not name.startswith("_")):
        assert getattr(one, name) == getattr(other, name), name
    assert mine.get_providers() == yours.get_providers()
    assert list(mine.get_provider_options()) == list(yours.get_provider_options())


@pytest.mark.parametrize("names", [None, [], ["s"], ["both", "y"], ["y", "y"]])
@pytest.mark.parametrize("texts", [np.array(["a", "bc"]), np.array(["a", ""], object), ["a", "b"]])
def test_runs_return_the_same_kinds_of_values(names: list[str] | None, texts: Any) -> None:
    mine, yours = both(mixed())
    feed = {"x": X, "t": texts}
    assert equal(mine.run(names, feed), yours.run(names, feed))


def test_texts_may_be_encoded() -> None:
    """onnxruntime reads beyond the end of the elements of such arrays."""
    session = ours.InferenceSession(mixed())
    texts = session.run(["u"], {"x": X, "t": np.array([b"ab", "ü".encode()])})
    assert texts[0].tolist() == ["ab", "ü"]
    with pytest.raises(InputError, match="`t`: the bytes of a text are not UTF-8"):
        session.run(["u"], {"x": X, "t": np.array([b"ab", b"\xff"])})


def test_maps_are_lists_of_dicts() -> None:
    mine, yours = both(classifier())
    assert equal(mine.run(None, {"x": X}), yours.run(None, {"x": X}))


@pytest.mark.parametrize("x", [[[1, 2]], [[1.5, -2.0]], [[True, False]]])
def test_numbers_may_be_in_lists(x: Any) -> None:
    mine, yours = both(mixed())
    assert equal(mine.run(["y"], {"x": x, "t": ["a"]}), yours.run(["y"], {"x": x, "t": ["a"]}))


def test_a_list_whose_numbers_would_change_is_refused() -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    for kind, wrong in ((TensorProto.UINT8, [1.5]), (TensorProto.UINT8, [300]), (TensorProto.FLOAT, [1e39]),
                        (TensorProto.FLOAT, [[1], [1, 2]]), (TensorProto.FLOAT, ["a"])):  # fmt: skip
        graph = helper.make_graph([node], "g", [value("x", kind, ["N"])], [value("y", kind, ["N"])])
        with pytest.raises(InputError, match="`x`: the list"):
            ours.InferenceSession(saved(graph)).run(None, {"x": wrong})


def test_values_share_memory_with_their_arrays() -> None:
    mine, yours = both(sums())
    for module, session in ((ours, mine), (theirs, yours)):
        x = X.copy()
        held = module.OrtValue.ortvalue_from_numpy(x)
        (result,) = session.run_with_ort_values(["s"], {"x": held})
        assert (result.numpy(), result.data_type(), result.shape(), result.is_tensor()) == (
            10,
            "tensor(float)",
            [],
            True,
        )
        held.update_inplace(2 * X)
        assert np.array_equal(x, 2 * X)
        assert session.run(["s"], {"x": held})[0] == 20
        empty = module.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64)
        assert (empty.data_type(), empty.element_type(), empty.shape(), empty.device_name()) == (
            "tensor(int64)", TensorProto.INT64, [2, 3], "cpu",
        )  # fmt: skip


def test_bound_outputs_are_written_in_place() -> None:
    mine, yours = both(sums())
    for module, session in ((ours, mine), (theirs, yours)):
        x, y = X.copy(), np.zeros((2, 2), np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("s")
        binding.bind_ortvalue_output("y", module.OrtValue.ortvalue_from_numpy(y))
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0] == 10
        assert np.array_equal(y, X + X)
        binding.clear_binding_outputs()
        binding.bind_output("y", "cpu", 0, np.float32, [2, 2], y.ctypes.data)
        binding.bind_input("x", "cpu", 0, np.float32, [2, 2], x.ctypes.data)
        x += 1
        session.run_with_iobinding(binding)
        assert np.array_equal(y, 2 * (X + 1))
        assert [each.numpy().tolist() for each in binding.get_outputs()] == [y.tolist()]
        binding.clear_binding_outputs()
        with pytest.raises((EngineError, RuntimeError), match="output"):
            session.run_with_iobinding(binding)


def test_a_length_is_fixed_by_its_name() -> None:
    found = []
    for module in (ours, theirs):
        options = module.SessionOptions()
        options.add_free_dimension_override_by_name("N", 4)
        options.add_free_dimension_override_by_name("other", 5)
        session = module.InferenceSession(sums(), options, providers=["CPUExecutionProvider"])
        found.append((described(session.get_inputs()), described(session.get_outputs())))
        with pytest.raises(Exception, match="4"):
            session.run(None, {"x": X})
    assert found[0] == found[1]


def test_options_have_the_names_and_defaults_of_onnxruntime() -> None:
    for mine, yours in ((ours.SessionOptions(), theirs.SessionOptions()), (ours.RunOptions(), theirs.RunOptions())):
        for name in (name for name in dir(yours) if not name.startswith("_") and not callable(getattr(yours, name))):
            assert str(getattr(mine, name)) == str(getattr(yours, name)).rpartition(".")[2] or (
                getattr(mine, name).name == getattr(yours, name).name
            ), name
        with pytest.raises(AttributeError):
            mine.enable_everything = True  # type: ignore[union-attr]
    options = ours.SessionOptions()
    options.intra_op_num_threads, options.use_deterministic_compute = 1, True
    network = ours.InferenceSession(sums(), options, core=Core()).network
    assert network.get_config("INFERENCE_NUM_THREADS") == 1


def test_what_cannot_be_honoured_is_refused_or_warned_of() -> None:
    options = ours.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with pytest.warns(EngineWarning, match="set_denormal_as_zero=1 has no meaning"):
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    for call in (lambda: options.register_custom_ops_library("lib.so"), lambda: options.add_initializer("w", None),
                 lambda: options.add_free_dimension_override_by_denotation("DATA_BATCH", 1),
                 lambda: ours.OrtValue.ortvalue_from_numpy(X, "cuda")):  # fmt: skip
        with pytest.raises(UnsupportedError, match="; use "):
            call()
    options.optimized_model_filepath = "optimized.onnx"
    with pytest.raises(UnsupportedError, match="export_model"):
        ours.InferenceSession(sums(), options)


def test_providers_are_devices() -> None:
    with pytest.warns(EngineWarning, match="CUDAExecutionProvider is not available; available: .*CPUExecutionProvider"):
        session = ours.InferenceSession(sums(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    session.set_providers(["TEMPLATE"])
    assert session.network.plugin.name == "TEMPLATE"
    assert session.run(["s"], {"x": X})[0] == 10
    several = ours.InferenceSession(sums(), providers=["TEMPLATE", "CPUExecutionProvider"])
    assert several.network.get_property("DEVICE_PRIORITIES") == "TEMPLATE,CPU"
    options = {"NUM_STREAMS": 2, "arena_extend_strategy": "kSameAsRequested"}
    session = ours.InferenceSession(sums(), providers=[("CPUExecutionProvider", options)])
    assert session.network.get_config("NUM_STREAMS") == 2
    with pytest.warns(EngineWarning, match="`?device_id"):
        ours.InferenceSession(sums(), providers=["CPUExecutionProvider"], provider_options=[{"device_id": 0}])
    with pytest.raises(InputError, match="providers has 1 items, but provider_options 2"):
        ours.InferenceSession(sums(), providers=["CPUExecutionProvider"], provider_options=[{}, {}])
    assert ours.get_available_providers() == ["CPUExecutionProvider"]


def overridable() -> bytes:
    """y = x * w + b, with defaults for w and b."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "b"], ["y"])]
    starts = [
        value("x", TensorProto.FLOAT, ["N", 2]),
        value("w", TensorProto.FLOAT, [2]),
        value("b", TensorProto.FLOAT, []),
    ]
    weights = [
        numpy_helper.from_array(np.array([10, 20], np.float32), "w"),
        numpy_helper.from_array(np.float32(1), "b"),
    ]
    return saved(helper.make_graph(nodes, "g", starts, [value("y", TensorProto.FLOAT, ["N", 2])], weights))


def test_initializers_may_have_other_values_in_a_run() -> None:
    mine, yours = both(overridable())
    assert described(mine.get_inputs()) == described(yours.get_inputs())
    assert sorted(described(mine.get_overridable_initializers())) == sorted(
        described(yours.get_overridable_initializers())
    )
    w, options = np.array([3, 4], np.float32), ours.RunOptions()
    for feed in ({"x": X}, {"x": X, "w": w}, {"x": X}, {"x": X, "b": np.float32(7), "w": [5, 6]}, {"x": X}):
        arrays = {name: np.asarray(each, np.float32) for name, each in feed.items()}
        expected = yours.run(None, arrays)[0].tolist()
        assert mine.run(None, feed)[0].tolist() == expected
        assert mine.run(None, feed, options)[0].tolist() == expected  # one request runs them all


def test_warnings_name_the_line_of_the_user() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        session = ours.InferenceSession(determinant(), providers=["NOPE", ("CPUExecutionProvider", {"nope": 1})])
        session.set_providers(["NOPE", ("CPUExecutionProvider", {"nope": 1})])
    kinds = ["provider NOPE is not", "option nope is not", "run on the reference evaluator"] * 2
    assert len(found) == len(kinds)
    for each, words in zip(found, kinds, strict=True):
        assert (each.filename, each.category) == (__file__, EngineWarning)
        assert words in str(each.message)


def determinant() -> bytes:
    """A node for which CPU has no kernel."""
    starts, ends = [value("x", TensorProto.FLOAT, [2, 2])], [value("y", TensorProto.FLOAT, [])]
    return saved(helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "g", starts, ends))


def test_a_run_is_ended_from_another_thread() -> None:
    session, options = ours.InferenceSession(endless()), ours.RunOptions()
    timer = threading.Timer(0.05, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(Cancelled):
        session.run(None, {"x": X}, options)
    timer.join()
    with pytest.raises(Cancelled, match="not started"):
        session.run(None, {"x": X}, options)


def test_a_run_in_the_background_calls_back() -> None:
    session, ended, found = ours.InferenceSession(sums()), threading.Event(), []

    def done(outputs: list[Any], data: Any, error: str) -> None:
        found.append((outputs, data, error))
        ended.set()

    session.run_async(["s"], {"x": X}, done, "mine")
    assert ended.wait(30)
    ended.clear()
    session.run_async(["s"], {"x": X.astype(np.float64)}, done, "mine")
    assert ended.wait(30)
    assert found[0] == ([10], "mine", "")
    assert found[1][:2] == ([], "mine")
    assert "float64" in found[1][2]


def test_profiles_are_written(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ours.InferenceSession(sums(), options)
    assert session.run(["s"], {"x": X})[0] == 10
    path = session.end_profiling()
    assert json.loads(Path(path).read_text())["traceEvents"]
    assert session.end_profiling() == ""
    assert session.run(["s"], {"x": X})[0] == 10
    assert abs(session.get_profiling_start_time_ns() - time.time_ns()) < 3600 * 10**9


def test_profiling_may_end_while_another_thread_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ours.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "missing" / "profile")
    session = ours.InferenceSession(sums(), options)
    session.run(["s"], {"x": X})
    with pytest.raises(OSError, match="missing"):
        session.end_profiling()
    (tmp_path / "missing").mkdir()
    begun, ended, wait = threading.Event(), threading.Event(), AsyncInferRequest.wait

    def slow(self: AsyncInferRequest, timeout: float | None = None) -> None:
        wait(self, timeout)
        begun.set()
        assert ended.wait(30)

    monkeypatch.setattr(AsyncInferRequest, "wait", slow)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(session.run, ["s"], {"x": X})
        assert begun.wait(30)
        path = session.end_profiling()
        ended.set()
        assert run.result()[0] == 10
    assert json.loads(Path(path).read_text())["traceEvents"]


def test_errors_are_of_this_engine(tmp_path: Path) -> None:
    session = ours.InferenceSession(sums())
    for names, feed in ((None, {}), (None, {"x": X, "z": X}), (["z"], {"x": X}), ("s", {"x": X}), (None, [X]),
                        (None, {"x": X.astype(np.float64)}), (None, {"x": X[0]})):  # fmt: skip
        with pytest.raises(InputError):
            session.run(names, feed)  # type: ignore[arg-type]
    for source in (tmp_path / "missing.onnx", b"abc", 3):
        with pytest.raises(ModelReadError):
            ours.InferenceSession(source)  # type: ignore[arg-type]


def test_packages_that_import_onnxruntime_get_this_engine(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(sums())
    code = f"""
from engine.session import replace_onnxruntime
replace_onnxruntime()
import importlib.util
for name in ("onnxruntime", "onnxruntime.capi", "onnxruntime.capi._pybind_state"):
    assert importlib.util.find_spec(name).name == name
assert importlib.util.find_spec("onnxruntime.quantization") is None
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions, get_available_providers
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
assert tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 20)
session = InferenceSession({str(model)!r}, SessionOptions(), providers=C.get_available_providers())
print(session.run(None, {{"x": np.ones((1, 2), np.float32)}})[1])
try:
    session.run(None, {{"z": 1}})
except InvalidArgument:
    print("caught")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["2.0", "caught"], "")
    with pytest.raises(UnsupportedError, match="imported already"):
        ours.replace_onnxruntime()
