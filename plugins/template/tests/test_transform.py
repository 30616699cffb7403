"""The device's pipeline, as an example of how transformations are tested: a model in, the expected model out.

A pass of your own is tested with `engine.testing.passes.check_pass`, which looks at more than these do.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
from engine_template.transform import transform_network

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.passes import InitNodeInfo, check_equivalence, check_rt_info, compare_models
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion


def test_what_the_common_passes_recognise_is_one_operation() -> None:
    x = Parameter(f32, [2, 8], "x")
    gate = ops.Add(ops.Erf(ops.Div(x, Constant(float(np.sqrt(2))))), Constant(1.0))
    model = Model([ops.Mul(ops.Mul(x, Constant(0.5)), gate, friendly_name="gelu")], [x])
    InitNodeInfo().run_on_model(model)

    graph = transform_network(model)

    x = Parameter(f32, [2, 8], "x")
    expected = Model([ops.Gelu(x, friendly_name="gelu")], [x])
    assert compare_models(graph, expected, rt_info=False) == []
    check_rt_info(graph)
    check_equivalence(model, graph)


def test_what_is_trimmed_stays_as_it_is() -> None:
    x = Parameter(f32, [4, 8], "x")
    weights = [Constant(np.full((8, 8), i, np.float32)) for i in range(3)]
    model = Model([ops.Relu(ops.MatMul(x, w), friendly_name=f"head{i}") for i, w in enumerate(weights)], [x])
    assert QKVProjectionFusion().run_on_model(model.clone()), "there is something to join"
    assert compare_models(transform_network(model), model) == [], "and this device does not want it"


def test_the_users_model_is_left_alone() -> None:
    x = Parameter(f32, [4], "x")
    model = Model([ops.Identity(ops.Relu(x), friendly_name="out")], [x])
    before = model.to_text()
    graph = transform_network(model)
    assert [node.op_type for node in graph.ordered_nodes()] == ["Parameter", "Relu", "Result"]
    assert model.to_text() == before


def test_a_network_runs_the_transformed_model_unless_told_otherwise() -> None:
    x = Parameter(f32, [4], "x")
    model = Model([ops.Identity(ops.Relu(x), friendly_name="out")], [x])
    for config, expected in (({}, ["Relu"]), ({"TEMPLATE_TRANSFORMATIONS": False}, ["Relu", "Identity"])):
        network = Core().compile_model(model, "TEMPLATE", config)
        assert [operation.op_type for operation in network.program.operations] == expected  # type: ignore[attr-defined]


def test_an_inference_holds_only_what_later_operations_read() -> None:
    """Two values of a long chain of large ones are needed at a time, beside the result."""
    length, size = 16, 1 << 20
    x = Parameter(f32, [size // 4], "x")
    value: Node = x
    for _ in range(length):
        value = ops.Sin(value)
    request = Core().compile_model(Model([value], [x]), "TEMPLATE").create_infer_request()
    data = np.zeros(size // 4, np.float32)
    request.infer(data)
    tracemalloc.start()
    try:
        request.infer(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < length // 2 * size
