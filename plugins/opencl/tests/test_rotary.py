"""RotaryEmbedding: what every decoder network of today turns its queries and keys with.

If a case fails here, such a network generates nonsense on this device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import InputError
from engine.ir import Constant, Model, Node, Parameter, Result, f32
from engine.ir.element_type import i64
from engine.plugin_api import SupportLevel

X = np.random.default_rng(1).standard_normal((2, 3, 5, 8), np.float32)
ANGLES = np.random.default_rng(2).standard_normal((7, 4), np.float32)
TABLES = np.cos(ANGLES), np.sin(ANGLES)


def model_by_positions(**attributes: Any) -> Model:
    x, positions = Parameter(f32, X.shape, "x"), Parameter(i64, (2, 5), "positions")
    node = ops.create("RotaryEmbedding", [x, *map(Constant, TABLES), positions], attributes)
    node.friendly_name = "turn"
    return Model([Result(node)], [x, positions])


@pytest.mark.parametrize("attributes", [{}, {"interleaved": 1}])
def test_positions_that_are_computed(attributes: dict[str, int]) -> None:
    model = model_by_positions(**attributes)
    inputs = {"x": X, "positions": np.array([[0, 1, 2, 3, 4], [6, 5, 0, 0, 1]])}
    (found,), (expected,) = (Core().compile_model(model, d)(inputs).values() for d in ("OPENCL", "TEMPLATE"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_position_behind_the_table_fails_by_name() -> None:
    network = Core().compile_model(model_by_positions(), "OPENCL")
    with pytest.raises(InputError, match=r"RotaryEmbedding `turn`: index 7 is out of range for a dimension of 7"):
        network({"x": X, "positions": np.full((2, 5), 7)})


def _spelled_out(x: Parameter) -> Node:
    def half(start: int, end: int) -> Node:
        return ops.create("Slice", [x, *(Constant(np.array([n])) for n in (start, end, 3, 1))])

    turned = ops.create("Concat", [ops.create("Neg", [half(4, 8)]), half(0, 4)], {"axis": -1})
    cosine, sine = (Constant(np.tile(table[:5], 2)[None, None]) for table in TABLES)
    return ops.create("Add", [ops.create("Mul", [x, cosine]), ops.create("Mul", [turned, sine])])


def test_what_exporters_spell_out_is_one_launch() -> None:
    x = Parameter(f32, X.shape, "x")
    model = Model([Result(_spelled_out(x))], [x])
    core = Core()
    assert not core.query_model(model, "OPENCL").at(SupportLevel.REFUSED)
    request = core.compile_model(model, "OPENCL", {"PERF_COUNT": True}).create_infer_request()
    request.infer([X])
    (expected,) = core.compile_model(model, "TEMPLATE")([X]).values()
    np.testing.assert_allclose(request.results[0], expected, rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in request.profiling_info.nodes] == ["RotaryEmbedding"]
