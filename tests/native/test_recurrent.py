"""Recurrent layers as a plan's steps: however the work is shared, and attributes that no layer has."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from engine.errors import PlanError
from engine.native import PlanBuilder, cpu_features, isas_within, run_kernel
from engine.testing.values import values as random_values

Array = np.ndarray[Any, np.dtype[np.float32]]

ISAS = isas_within(cpu_features().isa)
GATES = {"rnn": 1, "lstm": 4, "gru": 3, "gru_linear": 3}
STEPS, BATCH, HIDDEN, PADDED = 6, 2, 160, 160


values = functools.partial(random_values, scale=0.1)


def layer(cell: str, **changes: Any) -> tuple[list[Array], list[Array], dict[str, Any]]:
    """Inputs, outputs and attributes of a layer in one direction."""
    gates = GATES[cell]
    inputs = [values(STEPS, BATCH, gates, PADDED), values(gates, PADDED, PADDED, seed=1)]
    if cell == "gru_linear":
        inputs.append(values(PADDED, seed=2))
    outputs = [np.empty((STEPS, BATCH, HIDDEN), np.float32), np.empty((BATCH, HIDDEN), np.float32)]
    attributes = {"cell": cell, "steps": STEPS, "batch": BATCH, "hidden": HIDDEN, "y": 1, "y_h": 1}
    return inputs, outputs, attributes | ({"activation": "tanh"} if cell == "rnn" else {}) | changes


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", GATES)
def test_sharing_time_steps_changes_no_result(isa: str, cell: str) -> None:
    inputs, apart, attributes = layer(cell)
    run_kernel("recurrent_f32", inputs, apart, attributes, isa=isa, threads=1)
    _, together, _ = layer(cell)
    run_kernel("recurrent_f32", inputs, together, attributes | {"workers": 2}, isa=isa, threads=2)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(apart[0][-1], apart[1])
    assert np.abs(apart[0]).max() > 0.01


def test_a_time_step_is_a_phase_where_workers_share_it() -> None:
    builder = PlanBuilder()
    inputs, outputs, attributes = layer("lstm", workers=2)
    ids = [builder.add_input(array.nbytes) for array in inputs]
    builder.add_step("recurrent_f32", ids, [builder.add_output(array.nbytes) for array in outputs], attributes)
    plan = builder.build()
    assert plan.steps[0].phases == STEPS + 1
    assert plan.steps[0].work == 2 * STEPS * BATCH * 4 * PADDED * PADDED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": 1}, "not a name"),
        ({"cell": "mgu"}, "expected one of rnn, lstm, gru, gru_linear"),
        ({"hidden": 0}, "hidden"),
        ({"steps": -1}, "steps"),
        ({"directions": 3}, "directions"),
        ({"directions": 2}, "bytes"),
        ({"reversed": 1, "directions": 2}, "forward and reverse"),
        ({"clip": 0.0}, "more than 0"),
        ({"clip": float("nan")}, "more than 0"),
        ({"lengths": 1}, "inputs"),
        ({"y_c": 1}, "outputs"),
        ({"workers": 0}, "workers"),
        ({"steps": 1 << 30, "batch": 1 << 30, "hidden": 1 << 30}, "overflow"),
        ({"steps": STEPS + 1}, "bytes"),
        ({"activation": "tanh"}, "not one of this kernel"),
    ],
)
def test_a_wrong_attribute_is_refused_at_plan_build(changes: dict[str, Any], message: str) -> None:
    inputs, outputs, attributes = layer("lstm")
    with pytest.raises(PlanError, match=message):
        run_kernel("recurrent_f32", inputs, outputs, attributes | changes)
