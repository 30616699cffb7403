"""`INFERENCE_PRECISION_HINT=f16`: networks of f32 whose weights and values are stored as f16.

If a case fails here, users who halve a network's memory get other answers than roundings explain, or NaN.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Parameter, Result, f32
from engine.ir.element_type import f16, i64
from engine.plugin_api import ExecutableNetwork, SupportLevel
from engine.testing.models import relative_error
from engine.testing.networks import NETWORKS, seeded_network, storage_tolerance
from engine.testing.values import values

UNIT = 2.0**-11
HINT: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f16"}
QUICK = ("mobilenet_v2", "unet", "bert_base", "lstm")
"""Of each kind one; the others take long to compile."""


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def exported(network: ExecutableNetwork) -> bytes:
    stream = BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def both(core: Core, model: Model, *inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """The answers of OPENCL in f16, and of CPU in f32."""
    (found,) = core.compile_model(model, "OPENCL", HINT)(list(inputs)).values()
    (expected,) = core.compile_model(model, "CPU")(list(inputs)).values()
    return found, expected


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NETWORKS])
def test_networks(core: Core, name: str) -> None:
    """Also exported and imported, without configuring the precision again."""
    made = seeded_network(name, small=True)
    assert not core.query_model(made.model, "OPENCL", HINT).at(SupportLevel.REFUSED)
    network = core.compile_model(made.model, "OPENCL", HINT)
    (first, *_) = found = list(network(made.inputs).values())
    assert first.dtype == np.float32
    expected = core.compile_model(made.model, "CPU")(made.inputs).values()
    for value, right in zip(found, expected, strict=True):
        assert relative_error(value, right) <= storage_tolerance(made.model, UNIT)
    for value, right in zip(found, core.import_model(exported(network))(made.inputs).values(), strict=True):
        np.testing.assert_array_equal(value, right)


def test_weights_and_values_take_half_the_memory(core: Core) -> None:
    made = seeded_network("mobilenet_v2", small=True)
    networks: list[Any] = [core.compile_model(made.model, "OPENCL", options) for options in ({}, HINT)]
    full, half = (
        sum(n.byte_size for n in network.graph.ordered_nodes() if isinstance(n, Constant)) for network in networks
    )
    assert half < 0.55 * full


def test_lengths_that_are_unknown(core: Core) -> None:
    x = Parameter(f32, ["N", 24], "x")
    model = Model([Result(ops.Relu(ops.MatMul(x, Constant(values(24, 30)))))], [x])
    network = core.compile_model(model, "OPENCL", HINT)
    for rows in (1, 7, 0):
        feed = values(rows, 24)
        (found,), (expected,) = network([feed]).values(), core.compile_model(model, "CPU")([feed]).values()
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=4 * UNIT * np.abs(expected).max(initial=0))


# -- what f16 cannot hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("hidden", [-1e9, -3.4e38, -65504.0])
def test_masks(core: Core, hidden: float, is_constant: bool) -> None:
    """Including a fully masked row."""
    x = Parameter(f32, [2, 3, 16], "x")
    mask = np.where(np.arange(16) < np.array([[5], [16], [0]]), 0, hidden).astype(np.float32)
    given = Parameter(f32, mask.shape, "mask")
    added = ops.Add(ops.MatMul(x, Constant(values(16, 16))), Constant(mask) if is_constant else given)
    model = Model([Result(ops.Softmax(added, axis=-1))], [x] if is_constant else [x, given])
    found, expected = both(core, model, values(2, 3, 16), *([] if is_constant else [mask]))
    np.testing.assert_allclose(found[:, :2], expected[:, :2], rtol=0, atol=16 * UNIT)
    assert np.isfinite(found).all()


def test_a_norm_that_no_pass_knows(core: Core) -> None:
    """Its squares would be infinite in f16."""
    x = Parameter(f32, [5, 40], "x")
    value = ops.MatMul(x, Constant(values(40, 32)))
    mean = ops.ReduceMean(ops.Pow(value, Constant(np.float32(2))), Constant(np.array([-1])))
    normed = ops.Div(value, ops.Add(Constant(np.float32(0.5)), ops.Sqrt(ops.Add(mean, Constant(np.float32(1e-6))))))
    model = Model([Result(ops.MatMul(normed, Constant(values(32, 8))))], [x])
    found, expected = both(core, model, 1000 * values(5, 40))
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * UNIT * np.abs(expected).max())


def test_positions_and_indices(core: Core) -> None:
    """Beyond 2048, f16 cannot represent odd numbers."""
    ids = Parameter(i64, [1, 6], "ids")
    angle = ops.Mul(ops.Unsqueeze(ops.Cast(ids, to=f32.onnx), Constant(np.array([2]))), Constant(values(8)))
    turned = ops.MatMul(ops.Sin(angle), Constant(values(8, 8)))
    back = ops.Cast(ops.Mul(ops.Cast(ids, to=f32.onnx), Constant(np.float32(0.5))), to=i64.onnx)
    model = Model([Result(turned), Result(back)], [ids])
    feed = np.array([[1, 2049, 4097, 8191, 9999, 10001]])
    found, expected = (
        core.compile_model(model, device, options)([feed]) for device, options in (("OPENCL", HINT), ("CPU", {}))
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=8 * UNIT * np.abs(expected[0]).max())
    np.testing.assert_array_equal(found[1], expected[1])


def test_large_inputs_become_the_largest_number(core: Core) -> None:
    """Not infinity, since differences of infinities are NaN."""
    x = Parameter(f32, [1, 2], "x")
    model = Model([Result(ops.MatMul(x, Constant(np.array([[1.0], [-1.0]], np.float32))))], [x])
    found, _ = both(core, model, np.array([[1e6, 1e7]], np.float32))
    np.testing.assert_array_equal(found, [[0.0]])


# -- blobs ---------------------------------------------------------------------------------------------------------


def test_a_blob_keeps_its_precision(core: Core) -> None:
    x = Parameter(f32, [1, 24], "x")
    model = Model([Result(ops.MatMul(x, Constant(values(24, 30))))], [x])
    blobs = [exported(core.compile_model(model, "OPENCL", options)) for options in (HINT, {})]
    for blob, made, asked in zip(blobs, ("f16", "f32"), ("f32", "f16"), strict=True):
        with pytest.raises(UnsupportedError, match=rf"compiled for {made}, but INFERENCE_PRECISION_HINT is {asked}"):
            core.import_model(blob, "OPENCL", {"INFERENCE_PRECISION_HINT": asked})
        again: Any = core.import_model(blob, "OPENCL")
        types = {n.output(0).element_type for n in again.graph.ordered_nodes() if n.op_type == "MatMul"}
        assert types == {f16 if made == "f16" else f32}
