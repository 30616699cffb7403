"""The forecast of a network's memory: exact in weights and arenas, and known before an inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Core
from engine.errors import InputError, PluginContractError, UnsupportedError
from engine.ir.sizes import joined_bytes
from engine.native import Context, PlanBuilder, span_of
from engine.passes import MakeStateful
from engine.plugin_api import ExecutableNetwork, MemoryForecast
from engine.testing.networks import NETWORKS, seeded_network

UNCACHED = {"CACHE_DIR": ""}
DECODERS = Path(__file__).parent / "fixtures" / "decoders"


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def read_arrays(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Any]]:
    """The arrays that steps of each plan read in place, as they were given to the native core, by the plan's id."""
    arrays: dict[int, list[Any]] = {}
    given: dict[int, list[Any]] = {}
    add, build = PlanBuilder.add_constant, PlanBuilder.build

    def add_constant(self: PlanBuilder, array: Any) -> int:
        given.setdefault(id(self), []).append(array)
        return add(self, array)

    def build_plan(self: PlanBuilder) -> Any:
        plan = build(self)
        arrays[id(plan)] = given.pop(id(self), [])
        return plan

    monkeypatch.setattr(PlanBuilder, "add_constant", add_constant)
    monkeypatch.setattr(PlanBuilder, "build", build_plan)
    return arrays


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_weights_and_arena_are_those_of_the_native_core(
    name: str, core: Core, read_arrays: dict[int, list[Any]], tmp_path: Path
) -> None:
    onnx.save(seeded_network(name, small=True).model, path := tmp_path / "model.onnx")
    network: Any = core.compile_model(path, "CPU", {**UNCACHED, "INFERENCE_NUM_THREADS": 2})
    forecast = network.memory_forecast()
    plans = network.native_plans()
    contexts = [Context(plan, 2) for plan in plans]
    assert forecast.arena == sum(plan.arena_bytes for plan in plans)
    assert forecast.arena + forecast.scratch >= sum(context.memory_bytes for context in contexts)
    if len(plans) == 1:  # otherwise, values pass from one to the next
        assert forecast.arena + forecast.scratch == contexts[0].memory_bytes
    read = [span_of(array) for plan in plans for array in read_arrays[id(plan)]]
    kept = [constant for constant in network.graph.ordered_nodes() if constant.op_type == "Constant"]
    small = sum(constant.data.nbytes for constant in kept if constant.is_loaded)
    packed = sum(array.nbytes for array in network.weights.packed.values())
    # Beside what plans read, a network has small constants of its graph and weights in another form.
    assert joined_bytes(read) <= forecast.weights <= joined_bytes(read) + small + packed
    assert forecast.weights >= packed
    assert forecast.mapped == sum(end - start for plan in plans for start, end in set(plan.constants.mapped))
    own = forecast.weights - forecast.mapped
    assert forecast.peak == own + forecast.arena + forecast.scratch + forecast.inputs + forecast.outputs


def linear(rows: Any = "N", width: int = 96, depth: int = 3) -> onnx.ModelProto:
    """Products of `rows` with square matrices, each with a Relu."""
    random = np.random.default_rng(1)
    nodes, weights, value = [], [], "x"
    for number in range(depth):
        weights.append(helper.make_tensor(f"w{number}", 1, [width, width], random.random((width, width), np.float32)))
        nodes += [
            helper.make_node("MatMul", [value, f"w{number}"], [f"p{number}"]),
            helper.make_node("Relu", [f"p{number}"], [value := f"y{number}"]),
        ]
    ports = [helper.make_tensor_value_info(name, 1, [rows, width]) for name in ("x", value)]
    return helper.make_model(helper.make_graph(nodes, "linear", ports[:1], ports[1:], weights))


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "AUTO:CPU", "OPENCL"])
def test_open_lengths_are_forecast_without_an_inference(device: str, core: Core) -> None:
    if device not in (*core.available_devices, "AUTO:CPU"):
        pytest.skip(f"{device} is not available")
    network = core.compile_model(linear(), device, UNCACHED)
    before = [network.memory_forecast({"x": [rows, 96]}) for rows in (1, 40, 700)]
    for rows, forecast in zip((1, 40, 700), before, strict=True):
        known = core.compile_model(linear(rows), device, UNCACHED).memory_forecast()
        assert (forecast.arena, forecast.inputs, forecast.outputs) == (known.arena, known.inputs, known.outputs)
        assert forecast.inputs == forecast.outputs == rows * 96 * 4
        assert forecast.weights >= 3 * 96 * 96 * 4
    for rows in (700, 3, 40, 1, 700):
        network({"x": np.ones((rows, 96), np.float32)})
    assert [network.memory_forecast({"x": [rows, 96]}).outputs for rows in (1, 40, 700)] == [
        each.outputs for each in before
    ]


def test_arena_of_open_lengths_is_the_one_of_the_inference(core: Core) -> None:
    network = core.compile_model(linear(), "CPU", UNCACHED)
    for rows in (5, 64, 65, 700):
        forecast = network.memory_forecast({"x": [rows, 96]})
        network({"x": np.ones((rows, 96), np.float32)})
        assert forecast.arena == network.get_metric("ARENA_BYTES")


def test_forecast_does_not_take_places_of_plans_in_use(core: Core) -> None:
    network: Any = core.compile_model(linear(), "CPU", {**UNCACHED, "PLAN_CACHE_SIZE": 1})
    network({"x": np.ones((8, 96), np.float32)})
    (plan,) = network.programs.plans()
    for rows in range(20, 30):
        network.memory_forecast({"x": [rows, 96]})
    assert network.programs.plans() == [plan]


def test_blob_has_the_forecast_of_its_network(core: Core, tmp_path: Path) -> None:
    network = core.compile_model(seeded_network("mlp", small=True).model, "CPU", UNCACHED)
    network.export_model(path := tmp_path / "network.blob")
    stored = core.import_model(path)
    made, imported = network.memory_forecast(), stored.memory_forecast()
    for name in ("arena", "scratch", "inputs", "outputs", "states"):
        assert getattr(imported, name) == getattr(made, name)
    assert stored.memory_statistics()["weights"] <= imported.weights <= path.stat().st_size


@pytest.mark.parametrize("precision", ["f32", "bf16", "int8"])
def test_states_are_what_a_request_keeps(precision: str, core: Core) -> None:
    model = core.read_model(DECODERS / "llama.dynamo23.onnx")
    MakeStateful().run_on_model(model)
    network: Any = core.compile_model(model, "CPU", {**UNCACHED, "KV_CACHE_PRECISION": precision})
    request = network.create_sync_request()
    past = 0
    for new in (5, 1, 1, 3):
        ids = np.ones((1, new), np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones((1, past + new), np.int64), "position_ids": ids}
        forecast = network.memory_forecast({name: value.shape for name, value in inputs.items()}, past)
        request.infer(inputs)
        past += new
        assert forecast.states == sum(value.nbytes for value in request.states._values.values())
    longer = {"input_ids": [1, 1], "attention_mask": [1, 1000], "position_ids": [1, 1]}
    assert network.memory_forecast(longer, 999).states == forecast.states // past * 1000


def test_opencl_allocates_what_it_forecasts(core: Core) -> None:
    if "OPENCL" not in core.available_devices:
        pytest.skip("OPENCL is not available")
    network: Any = core.compile_model(seeded_network("squeezenet", small=True).model, "OPENCL", UNCACHED)
    forecast = network.memory_forecast()
    (shape,) = [port.type.shape.get_shape() for port in network.inputs]
    context = network.pool.take_for((shape,))
    assert forecast.weights == sum(buffer.size for buffer in network.pool._weights._buffers.values())
    if network.device.memory_kind != "staged":
        assert forecast.arena == context._arena._memory.size
    else:
        assert forecast.arena == sum(each.size for each in set(context._arena._parts.values()))


def test_loops_share_the_memory_of_their_plans(core: Core) -> None:
    """The contexts of a loop's body run in turns, so that they have the memory of the largest."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [helper.make_tensor_value_info(*each) for each in (("trip", 7, []), ("going", 9, []), ("state", 1, [64, 96]))],
        [helper.make_tensor_value_info(*each) for each in (("goes_on", 9, []), ("next", 1, [64, 96]))],
        [onnx.numpy_helper.from_array(np.eye(96, dtype=np.float32), "w")],
    )
    count = onnx.numpy_helper.from_array(np.array(5, np.int64), "count")
    node = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    ports = [helper.make_tensor_value_info(name, 1, [64, 96]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "loop", ports[:1], ports[1:], [count]))
    network: Any = core.compile_model(model, "CPU", UNCACHED)
    forecast = network.memory_forecast()
    assert forecast.weights >= 96 * 96 * 4
    assert forecast.arena == max(plan.arena_bytes for plan in network.native_plans())
    assert forecast.unknown == ()


def test_streams_multiply_what_inferences_have(core: Core) -> None:
    one, four = (core.compile_model(linear(64), "CPU", {**UNCACHED, "NUM_STREAMS": n}) for n in (1, 4))
    first, forecast = one.memory_forecast(), four.memory_forecast()
    assert forecast.streams == 4
    assert forecast.weights == first.weights
    assert forecast.peak == forecast.weights + 4 * (
        forecast.arena + forecast.scratch + forecast.inputs + forecast.outputs
    )


def test_hetero_is_the_sum_of_its_parts(core: Core) -> None:
    model = core.read_model(linear(32))
    for number, node in enumerate(node for node in model.ordered_nodes() if node.op_type == "MatMul"):
        node.rt_info["affinity"] = "CPU" if number == 1 else "TEMPLATE"
    network = core.compile_model(model, "HETERO:TEMPLATE,CPU", UNCACHED)
    forecast = network.memory_forecast()
    assert len(forecast.parts) == len(network.parts()) == 3
    for name, part in network.parts().items():
        assert forecast.parts[name] == part.memory_forecast()
    assert forecast.weights == sum(part.weights for part in forecast.parts.values())
    assert forecast.arena == sum(part.arena for part in forecast.parts.values())
    assert forecast.inputs == forecast.outputs == 32 * 96 * 4
    assert forecast.peak > forecast.weights + forecast.arena


def test_hetero_names_the_subgraph_whose_lengths_are_open(core: Core) -> None:
    network = core.compile_model(linear(), "HETERO:CPU", UNCACHED)
    with pytest.raises(UnsupportedError, match=r"subgraph 0 on CPU .*known shapes"):
        network.memory_forecast({"x": [4, 96]})


@pytest.mark.parametrize("shape", [[-1, 96], "ab", None, [1.5, 96], [True, 96], 96])
def test_a_shape_that_is_none_is_the_callers_fault(core: Core, shape: Any) -> None:
    network = core.compile_model(linear(), "CPU", UNCACHED)
    for asked in (network.memory_forecast, network.prepare_shapes):
        with pytest.raises(InputError, match="input `x`: expected a sequence of lengths, each an int of 0 or more"):
            asked({"x": shape})
    with pytest.raises(InputError, match="expected the length of the variables, an int of 0 or more; got -1"):
        network.memory_forecast({"x": [1, 96]}, past=-1)


def test_batch_has_both_of_its_networks(core: Core) -> None:
    forecast = core.compile_model(linear(), "BATCH:CPU(8)", UNCACHED).memory_forecast({"x": [1, 96]})
    assert set(forecast.parts) == {"full", "rest"}
    assert forecast.parts["full"].inputs == 8 * 96 * 4
    assert forecast.weights == sum(part.weights for part in forecast.parts.values())


def test_values_that_only_an_inference_knows_are_named(core: Core) -> None:
    ports = helper.make_tensor_value_info("x", 1, [64]), helper.make_tensor_value_info("y", 7, [1, "count"])
    node = helper.make_node("NonZero", ["x"], ["y"], name="find")
    model = helper.make_model(helper.make_graph([node], "count", ports[:1], ports[1:]))
    for device in ("CPU", "TEMPLATE"):
        forecast = core.compile_model(model, device, UNCACHED).memory_forecast()
        assert any("find" in name for name in forecast.unknown), device


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({}, "`x` has no shape"), ({"x": [4, 95]}, "cannot have shape"), ({"z": [4]}, "no input 'z'")],
)
def test_wrong_shapes_are_named(shapes: dict[str, list[int]], message: str, core: Core) -> None:
    with pytest.raises(InputError, match=message):
        core.compile_model(linear(), "CPU", UNCACHED).memory_forecast(shapes)


def test_invalid_forecast_of_a_plugin_is_its_error(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    network: ExecutableNetwork = core.compile_model(linear(4), "TEMPLATE", UNCACHED)
    right = network.memory_forecast()
    for wrong, message in (
        ({"weights": 1}, "MemoryForecast"),
        (MemoryForecast.of(weights=-1, arena=0), "weights -1"),
        (MemoryForecast(right.weights, 0, right.arena, 0, 0, 0, 0, 1, 0), "peak 0"),
        (MemoryForecast.of(weights=1, arena=1, streams=0), "streams 0"),
    ):
        monkeypatch.setattr(type(network), "forecast_memory", lambda self, shapes, wrong=wrong: wrong)
        with pytest.raises(PluginContractError, match=message):
            network.memory_forecast()
