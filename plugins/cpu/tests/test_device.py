"""The CPU device as an application meets it: shapes that vary, threads, blobs, refusals, and bad input."""

from __future__ import annotations

import io
import json
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cpu.choices import Choices
from engine_cpu.compiler import Compiler
from engine_cpu.instruction_sets import needed_isa
from engine_cpu.lowering import CpuGraph
from engine_cpu.program import Program
from engine_cpu.transform import prepare_model

from engine import Core, ops
from engine.blob import BlobReader, BlobWriter
from engine.errors import (
    BlobError,
    BlobIncompatibleError,
    Cancelled,
    EngineError,
    InputError,
    OutOfMemoryError,
    PlanError,
    UnsupportedError,
)
from engine.ir import Constant, Model, Parameter, f32, i64, u8
from engine.native import cores, default_isa, has_feature, isas_within, left_out_kernels
from engine.ops import evaluate_model
from engine.testing.behaviour.cases import CASES
from engine.testing.networks import seeded_network
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def convolutional(*shape: int | str) -> Model:
    x = Parameter(f32, list(shape), "x")
    y = ops.Relu(ops.Conv(x, Constant(values(24, 8, 3, 3) / 9), Constant(values(24)), pads=(1, 1, 1, 1)))
    z = ops.GlobalAveragePool(ops.Add(y, ops.Conv(y, Constant(values(24, 24, 1, 1) / 5))))
    return Model([ops.Softmax(ops.Flatten(z))], [x])


def data_dependent() -> Model:
    """The rows of x with a positive first element, squared and multiplied."""
    x = Parameter(f32, ["n", 16], "x")
    first = ops.Gather(x, Constant(np.array(0), i64), axis=1)
    rows = ops.Gather(x, ops.Flatten(ops.Transpose(ops.NonZero(ops.Greater(first, Constant(0.0)))), axis=2), axis=0)
    squeezed = ops.Reshape(rows, Constant(np.array([-1, 16]), i64))
    return Model([ops.MatMul(ops.Mul(squeezed, squeezed), Constant(values(16, 5)))], [x])


def assert_close(got: Array, expected: Array) -> None:
    """Up to rounding of the longest sums here, of some 250 products, relative to the largest value."""
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-5 * max(1.0, float(np.abs(expected).max(initial=0))))


# -- shapes ------------------------------------------------------------------------------------------------


def test_each_shape_gets_a_plan_once(core: Core) -> None:
    model = convolutional("n", 8, "h", "w")
    network = core.compile_model(model, "CPU", {"PLAN_CACHE_SIZE": 2})
    for shape in [(1, 8, 5, 7), (2, 8, 9, 4), (1, 8, 5, 7), (3, 8, 1, 1), (2, 8, 9, 4)]:
        x = values(*shape)
        assert_close(network([x])[0], evaluate_model(model, [x])[0])
        assert len(network.programs.plans()) <= 2
    one = network.programs.get([values(2, 8, 9, 4)])
    assert network.programs.get([values(2, 8, 9, 4)]) is one


def test_a_native_answer_holds_for_computed_lengths_without_the_reference(core: Core) -> None:
    """Lengths computed from lengths in two steps are folded for the actual shapes, or the inference would fail."""
    (case,) = [case for case in CASES if case.name == "computed_lengths"]
    config = {"ALLOW_REFERENCE": False}
    assert core.query_model(case.model, "CPU", config).is_supported
    network = core.compile_model(case.model, "CPU", config)
    for sample in case.samples:
        np.testing.assert_array_equal(network(sample.inputs)["y"], sample.outputs["y"])


def test_inferences_go_on_while_another_shape_is_compiled(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    network = core.compile_model(convolutional("n", 8, "h", "w"), "CPU")
    known, new = values(1, 8, 5, 7), values(2, 8, 5, 7)
    expected = network([known])[0]
    make, begun, may_go_on = Compiler.program, threading.Event(), threading.Event()

    def held_up(compiler: Compiler, prepared: CpuGraph, choices: Choices) -> Program:
        begun.set()
        assert may_go_on.wait(60)
        return make(compiler, prepared, choices)

    monkeypatch.setattr(Compiler, "program", held_up)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(network, [new])
        assert begun.wait(60)
        try:
            np.testing.assert_array_equal(threads.submit(network, [known]).result(60)[0], expected)
        finally:
            may_go_on.set()
        assert slow.result(60)[0].shape[0] == 2


def test_plans_of_several_shapes_share_weights(core: Core) -> None:
    network = core.compile_model(convolutional("n", 8, "h", "w"), "CPU")
    network([values(1, 8, 12, 12)])
    kept = {key: array.ctypes.data for key, array in network.weights.packed.items()}
    network([values(1, 8, 12, 13)])
    assert kept
    assert all(network.weights.packed[key].ctypes.data == at for key, at in kept.items())


@pytest.mark.parametrize("count", [0, 1, 6])
def test_shapes_that_depend_on_data(core: Core, count: int) -> None:
    model = data_dependent()
    network = core.compile_model(model, "CPU")
    x = values(9, 16)
    x[:, 0] = -1
    x[:count, 0] = 1
    result = network([x])[0]
    assert result.shape == (count, 5)
    assert_close(result, evaluate_model(model, [x])[0])


def test_a_shape_that_a_model_cannot_take_is_named(core: Core) -> None:
    x = Parameter(f32, ["n", "m"], "x")
    network = core.compile_model(Model([ops.Add(x, Constant(values(3)))], [x]), "CPU")
    with pytest.raises(InputError, match=r"x \[2, 4\]"):
        network([values(2, 4)])
    assert_close(network([values(2, 3)])[0], values(2, 3) + values(3))


@pytest.mark.parametrize("shape", [(0, 8, 6, 6), (1, 8, 1, 1)])
def test_empty_and_single_maps(core: Core, shape: tuple[int, ...]) -> None:
    model = convolutional(*shape)
    x = values(*shape)
    assert_close(core.compile_model(model, "CPU")([x])[0], evaluate_model(model, [x])[0])


# -- threads and streams -----------------------------------------------------------------------------------


def test_results_do_not_depend_on_threads(core: Core) -> None:
    network = seeded_network("mobilevit", small=True)
    one, two, many = (
        core.compile_model(network.model, "CPU", {"INFERENCE_NUM_THREADS": n})(network.inputs)[0] for n in (1, 2, 999)
    )
    assert_close(one, two)
    np.testing.assert_array_equal(two, many)


def test_a_stream_that_is_alone_may_use_all_cores(core: Core) -> None:
    """Otherwise, a server that runs inferences side by side would answer a single client on one core."""
    model = convolutional(1, 8, 20, 20)
    elastic = core.compile_model(model, "CPU", {"NUM_STREAMS": 2})
    bounded = core.compile_model(model, "CPU", {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2})
    assert elastic.compiler.threads == cores()
    assert bounded.compiler.threads == 1


def test_streams_for_throughput_keep_to_the_threads_of_the_network(core: Core) -> None:
    config = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 1}
    network = core.compile_model(convolutional(1, 8, 20, 20), "CPU", config)
    assert network.get_property("NUM_STREAMS") == 1


def test_streams_run_at_once_on_different_inputs(core: Core) -> None:
    model = convolutional(1, 8, 20, 20)
    network = core.compile_model(model, "CPU", {"NUM_STREAMS": 2})
    inputs = [values(1, 8, 20, 20, seed=seed) for seed in range(8)]
    expected = [evaluate_model(model, [x])[0] for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if np.abs(network([inputs[index]])[0] - expected[index]).max() > 1e-5:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cancellation_reaches_the_plan(core: Core) -> None:
    x = Parameter(f32, [4], "x")
    network = core.compile_model(Model([ops.Relu(x)], [x]), "CPU")
    request = network.create_infer_request_impl()
    request.set_inputs([values(4)])
    request.begin()
    request.request_cancel(Cancelled("by the user"))
    (scheduled,) = network.program.segments
    with pytest.raises(Cancelled, match="by the user"):
        scheduled.segment.run(request.inputs, [None], request)
    assert request.infer([values(4)])[0].shape == (4,)


def test_cancellation_stops_a_plan(core: Core) -> None:
    x = Parameter(f32, [1, 400, 400], "x")
    y = ops.MatMul(x, x)
    for _ in range(300):
        y = ops.MatMul(y, x)
    request = core.compile_model(Model([y], [x]), "CPU").create_infer_request()
    request.start_async([np.full((1, 400, 400), 1e-3, np.float32)])
    request.cancel()
    with pytest.raises(Cancelled):
        request.wait()
    assert request.infer([np.zeros((1, 400, 400), np.float32)])[0].max() == 0


# -- what runs where ---------------------------------------------------------------------------------------


def with_reference() -> Model:
    x = Parameter(f32, [4, 4], "x")
    inverse = ops.Det(ops.Relu(x))
    inverse.friendly_name = "the_det"
    return Model([ops.Exp(inverse)], [x])


def test_what_has_no_kernel_is_named_everywhere(core: Core) -> None:
    model = with_reference()
    support = core.query_model(model, "CPU")
    assert {name for name, each in support.nodes.items() if each.level.value == "reference"} == {"the_det"}
    network = core.compile_model(model, "CPU", {"PERF_COUNT": True})
    assert network.get_metric("REFERENCE_STEPS") == ("the_det",)
    request = network.create_infer_request()
    request.infer([values(4, 4)])
    statuses = {node.name: node.status for node in request.profiling_info.nodes}
    assert statuses["the_det"] == "reference"
    assert set(statuses.values()) == {"native", "reference"}


def test_reference_steps_can_be_refused(core: Core) -> None:
    with pytest.raises(UnsupportedError, match="the_det"):
        core.compile_model(with_reference(), "CPU", {"ALLOW_REFERENCE": False})
    refused = core.query_model(with_reference(), "CPU", {"ALLOW_REFERENCE": False})
    assert refused["the_det"].level.value == "refused"


# -- blobs -------------------------------------------------------------------------------------------------


def test_compiling_loads_no_module_that_it_does_not_need() -> None:
    """Each of these modules takes megabytes of memory in a process that serves a small model."""
    program = """
import sys
from engine import Core
from engine.ir import Model, Parameter, f32
from engine import ops
x = Parameter(f32, [1, 8, 16, 16], "x")
network = Core().compile_model(Model([ops.Relu(ops.AveragePool(x, kernel_shape=(2, 2)))], [x]), "CPU")
network.create_infer_request()
unwanted = ["asyncio", "hashlib", "numpy.random", "onnx.reference", "statistics"]
unwanted += ["engine.onnx.downgrade", "engine.passes.equivalence"]
print([name for name in unwanted if name in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert output.strip() == "[]"


def test_weights_are_in_memory_once_while_they_are_packed() -> None:
    x = Parameter(f32, [1, 64, 14, 14], "x")
    scale, shift, mean, variance = (Constant(np.full(64, value, np.float32)) for value in (1.5, 0.5, 0.1, 2.0))
    value = x.output(0)
    for seed in range(3):
        convolution = ops.Conv(value, Constant(values(64, 64, 3, 3, seed=seed) / 20), pads=(1, 1, 1, 1))
        value = ops.Relu(ops.BatchNormalization(convolution, scale, shift, mean, variance)).output(0)
    graph = prepare_model(Model([value], [x])).graph
    weights = [n for n in graph.ordered_nodes() if isinstance(n, Constant) and n.byte_size > 1 << 17]
    assert len(weights) == 3
    assert not any(constant.is_loaded for constant in weights)


def exported(core: Core, model: Model, **config: object) -> bytes:
    stream = io.BytesIO()
    core.compile_model(model, "CPU", config).export_model(stream)
    return stream.getvalue()


def test_a_blob_gives_the_same_bits_and_packs_nothing_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(1, 8, 20, 20)
    network = core.compile_model(convolutional(1, 8, 20, 20), "CPU", {"COMPILE_EFFORT": "full"})
    expected = network([x])[0]
    stream = io.BytesIO()
    network.export_model(stream)
    blob = stream.getvalue()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("an import packs and measures nothing")

    monkeypatch.setattr("engine_cpu.lowering.conv_operands.Packing", fail)
    monkeypatch.setattr("engine_cpu.tuning._measure", fail)
    np.testing.assert_array_equal(core.import_model(blob, "CPU")([x])[0], expected)


@pytest.mark.parametrize(("compiled", "imported"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "lstm"])
def test_a_blob_runs_on_another_number_of_threads(core: Core, name: str, compiled: int, imported: int) -> None:
    """Build and production machines have different cores; kernels and packed weights come from the blob."""
    made = seeded_network(name, small=True)
    stream = io.BytesIO()
    network = core.compile_model(made.model, "CPU", {"INFERENCE_NUM_THREADS": compiled})
    network.export_model(stream)
    again = core.import_model(stream.getvalue(), "CPU", {"INFERENCE_NUM_THREADS": imported})
    assert_close(again(made.inputs)[0], network(made.inputs)[0])
    repeated = io.BytesIO()
    again.export_model(repeated)
    third = core.import_model(repeated.getvalue(), "CPU", {"NUM_STREAMS": 2})
    assert_close(third(made.inputs)[0], network(made.inputs)[0])


def test_a_blob_keeps_its_precision(core: Core) -> None:
    blob = exported(core, convolutional(1, 8, 20, 20))
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU computes in f32 whatever the hint")
    with pytest.raises(UnsupportedError, match=r"compiled for f32.*is bf16"):
        core.import_model(blob, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})


@pytest.mark.skipif(bool(left_out_kernels()), reason="the engine was built for this CPU alone")
@pytest.mark.skipif(not has_feature(default_isa(), "vnni"), reason="f32 kernels use all that this CPU has")
def test_a_blob_asks_for_no_more_than_its_kernels_need(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network compiled on a new machine also runs on older ones."""
    x, model = values(1, 8, 20, 20), convolutional(1, 8, 20, 20)
    network = core.compile_model(model, "CPU", {"COMPILE_EFFORT": "full"})
    blob = io.BytesIO()
    network.export_model(blob)
    (needed,) = BlobReader(blob.getvalue()).manifest.requirements["isa"]
    assert needed in isas_within(default_isa())
    assert not has_feature(needed, "vnni")
    in_bf16 = exported(core, model, INFERENCE_PRECISION_HINT="bf16")
    (needed_in_bf16,) = BlobReader(in_bf16).manifest.requirements["isa"]
    monkeypatch.setenv("ENGINE_MAX_ISA", needed)
    older = core.import_model(blob.getvalue(), "CPU")
    np.testing.assert_array_equal(older([x])[0], network([x])[0])
    if has_feature(needed_in_bf16, "bf16"):
        with pytest.raises(BlobIncompatibleError, match=needed_in_bf16):
            core.import_model(in_bf16, "CPU")
    monkeypatch.setenv("ENGINE_MAX_ISA", isas_within(needed)[-2])
    with pytest.raises(BlobIncompatibleError, match=needed):
        core.import_model(blob.getvalue(), "CPU")


@pytest.mark.skipif(bool(left_out_kernels()), reason="the engine was built for this CPU alone")
def test_a_network_needs_the_instructions_of_its_own_kernels() -> None:
    """The network's kernels decide, not this CPU: f32 runs without instructions for bf16 or integers."""
    newest, of_integers = ("amx", "vnni") if platform.machine() == "x86_64" else ("neonbf16", "dotprod")
    reals = convolutional(1, 8, 20, 20)
    a, b = Parameter(u8, [4, 8], "a"), Constant(np.ones((8, 4), np.uint8))
    integers = Model([ops.MatMulInteger(a, b)], [a])
    assert not has_feature(needed_isa(reals, "f32", newest), "bf16")
    assert not has_feature(needed_isa(reals, "f32", newest), of_integers)
    assert has_feature(needed_isa(reals, "bf16", newest), "bf16")
    assert has_feature(needed_isa(integers, "f32", newest), of_integers)


def test_a_blob_holds_packed_weights_once(core: Core) -> None:
    x = Parameter(f32, [1, 256], "x")
    weights = values(256, 512)
    blob = exported(core, Model([ops.MatMul(x, Constant(weights))], [x]))
    assert len(blob) < 1.5 * weights.nbytes


def forged(blob: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """A blob with changed sections and valid hashes."""
    reader = BlobReader(blob)
    writer = BlobWriter(reader.manifest)
    for name in reader.section_names:
        writer.add_section(name, change(name, bytes(reader.section(name))))
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda name, data: data[: len(data) // 2] if name.startswith("packed/") else data,
        lambda name, data: b"" if name.startswith("packed/") else data,
        lambda name, data: b"{}" if name == "compilation" else data,
        lambda name, data: (
            json.dumps({"isa": "none", "precision": "f32", "threads": 1, "choices": {}}).encode()
            if name == "compilation"
            else data
        ),
        lambda name, data: data[:-9] if name == "program" else data,
    ],
)
def test_a_forged_blob_is_an_error(core: Core, change: Callable[[str, bytes], bytes]) -> None:
    blob = exported(core, convolutional(1, 8, 20, 20))
    with pytest.raises(EngineError):
        core.import_model(forged(blob, change), "CPU")([values(1, 8, 20, 20)])


def test_a_forged_graph_is_an_error(core: Core) -> None:
    """With open lengths, a blob has no program, and its graph is read."""
    blob = exported(core, convolutional("N", 8, 20, 20))
    with pytest.raises(EngineError):
        core.import_model(forged(blob, lambda name, data: data[:-9] if name == "graph" else data), "CPU")


def of_another_architecture(blob: bytes) -> bytes:
    """The blob as another machine would have exported it; its section and its `generic` kernels have the same names."""
    reader = BlobReader(blob)
    writer = BlobWriter(replace(reader.manifest, requirements={**reader.manifest.requirements, "architecture": "vax"}))
    for name in reader.section_names:
        writer.add_section(name, bytes(reader.section(name)))
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def test_a_blob_of_another_architecture_is_refused(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")  # which every architecture has, with its own format of weights
    blob = exported(core, convolutional(1, 8, 20, 20))
    assert BlobReader(blob).manifest.requirements["isa"] == ["generic"]
    reason = f"requirement 'architecture': the blob needs vax, this host has {platform.machine()}"
    with pytest.raises(BlobIncompatibleError, match=reason):
        core.import_model(of_another_architecture(blob), "CPU")
    assert reason in core.check_blob(of_another_architecture(blob)).reasons[0]


def test_a_cached_blob_of_another_architecture_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core, model = Core(), convolutional(1, 8, 20, 20)
    core.set_property({"CACHE_DIR": str(tmp_path)})
    first = core.compile_model(model, "CPU")
    (entry,) = tmp_path.glob("*.blob")
    entry.write_bytes(of_another_architecture(entry.read_bytes()))
    networks = [core.compile_model(model, "CPU") for _ in range(3)]
    assert [network.loaded_from_cache for network in networks] == [False, True, True]
    (record,) = [record for record in caplog.records if record.name == "engine.cache"]
    assert "the blob needs vax" in record.getMessage()
    x = values(1, 8, 20, 20)
    np.testing.assert_array_equal(networks[-1]([x])[0], first([x])[0])


def test_a_flipped_bit_in_packed_weights_is_found(core: Core) -> None:
    blob = bytearray(exported(core, convolutional(1, 8, 20, 20)))
    blob[-5] ^= 1
    with pytest.raises(BlobError):
        core.import_model(bytes(blob), "CPU")


# -- bad input ---------------------------------------------------------------------------------------------


def test_not_a_number_in_weights_reaches_the_result(core: Core) -> None:
    x = Parameter(f32, [1, 8, 6, 6], "x")
    weights = values(16, 8, 3, 3)
    weights[5, 2, 1, 1] = np.nan
    model = Model([ops.Conv(x, Constant(weights), pads=(1, 1, 1, 1))], [x])
    result = core.compile_model(model, "CPU")([values(1, 8, 6, 6)])[0]
    assert np.isnan(result[:, 5]).all()
    assert np.isfinite(np.delete(result, 5, axis=1)).all()


def test_more_memory_than_there_is_is_an_error(core: Core) -> None:
    x = Parameter(f32, [1 << 20, 1 << 20], "x")
    small = Parameter(f32, [1, 1], "s")
    huge = Model([ops.ReduceSum(ops.Exp(ops.Expand(small, Constant(np.array([1 << 22, 1 << 20]), i64))))], [small])
    with pytest.raises((OutOfMemoryError, PlanError, UnsupportedError)):
        core.compile_model(huge, "CPU")([np.ones((1, 1), np.float32)])
    overflowing = Model([ops.Expand(x, Constant(np.array([1 << 40, 1 << 20, 1 << 20]), i64))], [x])
    with pytest.raises(EngineError):
        core.compile_model(overflowing, "CPU")


def test_a_blob_whose_weights_are_packed_in_another_way_is_refused() -> None:
    """Kernels would misread them, since sizes may be equal."""
    core, stream = Core(), io.BytesIO()
    core.compile_model(seeded_network("mlp", small=True).model, "CPU").export_model(stream)
    reader, older = BlobReader(stream.getvalue()), io.BytesIO()
    writer = BlobWriter(replace(reader.manifest, requirements={**reader.manifest.requirements, "packed weights": "1"}))
    for name in reader.section_names:
        writer.add_section(name, reader.section(name))
    writer.write(older)
    with pytest.raises(BlobIncompatibleError, match="packed weights"):
        core.import_model(older.getvalue())
