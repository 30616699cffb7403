"""Rotations of halves by tables become one operator. If it fails, positions are ignored, or the wrong elements are
rotated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.passes.common.rotary_embedding_fusion import RotaryEmbeddingFusion

Apply = Callable[..., Counter[str]]
ROWS, WIDTH, HALF = 4, 6, 3
ANGLES = np.arange(ROWS * HALF, dtype=np.float32).reshape(1, 1, ROWS, HALF)


def ints(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))


def rotated(cosine: Node, sine: Node, parameters: Sequence[Parameter] = (), split: int = HALF) -> Model:
    x = Parameter(f32, [2, 3, ROWS, WIDTH], "x")
    upper = ops.Slice(x, ints(split), ints(WIDTH), ints(3), ints(1))
    lower = ops.Slice(x, ints(0), ints(split), ints(3), ints(1))
    turned = ops.Concat(ops.Neg(upper), lower, axis=-1)
    return Model([ops.Add(ops.Mul(x, cosine), ops.Mul(turned, sine))], [x, *parameters])


def constant(*halves: np.ndarray) -> Constant:
    return Constant(np.concatenate(halves, axis=-1))


def computed(make: Callable[[Parameter], Node], *shape: int) -> Model:
    angles = Parameter(f32, shape, "angles")
    table = make(angles)
    return rotated(ops.Cos(table), ops.Sin(table), [angles])


def doubled(value: Node, axis: int = -1) -> Node:
    return ops.Concat(value, value, axis=axis)


@pytest.mark.parametrize(
    "model",
    [
        rotated(constant(np.cos(ANGLES), np.cos(ANGLES)), constant(np.sin(ANGLES), np.sin(ANGLES))),
        computed(lambda angles: ops.Unsqueeze(doubled(angles), ints(1)), 1, ROWS, HALF),
        computed(lambda angles: ops.Reshape(doubled(angles), ints(2, 1, ROWS, WIDTH)), 2, ROWS, HALF),
        computed(lambda angles: ops.Mul(doubled(angles), Constant(np.float32(0.5))), 1, 1, ROWS, HALF),
    ],
    ids=["constants", "unsqueezed", "for each sample", "scaled"],
)
def test_tables_that_repeat_their_half_are_halved(model: Model, apply: Apply) -> None:
    operators = apply(model, RotaryEmbeddingFusion)
    assert operators["RotaryEmbedding"] == 1
    assert not operators["Neg"]


@pytest.mark.parametrize(
    "model",
    [
        rotated(constant(np.cos(ANGLES), np.cos(ANGLES)), constant(np.sin(ANGLES), np.cos(ANGLES))),
        rotated(constant(np.cos(ANGLES), np.sin(ANGLES)), constant(np.sin(ANGLES), np.sin(ANGLES))),
        computed(lambda angles: ops.Concat(angles, ops.Neg(angles), axis=-1), 1, 1, ROWS, HALF),
        computed(lambda angles: doubled(angles, axis=2), 1, 1, ROWS // 2, WIDTH),
        computed(lambda angles: ops.Reshape(doubled(angles), ints(1, 1, ROWS, WIDTH)), 1, ROWS // 2, WIDTH),
        computed(lambda angles: ops.Mul(doubled(angles), Constant(np.arange(6, dtype=np.float32))), 1, 1, ROWS, HALF),
        computed(lambda angles: doubled(angles), 1, 3, ROWS, HALF),
        rotated(constant(np.cos(ANGLES), np.cos(ANGLES)), constant(np.sin(ANGLES), np.sin(ANGLES)), split=2),
    ],
    ids=["sines", "cosines", "two values", "other axis", "other rows", "vector", "for each head", "unequal parts"],
)
def test_other_tables_are_multiplied_with_as_they_are(model: Model, apply: Apply) -> None:
    assert apply(model, RotaryEmbeddingFusion, modified=False)["Neg"] >= 1
