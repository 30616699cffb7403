"""A model file in, results out, on a discovered device: whole networks against answers of another runtime."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import AsyncInferQueue, Core
from engine.testing.models import LIGHT_MODELS, light_answer, light_input, light_model, light_tolerance, relative_error

DEVICE = "TEMPLATE"
SMALL = ("squeezenet", "shufflenet")
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # chains of operators that the others have, and 240 to 580 MB of weights
NETWORKS = [
    name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in LIGHT_MODELS if name not in LARGE
]

# Runs in another process: it has nothing of this one but the blob and the inputs.
RUN_BLOB = """
import sys
import numpy as np
from engine import Core
blob, inputs, results = sys.argv[1:]
network = Core().import_model(blob)
with np.load(inputs) as given:
    result = network(dict(given))
np.savez(results, *[result[i] for i in range(len(result))])
"""


def run_elsewhere(network: Any, inputs: dict[str, npt.NDArray[Any]], folder: Path) -> list[npt.NDArray[Any]]:
    """Export `network`, import it in another process, and run it there."""
    network.export_model(folder / "network.blob")
    np.savez(folder / "inputs.npz", **inputs)
    arguments = [str(folder / name) for name in ("network.blob", "inputs.npz", "results.npz")]
    subprocess.run([sys.executable, "-W", "error", "-c", RUN_BLOB, *arguments], check=True, timeout=300)
    with np.load(folder / "results.npz") as results:
        return [results[f"arr_{i}"] for i in range(len(results.files))]


@pytest.mark.parametrize("name", NETWORKS)
def test_light_networks_give_the_other_runtimes_answer_here_and_after_import_elsewhere(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(light_model(name), path)
    inputs = light_input(name)
    network = Core().compile_model(path, DEVICE)
    result = network(inputs)[0]
    assert relative_error(result, light_answer(name)) <= light_tolerance(name)
    (elsewhere,) = run_elsewhere(network, inputs, tmp_path)
    np.testing.assert_array_equal(elsewhere, result)


@pytest.mark.parametrize("name", [SMALL[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL[1:])])
def test_eight_concurrent_requests_give_each_its_own_answer(name: str) -> None:
    network = Core().compile_model(light_model(name), DEVICE)
    inputs = light_input(name)
    (key,) = inputs
    results: dict[int, npt.NDArray[Any]] = {}
    with AsyncInferQueue(network, 8) as queue:
        queue.set_callback(lambda request, index: results.__setitem__(index, request.results[0]))
        for index in range(8):
            # Other inputs for every request, so that one request's answer in another's place is seen.
            queue.start_async({key: inputs[key] * np.float32(2.0**-index)}, index)
        queue.wait_all()
    assert relative_error(results[0], light_answer(name)) <= light_tolerance(name)
    for index in (1, 7):
        np.testing.assert_array_equal(results[index], network({key: inputs[key] * np.float32(2.0**-index)})[0])
    assert len({result.tobytes() for result in results.values()}) == 8


def control_flow_model() -> onnx.ModelProto:
    """If on a captured value; a Loop whose number of iterations depends on data, with a scan output; a Scan."""
    tensor, info = TensorProto.FLOAT, helper.make_tensor_value_info

    def branch(name: str, operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x", "one"], [f"{name}_out"])
        return helper.make_graph([node], name, [], [info(f"{name}_out", tensor, [3])])

    loop_body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "chosen"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["again"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "loop_body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", tensor, [3])],
        [info("again", TensorProto.BOOL, []), info("next", tensor, [3]), info("seen", tensor, [3])],
    )
    scan_body = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["sum_out"]), helper.make_node("Mul", ["sum_out", "one"], ["each"])],
        "scan_body",
        [info("sum", tensor, [3]), info("row", tensor, [3])],
        [info("sum_out", tensor, [3]), info("each", tensor, [3])],
    )
    nodes = [
        helper.make_node(
            "If", ["flag"], ["chosen"], then_branch=branch("then", "Add"), else_branch=branch("other", "Sub")
        ),
        helper.make_node("Loop", ["most", "true", "x"], ["looped", "history"], body=loop_body),
        helper.make_node("Scan", ["looped", "history"], ["final", "sums"], body=scan_body, num_scan_inputs=1),
    ]
    constants = {"one": np.float32(1), "limit": np.float32(20), "most": np.int64(10), "true": np.True_}
    graph = helper.make_graph(
        nodes,
        "control_flow",
        [info("flag", TensorProto.BOOL, []), info("x", tensor, [3])],
        [info("final", tensor, [3]), info("sums", tensor, ["rows", 3]), info("history", tensor, ["rows", 3])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("flag", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_if_loop_and_scan_give_onnxruntimes_results_here_and_elsewhere(flag: bool, tmp_path: Path) -> None:
    model = control_flow_model()
    inputs: dict[str, npt.NDArray[Any]] = {"flag": np.array(flag), "x": np.array([0.5, 2.0, 3.0], np.float32)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, inputs)
    network = Core().compile_model(model, DEVICE)
    result = network(inputs)
    for i, (here, there) in enumerate(zip(expected, run_elsewhere(network, inputs, tmp_path), strict=True)):
        # A handful of additions of small halves: exact in float32.
        np.testing.assert_array_equal(result[i], here)
        np.testing.assert_array_equal(there, here)


@pytest.mark.slow
def test_stages_of_two_requests_overlap_and_each_requests_stages_run_in_order() -> None:
    network = Core().compile_model(light_model("squeezenet"), DEVICE, {"PERF_COUNT": True})
    inputs = light_input("squeezenet")
    requests = [network.create_infer_request() for _ in range(2)]
    started = threading.Barrier(2)
    intervals: list[list[Any]] = [[], []]

    def run(index: int) -> None:
        started.wait()
        for _ in range(12):
            requests[index].start_async(inputs)
            requests[index].wait(timeout=120)
            intervals[index].append(requests[index].profiling_info.stages)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stages in itertools.chain(*intervals):
        assert [s.name for s in stages] == ["infer_preprocess", "start_pipeline", "wait_pipeline", "infer_postprocess"]
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(stages))
        assert [s.executor for s in stages[1:3]] == ["TEMPLATE:device"] * 2
    # The device runs one program at a time, so while it runs one request's the other does its host stage: at least
    # once, however the threads are scheduled.
    programs = sorted((stages[1] for stages in itertools.chain(*intervals)), key=lambda stage: stage.start_ns)
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(programs))
    pairs = [*itertools.product(*intervals), *itertools.product(*intervals[::-1])]
    assert any(one[1].start_ns < other[0].end_ns < one[1].end_ns for one, other in pairs)
