"""Convolutions 1x1, depthwise, 1x1 as one step: what is joined, what is not, and the results, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest
from engine_cpu.network import CpuNetwork
from engine_cpu.stored_network import StoredNetwork
from onnx import helper, numpy_helper

from engine.core import Core
from engine.native import cpu_features, isas_within
from engine.testing.networks import seeded_network
from engine.testing.values import values as random_values

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, np.dtype[Any]]
ISAS = isas_within(cpu_features().isa)
STRIPS = "conv_strips_f32"
TOLERANCE = 500 * float(np.finfo(np.float32).eps)
"""Three sums of fewer than 200 products of numbers below one, whose weights keep the magnitude."""


@dataclass(frozen=True)
class Block:
    """An inverted residual block: without `inputs`, it starts with the depthwise convolution; without `outputs`, it
    ends with that."""

    inputs: int = 16
    channels: int = 96
    outputs: int = 24
    size: tuple[int, int] = (60, 56)
    batch: int = 1
    kernel: int = 3
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    residual: bool = False
    activation: str = "Relu"

    def nodes(self) -> list[onnx.NodeProto]:
        made, x = [], "x"
        window = {"group": self.channels, "strides": [self.stride] * 2, "pads": self.pads}
        if self.inputs:
            made.append(helper.make_node("Conv", [x, "we", "be"], ["e"]))
            made += [helper.make_node(op, ["e"], ["ea"]) for op in self.activations()]
            x = made[-1].output[0]
        made.append(helper.make_node("Conv", [x, "wf", "bf"], ["f"], **window))
        made += [helper.make_node(op, ["f"], ["fa"]) for op in self.activations()]
        if self.outputs:
            made.append(helper.make_node("Conv", [made[-1].output[0], "wp", "bp"], ["p"]))
        if self.residual:
            made.append(helper.make_node("Add", ["x", made[-1].output[0]], ["s"]))
        # The output is not a convolution's, as in most networks.
        return [*made, helper.make_node("Sin", [made[-1].output[0]], ["y"])]

    def activations(self) -> list[str]:
        return [self.activation] if self.activation else []

    def x(self) -> Array:
        return numbers("x", self.batch, self.inputs or self.channels, *self.size)

    def constants(self) -> dict[str, Array]:
        weights = {"wf": numbers("wf", self.channels, 1, self.kernel, self.kernel), "bf": numbers("bf", self.channels)}
        if self.inputs:
            weights |= {"we": numbers("we", self.channels, self.inputs, 1, 1), "be": numbers("be", self.channels)}
        if self.outputs:
            weights |= {"wp": numbers("wp", self.outputs, self.channels, 1, 1), "bp": numbers("bp", self.outputs)}
        return {name: array / np.float32(array[0].size ** 0.5) for name, array in weights.items()}


def numbers(name: str, *shape: int) -> Array:
    return random_values(*shape, seed=name, is_uniform=True)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Sequence[str] = ("y",),
    dynamic: bool = False,
) -> onnx.ModelProto:
    float32 = onnx.TensorProto.FLOAT
    given = [
        helper.make_tensor_value_info(
            name, float32, [n if i == 1 or not dynamic else None for i, n in enumerate(a.shape)]
        )
        for name, a in inputs.items()
    ]
    made = [helper.make_tensor_value_info(name, float32, None) for name in outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def compiled(model: onnx.ModelProto, threads: int = 1, **config: object) -> CpuNetwork:
    given = {"ALLOW_REFERENCE": False, "INFERENCE_NUM_THREADS": threads, **config}
    network = Core().compile_model(model, "CPU", given)
    assert isinstance(network, CpuNetwork)
    return network


def kernels(network: CpuNetwork | StoredNetwork) -> list[str]:
    return [step.kernel for plan in network.native_plans() for step in plan.steps]


def check(network: CpuNetwork, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> None:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = network(dict(inputs))
    for output, expected in zip(session.get_outputs(), session.run(None, dict(inputs)), strict=True):
        np.testing.assert_allclose(results[output.name], expected, rtol=TOLERANCE, atol=TOLERANCE)


BLOCKS = {
    "three": Block(),
    "three strided": Block(stride=2, kernel=5, pads=(1, 1, 2, 2)),
    "residual": Block(outputs=16, residual=True),
    "without activation": Block(activation=""),
    "sigmoid": Block(activation="Sigmoid"),
    "channel tails": Block(inputs=17, channels=90, outputs=33),
    "two images": Block(batch=2, size=(30, 56), outputs=16, residual=True),
    "ends with depthwise": Block(outputs=0),
    "ends with a strided depthwise": Block(outputs=0, stride=2),
    "starts with depthwise": Block(inputs=0, outputs=100),
    "depthwise with residual": Block(inputs=96, outputs=0, residual=True),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_one_step(name: str, threads: int) -> None:
    block = BLOCKS[name]
    model = model_of(block.nodes(), {"x": block.x()}, block.constants())
    network = compiled(model, threads)
    assert sorted(kernels(network)) == [STRIPS, "elementwise", "from_blocked_f32", "to_blocked_f32"]
    check(network, model, {"x": block.x()})


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", isa)
    block = BLOCKS["residual"]
    model = model_of(block.nodes(), {"x": block.x()}, block.constants())
    network = compiled(model)
    assert STRIPS in kernels(network)
    check(network, model, {"x": block.x()})


def test_each_convolution_is_in_one_chain() -> None:
    """Depthwise separable convolutions in a row: a 1x1 convolution could belong to either of its neighbours."""
    first, second = Block(inputs=0, outputs=96), Block(inputs=0, outputs=96)
    renamed = {"x": "p", **{name: f"{name}2" for name in ("f", "fa", "p", "wf", "bf", "wp", "bp")}}
    nodes = first.nodes()[:-1]
    for node in second.nodes():
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        nodes.append(node)
    constants = first.constants() | {f"{name}2": array for name, array in second.constants().items()}
    model = model_of(nodes, {"x": first.x()}, constants)
    network = compiled(model)
    assert kernels(network).count(STRIPS) == 2
    assert not {"conv_blocked_f32", "depthwise_f32"} & {*kernels(network)}
    check(network, model, {"x": first.x()})


@pytest.mark.parametrize(
    ("block", "threads"),
    [
        (Block(size=(28, 28)), 1),  # small maps
        (Block(inputs=400, channels=400, size=(30, 30)), 1),  # large weights
        (Block(size=(16, 1000)), 1),  # long rows
        (Block(size=(26, 200)), 2),  # few rows for each thread
    ],
    ids=["small", "weights", "wide", "few rows"],
)
def test_chains_that_would_not_be_faster_remain_separate(block: Block, threads: int) -> None:
    model = model_of(block.nodes(), {"x": block.x()}, block.constants())
    network = compiled(model, threads)
    assert STRIPS not in kernels(network)
    check(network, model, {"x": block.x()})


@pytest.mark.parametrize("read", ["ea", "fa"])
def test_a_map_that_is_read_again_is_computed(read: str) -> None:
    """The remaining two convolutions are joined, if the map between them is read only once."""
    block = Block(stride=1)
    nodes = [*block.nodes(), helper.make_node("Sin", [read], ["again"])]
    model = model_of(nodes, {"x": block.x()}, block.constants(), ("y", "again"))
    network = compiled(model)
    assert kernels(network).count(STRIPS) == 1
    assert kernels(network).count("conv_blocked_f32") == 1
    check(network, model, {"x": block.x()})


@pytest.mark.parametrize("read", ["ea", "fa"])
def test_a_map_that_is_an_output_is_computed(read: str) -> None:
    block = Block()
    model = model_of(block.nodes(), {"x": block.x()}, block.constants(), ("y", read))
    network = compiled(model)
    assert "conv_blocked_f32" in kernels(network)
    check(network, model, {"x": block.x()})


def test_a_residual_between_convolutions_remains() -> None:
    """Only the last convolution of a chain can add something."""
    block = Block(inputs=96)
    nodes = block.nodes()
    (at,) = (i for i, node in enumerate(nodes) if node.output[0] == "ea")
    nodes[at : at + 1] = [
        helper.make_node("Add", ["e", "x"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["ea"]),
    ]
    model = model_of(nodes, {"x": block.x()}, block.constants())
    network = compiled(model)
    assert kernels(network).count(STRIPS) == 1
    assert "conv_blocked_f32" in kernels(network)
    check(network, model, {"x": block.x()})


def test_weights_that_are_computed_are_read_by_separate_steps() -> None:
    block = Block()
    constants = block.constants()
    inputs = {"x": block.x(), "we": constants.pop("we"), "wp": constants.pop("wp")}
    model = model_of(block.nodes(), inputs, constants)
    network = compiled(model)
    assert STRIPS not in kernels(network)
    check(network, model, inputs)


@pytest.mark.skipif(
    "BF16" not in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU computes in f32"
)
def test_networks_in_bf16_run_separate_steps() -> None:
    block = Block()
    model = model_of(block.nodes(), {"x": block.x()}, block.constants())
    assert STRIPS not in kernels(compiled(model, INFERENCE_PRECISION_HINT="bf16"))


def test_lengths_decide_at_run_time() -> None:
    block = Block(residual=True, outputs=16)
    model = model_of(block.nodes(), {"x": block.x()}, block.constants(), dynamic=True)
    for size, is_one_step in (((60, 56), True), ((14, 14), False), ((64, 70), True), ((1, 1), False)):
        network = compiled(model)
        x = numbers("x", 1, block.inputs, *size)
        check(network, model, {"x": x})
        assert (STRIPS in kernels(network)) == is_one_step


def test_an_imported_block_gives_the_very_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    block = BLOCKS["residual"]
    network = compiled(model_of(block.nodes(), {"x": block.x()}, block.constants()))
    expected = network({"x": block.x()})["y"]
    stream = BytesIO()
    network.export_model(stream)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("an import packs nothing")

    monkeypatch.setattr("engine_cpu.lowering.conv_operands.Packing", fail)
    again = Core().import_model(stream.getvalue(), "CPU")
    assert isinstance(again, StoredNetwork)
    assert STRIPS in kernels(again)
    np.testing.assert_array_equal(again({"x": block.x()})["y"], expected)


def test_a_profile_names_the_last_convolution() -> None:
    block = Block()
    network = compiled(model_of(block.nodes(), {"x": block.x()}, block.constants()), PERF_COUNT=True)
    request = network.create_infer_request()
    request.infer({"x": block.x()})
    (last,) = (node for node in network.graph.ordered_nodes() if node.op_type == "Sin")
    ran = [node.name for node in request.profiling_info.nodes if node.op_type in ("Conv", "FusedConv")]
    assert ran == [last.input_value(0).node.friendly_name]


def test_mobilenet_needs_less_memory() -> None:
    """The largest maps, which are those between the convolutions of the first blocks, are never in memory."""
    made = seeded_network("mobilenet_v2")
    network = compiled(made.model)
    assert kernels(network).count(STRIPS) == 4
    assert network.get_property("ARENA_BYTES") < 4 * 96 * 112 * 112
