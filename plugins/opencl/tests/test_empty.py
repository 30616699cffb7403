"""Results that would be made of elements that do not exist.

If a case fails here, a user reads memory that nobody wrote: numbers of another inference, perhaps of another user.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import EngineError
from engine.ir import Constant, Model, Node, Parameter, Result, f32

GRID = Constant(np.zeros((1, 2, 2, 2), np.float32))
CASES: dict[str, tuple[tuple[int, ...], str, list[Any], dict[str, Any]]] = {
    "largest": ((2, 0), "ArgMax", [], {"axis": 1}),
    "edge": ((2, 0), "Pad", [Constant(np.array([0, 1, 0, 1]))], {"mode": "edge"}),
    "mirrored": ((2, 0), "Pad", [Constant(np.array([0, 1, 0, 1]))], {"mode": "reflect"}),
    "wrapped, and cut": ((2, 3), "Pad", [Constant(np.array([0, 1, 0, -3]))], {"mode": "wrap"}),
    "sampled": ((1, 1, 0, 2), "GridSample", [GRID], {}),
    "resized": ((2, 0), "Resize", [None, None, Constant(np.array([2, 3]))], {"mode": "linear"}),
}


def model_of(shape: tuple[Any, ...], op_type: str, others: list[Any], attributes: dict[str, Any]) -> tuple[Model, Node]:
    x = Parameter(f32, shape, "x")
    node = ops.create(op_type, [x, *others], attributes)
    return Model([Result(node.output(0))], [x]), node


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_is_an_error(name: str, is_dynamic: bool) -> None:
    """When the network is compiled, if its lengths are known; else when the inference starts."""
    shape, *rest = CASES[name]

    def attempt() -> None:
        model, _ = model_of((None,) * len(shape) if is_dynamic else shape, *rest)
        Core().compile_model(model, "OPENCL")([np.zeros(shape, np.float32)])

    said = "(of no elements is undefined|1 element or more along|there are no elements to resize)"
    with pytest.raises(EngineError, match=rf"{rest[0]} `{rest[0]}_\d+`.*{said}"):
        attempt()


def test_statistics_of_nothing_are_no_numbers() -> None:
    x = Parameter(f32, (2, 0), "x")
    norm = ops.create("LayerNormalization", [x, Constant(np.zeros(0, np.float32))], num_outputs=3)
    network = Core().compile_model(Model([Result(output) for output in norm.outputs], [x]), "OPENCL")
    for _ in range(2):
        result, *statistics = network([np.zeros((2, 0), np.float32)]).values()
        assert result.shape == (2, 0)
        np.testing.assert_array_equal(statistics, np.full((2, 2, 1), np.nan))
