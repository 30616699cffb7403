"""The networks that devices are compared on: valid, the same everywhere, and of values that show an error.

If a network saturates or vanishes, a device with a wrong layer passes on it; if its builder changes between two
builds, two engines are compared on different weights.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from engine.errors import ModelError
from engine.testing.networks import (
    NETWORKS,
    SeededNetwork,
    floating_point_operations,
    rounding_tolerance,
    seeded_network,
)
from engine.testing.networks.arithmetic import reduction_lengths

# Of masks, what hides a score.
_HIDDEN = -1e30


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def with_all_values(network: SeededNetwork) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    model.graph.output.extend(model.graph.value_info)
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_every_value_keeps_a_sane_scale(name: str) -> None:
    network = seeded_network(name, small=True)
    onnx.checker.check_model(network.model, full_check=True)
    values = run(with_all_values(network), dict(network.inputs))
    for key, value in values.items():
        assert value.size > 0
        if value.dtype == np.float32 and value.size > 8 and value.min() > _HIDDEN:
            assert np.isfinite(value).all()
            assert np.abs(value).max() < 60, key
            assert value.std() > 0.01 or not value.any(), key  # a mask that hides nothing is all zero


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_depend_on_the_inputs(name: str) -> None:
    network, other = seeded_network(name, small=True), seeded_network(name, small=True, seed=1)
    first, second = run(network.model, dict(network.inputs)), run(network.model, dict(other.inputs))
    for key, value in first.items():
        assert np.abs(value - second[key]).max() > 0.02 * np.abs(value).max(), key


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_seeds_give_equal_networks(name: str) -> None:
    first, second = seeded_network(name, small=True), seeded_network(name, small=True)
    assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
    assert all(np.array_equal(value, second.inputs[key]) for key, value in first.inputs.items())
    other = seeded_network(name, small=True, seed=1)
    assert first.model.SerializeToString() != other.model.SerializeToString()


# The parameters that the papers and the common implementations state, in millions.
PARAMETERS = {
    "resnet50": 25.6, "mobilenet_v2": 3.5, "efficientnet_b0": 5.3, "efficientnet_lite0": 4.7, "squeezenet": 1.24,
    "densenet121": 8.0, "convnext_t": 28.6,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_real_size_is_that_of_the_published_network(name: str) -> None:
    network = seeded_network(name)
    sizes = [int(np.prod(t.dims)) for t in network.model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert sum(sizes) / 1e6 == pytest.approx(PARAMETERS[name], rel=0.02)
    (output,) = run(network.model, dict(network.inputs)).values()
    assert output.shape == (1, 1000)
    assert 0.1 < output.std() < 20


# Multiply-adds that the papers and common implementations state, in billions.
MULTIPLY_ADDS = {
    "resnet50": 4.09,
    "mobilenet_v2": 0.30,
    "efficientnet_b0": 0.39,
    "squeezenet": 0.35,
    "densenet121": 2.83,
}


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_arithmetic_is_that_of_the_published_network(name: str) -> None:
    count = floating_point_operations(seeded_network(name).model)
    assert count / 2e9 == pytest.approx(MULTIPLY_ADDS[name], rel=0.03)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_arithmetic_and_a_tolerance_above_rounding(name: str) -> None:
    model = seeded_network(name, small=True).model
    assert floating_point_operations(model) > 0
    assert all(length >= 1 for length in reduction_lengths(model))
    assert 1e-6 < rounding_tolerance(model) < 2e-3


def test_a_window_larger_than_the_image_pools_it_whole() -> None:
    ceil = seeded_network("efficientnet_b0", small=True, ceil_pool=True)
    plain = seeded_network("efficientnet_b0", small=True)
    onnx.checker.check_model(ceil.model, full_check=True)
    (first,), (second,) = (run(n.model, dict(n.inputs)).values() for n in (ceil, plain))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"unknown network `resnet`.*mobilenet_v2.*resnet50"):
        seeded_network("resnet")
