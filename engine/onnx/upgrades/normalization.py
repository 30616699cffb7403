"""Upgrades of BatchNormalization, GroupNormalization and Dropout: training modes, layouts of statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import ops
from engine.ir import Constant, Dimension, Output, as_dimension, boolean, f64, undefined
from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.emit import (
    cast,
    emit,
    i64_scalar,
    i64s,
    rank_as_value,
    rank_of,
    reshape_like,
    scalar_like,
)


@upgrade("BatchNormalization", since=6, to=7)
def _test_mode(call: OldCall) -> Upgraded:
    """`is_test` chose the mode; from 7 on it follows from the number of outputs."""
    spatial = call.at(7, drop=["is_test"])
    if call.integer("is_test", 0) == 0:
        return _training(spatial)
    if call.num_outputs == 1:
        return spatial
    if call.num_outputs > 3:
        call.unsupported("saved_mean and saved_var do not exist in test mode", "remove these outputs")
    # In test mode, running statistics do not change.
    (y,) = _normalized(spatial.replace(num_outputs=1))
    return [y, call.input(3), call.input(4)][: call.num_outputs]


@upgrade("BatchNormalization", since=7, to=9)
def _per_activation(call: OldCall) -> Upgraded:
    """`spatial=0` kept statistics for every activation instead of every channel."""
    if call.integer("spatial", 1) or rank_of(call.input(0)) == 2:
        return call.at(9, drop=["spatial"])
    return _training(call) if call.num_outputs > 1 else _normalized(call)


@upgrade("BatchNormalization", since=9, to=14)
def _training_outputs(call: OldCall) -> Upgraded:
    """More than one output meant training; from 14 on an attribute selects it."""
    return _training(call) if call.num_outputs > 1 else call.at(14)


def _normalized(call: OldCall) -> list[Output]:
    """The only output in inference mode, for a call of version 7 or 9."""
    x, *statistics = _channelwise(call)
    y = emit("BatchNormalization", x, *statistics, epsilon=call.number("epsilon", 1e-5))
    return [reshape_like(y, call.input(0)) if x != call.input(0) else y]


def _training(call: OldCall) -> list[Output]:
    """The outputs in training mode, for a call of version 7 or 9: X is normalized by batch statistics.

    saved_var is the value that contemporary runtimes saved to speed up gradients: 1 / sqrt(variance + epsilon).
    """
    x, *statistics = _channelwise(call)
    epsilon = call.number("epsilon", 1e-5)
    attributes = {"epsilon": epsilon, "momentum": call.number("momentum", 0.9), "training_mode": 1}
    node = ops.create("BatchNormalization", [x, *statistics], attributes, num_outputs=3)
    outputs = list(node.outputs)
    if call.num_outputs > 3:
        axes = _all_but_channels(x)
        mean = emit("ReduceMean", x, axes, keepdims=1)
        variance = emit("ReduceMean", _squared(emit("Sub", x, mean)), axes, keepdims=0)
        deviation = emit("Sqrt", emit("Add", variance, scalar_like(epsilon, x)))
        outputs += [emit("ReduceMean", x, axes, keepdims=0), emit("Reciprocal", deviation)]
    if x == call.input(0):
        return outputs[: call.num_outputs]
    shapes = [call.input(0), *[call.input(3)] * 4]
    return [reshape_like(y, like) for y, like in zip(outputs[: call.num_outputs], shapes, strict=False)]


def _channelwise(call: OldCall) -> list[Output]:
    """The inputs with one statistic per channel: without `spatial` every activation becomes a channel."""
    inputs = [call.input(index) for index in range(5)]
    if call.integer("spatial", 1):
        return inputs
    x, *statistics = inputs
    return [emit("Flatten", x, axis=1), *[emit("Reshape", value, i64s([-1])) for value in statistics]]


def _all_but_channels(x: Output) -> Output:
    rank = rank_of(x)
    if rank is not None:
        return i64s([0, *range(2, rank)])
    spatial = emit("Range", i64_scalar(2), rank_as_value(x), i64_scalar(1))
    return emit("Concat", i64s([0]), spatial, axis=0)


def _squared(value: Output) -> Output:
    return emit("Mul", value, value)


@upgrade("GroupNormalization", since=18, to=21)
def _per_channel_scale(call: OldCall) -> OldCall:
    """Scale and bias had one value per group; from 21 on they have one per channel.

    Statistics had X's precision; from 21 on they are f32 by default, which must not reduce the precision of f64.
    """
    x, groups = call.input(0), call.integer("num_groups")
    channels = x.shape[1] if (rank_of(x) or 0) > 1 else as_dimension(None)
    if groups < 1 or (channels.is_static and channels.get_length() % groups):
        call.invalid(f"num_groups is {groups}, which does not divide the {channels} channels of X")
    scale, bias = [_repeated(x, channels, call.input(index), groups) for index in (1, 2)]
    precision: dict[str, Any] = {"stash_type": f64.onnx} if x.element_type is f64 else {}
    return call.at(21, inputs=[x, scale, bias], **precision)


def _repeated(x: Output, channels: Dimension, value: Output, groups: int) -> Output:
    """`value`, with one element per group, repeated to one element per channel of x."""
    if channels.is_static:
        if channels == groups:
            return value
        shape = i64s([groups, channels.get_length() // groups])
    else:
        per_group = emit("Div", emit("Shape", x, start=1, end=2), i64s([groups]))
        shape = emit("Concat", i64s([groups]), per_group, axis=0)
    return emit("Reshape", emit("Expand", emit("Unsqueeze", value, i64s([1])), shape), i64s([-1]))


@upgrade("Dropout", since=6, to=7)
def _dropout_mode(call: OldCall) -> Upgraded:
    """`is_test` chose the mode; version 7 describes inference."""
    if call.integer("is_test", 0):
        return call.at(7, drop=["is_test"])
    x = call.input(0)
    ratio = scalar_like(call.number("ratio", 0.5), x)
    training = Constant(True, boolean).output(0)
    node = ops.create("Dropout", [x, ratio, training], {}, num_outputs=call.num_outputs)
    return _with_typed_mask(node.outputs, x)


@upgrade("Dropout", since=7, to=10)
def _dropout_mask(call: OldCall) -> Upgraded:
    """The mask had the type of the data; from 10 on it is bool."""
    if call.num_outputs == 1:
        return call.at(10)
    x = call.input(0)
    return _with_typed_mask(ops.create("Dropout", [x], {}, num_outputs=2).outputs, x)


@upgrade("Dropout", since=10, to=12)
def _dropout_ratio(call: OldCall) -> OldCall:
    """In inference mode the ratio has no effect."""
    return call.at(12, drop=["ratio"])


def _with_typed_mask(outputs: Sequence[Output], x: Output) -> list[Output]:
    known = x.element_type is not undefined
    return [
        outputs[0],
        *[cast(mask, x.element_type) if known else emit("CastLike", mask, x) for mask in outputs[1:]],
    ]
