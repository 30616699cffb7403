"""Sequences of a batch are shortened by different numbers. If it fails, one sees tokens that were refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.errors import StateError
from engine.passes import MakeStateful

LLAMA = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama.dynamo23.onnx"


def network_of(device: str, properties: dict[str, Any]) -> Any:
    core = Core()
    model = core.read_model(LLAMA)
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device, properties)


def inputs(rows: list[list[int]], past: list[int], columns: int) -> dict[str, Any]:
    """The next tokens of sequences that have the last `past` of `columns` columns."""
    count = len(rows[0])
    positions = np.array(past)[:, None] + np.arange(count)
    mask = np.arange(columns + count) >= columns - np.array(past)[:, None]
    return {"input_ids": np.array(rows), "attention_mask": mask.astype(np.int64), "position_ids": positions}


@pytest.mark.parametrize(
    ("device", "properties", "atol"),
    [("CPU", {}, 1e-4), ("TEMPLATE", {}, 1e-4), ("CPU", {"KV_CACHE_PRECISION": "int8"}, 0.05)],
)
def test_each_goes_on_from_its_own_tokens(device: str, properties: dict[str, Any], atol: float) -> None:
    network = network_of(device, properties)
    rows = [[3, 14, 15, 9, 2], [7, 7, 1, 8, 28], [1, 2, 3, 4, 5]]
    request = network.create_infer_request()
    request.infer(inputs(rows, [0, 0, 0], 0))
    request.rewind_each([3, 1, 4])
    assert request.length == 4
    found = request.infer(inputs([[9, 8], [9, 8], [9, 8]], [2, 4, 1], 4))["logits"]
    for logits, row, kept in zip(found, rows, (2, 4, 1), strict=True):
        alone = network.create_infer_request().infer(inputs([[*row[:kept], 9, 8]], [0], 0))["logits"]
        np.testing.assert_allclose(logits, alone[0, -2:], rtol=0, atol=atol)


def test_what_is_refused_changes_nothing() -> None:
    network = network_of("CPU", {})
    request = network.create_infer_request()
    request.rewind_each([0])
    request.infer(inputs([[3, 1], [4, 1]], [0, 0], 0))
    before = {name: state.get() for name, state in request.query_state().items()}
    for wrong in ([1], [1, 3], [1, -1], [0.5, 1], [True, False], [], 1, [[1, 1]]):
        with pytest.raises(StateError, match="rewind"):
            request.rewind_each(wrong)
    request.rewind_each([0, 0])
    for name, state in request.query_state().items():
        np.testing.assert_array_equal(state.get(), before[name])
