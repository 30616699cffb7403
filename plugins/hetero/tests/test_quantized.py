"""A quantized network divided between devices: codes cross the borders, and the answer stays the network's.

If this fails, codes are read with another sign or scale on the other side, or a network has to stay on one device.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.ir import Constant, Node, Parameter, f32

SCALE = 0.05
INPUT = np.random.default_rng(3).standard_normal((1, 4, 8, 8)).astype(np.float32)


def parameters(kind: Any) -> list[Constant]:
    return [Constant(np.float32(SCALE)), Constant(kind(100 if kind is np.uint8 else -20))]


def quantized(value: Node, kind: Any, name: str) -> Node:
    codes = ops.QuantizeLinear(value, *parameters(kind), friendly_name=f"{name}.codes")
    return ops.DequantizeLinear(codes, *parameters(kind), friendly_name=f"{name}.values")


def weights(*shape: int) -> Node:
    data = Constant(np.random.default_rng(len(shape)).integers(-127, 128, shape).astype(np.int8))
    return ops.DequantizeLinear(data, Constant(np.float32(0.004)), Constant(np.int8(0)))


def network() -> Model:
    """Convolutions, a residual, pooling and a product, with codes of u8 and i8 between them."""
    x = Parameter(f32, INPUT.shape, "x")
    first = quantized(x, np.uint8, "first")
    conv = ops.Relu(ops.Conv(first, weights(8, 4, 3, 3), pads=(1, 1, 1, 1), friendly_name="conv"), friendly_name="relu")
    second = quantized(conv, np.int8, "second")
    inner = quantized(ops.Conv(second, weights(8, 8, 1, 1), friendly_name="inner"), np.int8, "inner")
    third = quantized(ops.Add(inner, second, friendly_name="sum"), np.uint8, "third")
    pooled = ops.MaxPool(third, kernel_shape=(2, 2), strides=(2, 2), friendly_name="pool")
    flat = ops.Flatten(quantized(pooled, np.uint8, "pooled"), friendly_name="flat")
    product = ops.MatMul(flat, weights(128, 5), friendly_name="product")
    return Model([quantized(product, np.int8, "last")], [x])


BORDERS = ["first.codes", "second.codes", "inner.codes", "third.codes", "pool", "pooled.codes", "conv", "flat"]


def divided(border: str, devices: tuple[str, str]) -> Model:
    """The network with everything up to the node `border` on the first device."""
    model = network()
    nodes = [node for node in model.ordered_nodes() if node.op_type not in ("Parameter", "Constant", "Result")]
    before = {model.node(border)}
    for node in reversed(nodes):
        if node in before:
            before |= {value.node for value in node.input_values if value is not None}
    for node in nodes:
        node.rt_info["affinity"] = devices[node not in before]
    return model


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("devices", [("CPU", "TEMPLATE"), ("TEMPLATE", "CPU"), ("CPU", "OPENCL"), ("OPENCL", "CPU")])
def test_codes_cross_between_devices(border: str, devices: tuple[str, str]) -> None:
    core = Core()
    if not set(devices) <= set(core.available_devices):
        pytest.skip("there is no OpenCL device")
    (expected,) = core.compile_model(network(), "TEMPLATE")({"x": INPUT}).values()
    assert len(np.unique(expected)) > 2
    model, device = divided(border, devices), f"HETERO:{','.join(devices)}"
    placement = core.query_model(model, device).placement
    assert placement is not None
    assert {subgraph.device for subgraph in placement.subgraphs} == set(devices)
    compiled = core.compile_model(model, device)
    blob = io.BytesIO()
    compiled.export_model(blob)
    for each in (compiled, core.import_model(blob.getvalue(), device)):
        (got,) = each({"x": INPUT}).values()
        assert np.abs(got - expected).max() <= 1.01 * SCALE


@pytest.mark.parametrize("border", ["first.codes", "second.codes"])
def test_what_crosses_is_as_small_as_its_codes(border: str) -> None:
    """Quantization stays before the border, so a quarter of the bytes of f32 cross it."""
    placement = Core().query_model(divided(border, ("CPU", "TEMPLATE")), "HETERO:CPU,TEMPLATE").placement
    assert placement is not None
    (crossing,) = placement.crossings
    assert crossing.byte_size == {"first.codes": 256, "second.codes": 512}[border]


def test_each_part_is_computed_on_integers() -> None:
    """A convolution whose codes come from another device is also an integer product."""
    model = divided("second.codes", ("TEMPLATE", "CPU"))
    answer = Core().query_model(model, "HETERO:TEMPLATE,CPU")
    assert answer["inner"].precision == "i8"
    assert answer["product"].precision == "u8"
