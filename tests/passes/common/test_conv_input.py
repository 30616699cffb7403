"""Operations on channels before a convolution are folded into its weights, as far as zeros of its pads and rounding
permit.

If one of these fails, images that a model prepares itself give other results than those that its application prepared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Output, Parameter, f16, f32, f64, u8
from engine.onnx import model_to_proto
from engine.ops import evaluate_model
from engine.passes.common.conv_input_fusion import ConvInputFusion

Apply = Callable[..., Counter[str]]
Build = Callable[[Any], Any]
RNG = np.random.default_rng(11)
MEAN, SCALE = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]


def channels(*values: float, dtype: Any = np.float32) -> Constant:
    return Constant(np.array(values, dtype).reshape(-1, 1, 1))


def normalized(x: Any) -> Node:
    return ops.Div(ops.Sub(x, channels(*MEAN)), channels(*SCALE))


def reversed_channels(x: Any) -> Node:
    return ops.Gather(x, Constant([2, 1, 0]), axis=1)


def of_bytes(x: Any) -> Node:
    return ops.Cast(x, to=f32.onnx)


def model_of(build: Build, *, element: Any = f32, count: int = 3, pads: int = 0, bias: bool = True) -> Model:
    """A convolution of what `build` makes of `x`."""
    x = Parameter(element, [2, count, 6, 7], "x")
    value = build(x)
    value = value if isinstance(value, Output) else value.output(0)
    dtype = value.element_type.numpy
    weights = Constant(RNG.standard_normal((4, value.shape[1].get_length(), 3, 3)).astype(dtype))
    shifts = [Constant(RNG.standard_normal(4).astype(dtype))] if bias else []
    return Model([ops.Conv(value, weights, *shifts, pads=[pads] * 4)], [x])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("build", "pads", "left"),
    [
        (lambda x: normalized(of_bytes(x)), 0, {"Cast": 1}),
        (lambda x: normalized(of_bytes(x)), 1, {"Cast": 1, "Add": 1}),
        (lambda x: normalized(reversed_channels(of_bytes(x))), 0, {"Cast": 1}),
        (lambda x: normalized(reversed_channels(of_bytes(x))), 1, {"Cast": 1, "Add": 1}),
        (lambda x: normalized(of_bytes(reversed_channels(x))), 1, {"Cast": 1, "Add": 1}),
        (lambda x: reversed_channels(normalized(of_bytes(x))), 1, {"Cast": 1, "Add": 1}),
        (lambda x: ops.Mul(channels(2, 3, 4), of_bytes(x)), 1, {"Cast": 1}),
        (lambda x: ops.Sub(Constant(255.0), of_bytes(x)), 0, {"Cast": 1}),
        (lambda x: ops.Sub(Constant(255.0), of_bytes(x)), 1, {"Cast": 1, "Add": 1}),
        (lambda x: ops.Add(Constant(1.0), ops.Mul(of_bytes(x), Constant(0.5))), 0, {"Cast": 1}),
        (lambda x: ops.Gather(of_bytes(x), Constant([-1, 0, 1, 1, 0]), axis=-3), 1, {"Cast": 1}),
        (lambda x: ops.Clip(of_bytes(x), Constant(0.0), Constant(9.0)), 0, None),
        (
            lambda x: normalized(
                ops.Resize(of_bytes(reversed_channels(x)), None, None, Constant([9, 5]), axes=[2, 3], mode="linear")
            ),
            0,
            {"Cast": 1, "Resize": 1},
        ),
        (
            lambda x: normalized(ops.Pad(of_bytes(x), Constant([1, 1]), Constant(114.0), Constant([2]))),
            0,
            {"Pad": 1, "Cast": 1},
        ),
        (
            lambda x: ops.Pad(of_bytes(reversed_channels(x)), Constant([1, 1]), Constant(114.0), Constant([2])),
            1,
            {"Pad": 1, "Cast": 1},
        ),
        (lambda x: ops.Pad(reversed_channels(of_bytes(x)), Constant([1, 1]), None, Constant([1])), 1, None),
        (lambda x: ops.Pad(reversed_channels(of_bytes(x)), Constant([0, 1, 0, 0] * 2)), 1, None),
    ],
)  # fmt: skip
def test_bytes_of_images(build: Build, pads: int, left: Any, bias: bool, apply: Apply) -> None:
    model = model_of(build, element=u8, pads=pads, bias=bias)
    inputs = {"x": RNG.integers(0, 256, (2, 3, 6, 7), dtype=np.uint8)}
    found = apply(model, ConvInputFusion, inputs=inputs, modified=left is not None)
    assert left is None or found == {"Conv": 1, **left}


def test_the_error_is_that_of_sums_of_bytes() -> None:
    """The bound of the module: sums of 27 products of |W'| (|x| + |b / a|), and the rounding of weights and bias."""
    model = model_of(lambda x: normalized(of_bytes(x)), element=u8, bias=False)
    x = RNG.integers(0, 256, (2, 3, 6, 7), dtype=np.uint8)
    conv = model.outputs[0].node
    weights = conv.input_value(1).node.data.astype(np.float64)  # type: ignore[union-attr]
    mean, scale = (np.array(values, np.float32).astype(np.float64)[:, None, None] for values in (MEAN, SCALE))
    windows = np.lib.stride_tricks.sliding_window_view((x - mean) / scale, (3, 3), (2, 3))
    exact = np.einsum("nchwij,mcij->nmhw", windows, weights)
    assert ConvInputFusion().run_on_model(model)
    session = onnxruntime.InferenceSession(model_to_proto(model).SerializeToString())
    terms = (np.abs(weights) / scale).sum((2, 3)) @ (255 + np.array(MEAN))
    bound = np.finfo(np.float32).eps * (27 + 2) * terms[None, :, None, None]
    for (values,) in (evaluate_model(model, [x]), session.run(None, {"x": x})):
        assert np.all(np.abs(values - exact) <= bound)


@pytest.mark.parametrize("pads", [0, 1])
def test_values_without_a_bound_keep_their_sum(pads: int, apply: Apply) -> None:
    """x may be 1e6 and a little: then the sum of x has lost what is a little."""
    assert apply(model_of(normalized, pads=pads), ConvInputFusion) == {"Conv": 1, "Add": 1}
    alone = model_of(lambda x: ops.Sub(x, channels(*MEAN)), pads=pads)
    assert apply(alone, ConvInputFusion, modified=False) == {"Conv": 1, "Sub": 1}
    far = model_of(lambda x: ops.Sub(of_bytes(x), Constant(1e6)), element=u8)
    assert apply(far, ConvInputFusion, modified=False)["Sub"] == 1
    bounded = model_of(lambda x: ops.Sub(ops.Clip(x, Constant(0.0), Constant(1.0)), Constant(0.5)), pads=0)
    assert apply(bounded, ConvInputFusion) == {"Conv": 1, "Clip": 1}


def test_repeated_channels_with_several_sums(apply: Apply) -> None:
    """Grey as three colours, each with a mean: without pads, one filter; with pads, the sums stay."""
    repeated = lambda x: normalized(ops.Gather(of_bytes(x), Constant([0, 0, 0]), axis=1))  # noqa: E731
    inputs = {"x": RNG.integers(0, 256, (2, 1, 6, 7), dtype=np.uint8)}
    model = model_of(repeated, element=u8, count=1)
    assert apply(model, ConvInputFusion, inputs=inputs) == {"Conv": 1, "Cast": 1}
    assert model.outputs[0].node.input_value(1).shape == (4, 1, 3, 3)
    padded = apply(model_of(repeated, element=u8, count=1, pads=1), ConvInputFusion, inputs=inputs)
    assert padded == {"Conv": 1, "Cast": 1, "Gather": 1, "Add": 1}


def test_double_precision(apply: Apply) -> None:
    wide = lambda x: ops.Div(ops.Cast(x, to=f64.onnx), channels(*SCALE, dtype=np.float64))  # noqa: E731
    assert apply(model_of(wide, pads=1), ConvInputFusion) == {"Conv": 1, "Cast": 1}


def test_what_others_read_stays(apply: Apply) -> None:
    model = model_of(normalized)
    model.add_result(model.outputs[0].node.input_value(0), "prepared")
    assert apply(model, ConvInputFusion, modified=False) == {"Conv": 1, "Sub": 1, "Div": 1}


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.Div(channels(*SCALE), x),
        lambda x: ops.Div(x, channels(1, 0, 1)),
        lambda x: ops.Mul(x, channels(1, 1e-30, 1)),
        lambda x: ops.Mul(x, channels(1, np.inf, 1)),
        lambda x: ops.Add(ops.Div(x, channels(1, 0, 1)), channels(1, 2, 3)),
        lambda x: ops.Mul(x, Constant(np.ones((6, 1), np.float32))),
        lambda x: ops.Mul(x, Constant(np.ones((2, 1, 1, 1), np.float32))),
        lambda x: ops.Gather(x, Constant([2, 1, 0]), axis=2),
        lambda x: ops.Div(ops.Cast(x, to=f16.onnx), channels(*SCALE, dtype=np.float16)),
    ],
)
def test_what_is_not_of_channels_or_not_finite_stays(build: Build) -> None:
    model = model_of(build)
    before = str(model)
    assert not ConvInputFusion().run_on_model(model)
    assert str(model) == before


def test_groups_stay(apply: Apply) -> None:
    x = Parameter(f32, [1, 4, 6, 6], "x")
    conv = ops.Conv(ops.Mul(x, Constant(2.0)), Constant(np.ones((4, 1, 3, 3), np.float32)), group=4)
    assert apply(Model([conv], [x]), ConvInputFusion, modified=False) == {"Conv": 1, "Mul": 1}
