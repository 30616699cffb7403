"""Models that take long or have large tensors, made of operators that the device claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from engine.startup import dataclass
from engine.testing.behaviour.basic import BasicModel
from engine.testing.behaviour.cases import Array, Values, make_model, tensor

_CHAIN: Final = 24
_WIDTH: Final = 384
_CHANNELS: Final = 64
_SIDE: Final = 48
_LARGE_ROWS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class LongModel:
    """A chain of `_CHAIN` equal operators, each of about 0.1 to 0.2 GFLOP, with inputs and the answer."""

    model: onnx.ModelProto
    inputs: Values
    answer: Array


def find_long_model(is_supported: Callable[[onnx.ModelProto], bool]) -> LongModel | None:
    """A chain that a device supports: of MatMul, otherwise of Conv; None if it supports neither."""
    for long in (_products(), _convolutions()):
        if is_supported(long.model):
            return long
    return None


def _products() -> LongModel:
    # A permutation of columns: exact in any element type, and dense for the device. It is an input, since a device may
    # multiply constants in advance.
    order = np.roll(np.arange(_WIDTH), 7)
    weights = np.zeros((_WIDTH, _WIDTH), np.float32)
    weights[order, np.arange(_WIDTH)] = 1
    x = (np.arange(_WIDTH * _WIDTH, dtype=np.float32) % 97).reshape(_WIDTH, _WIDTH) / 8
    answer = x
    for _ in range(_CHAIN):
        answer = answer[:, order]
    shape = [_WIDTH, _WIDTH]
    nodes = _chain("MatMul")
    model = make_model(nodes, [tensor("x", shape), tensor("w", shape)], [tensor("y", shape)], name="long")
    return LongModel(model, {"x": x, "w": weights}, np.ascontiguousarray(answer))


def _convolutions() -> LongModel:
    order = np.roll(np.arange(_CHANNELS), 7)
    weights = np.zeros((_CHANNELS, _CHANNELS, 3, 3), np.float32)
    weights[np.arange(_CHANNELS), order, 1, 1] = 1
    shape = (1, _CHANNELS, _SIDE, _SIDE)
    x = (np.arange(np.prod(shape), dtype=np.float32) % 97).reshape(shape) / 8
    answer = x
    for _ in range(_CHAIN):
        answer = answer[:, order]
    nodes = _chain("Conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    model = make_model(nodes, [tensor("x", shape)], [tensor("y", shape)], {"w": weights}, name="long")
    return LongModel(model, {"x": x}, np.ascontiguousarray(answer))


def _chain(op_type: str, **attributes: Any) -> list[onnx.NodeProto]:
    names = ["x", *(f"v{index}" for index in range(1, _CHAIN)), "y"]
    return [
        helper.make_node(op_type, [names[index], "w"], [names[index + 1]], name=f"long_{index}", **attributes)
        for index in range(_CHAIN)
    ]


def enlarged(basic: BasicModel) -> BasicModel:
    """The basic model with tensors of about 1.5 MB."""
    shape = (_LARGE_ROWS, 3) if len(basic.shape) == 2 else (1, 2, 448, 448)
    return BasicModel(replace(basic.first, shape=shape), replace(basic.second, shape=shape))
