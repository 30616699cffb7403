"""Profiles of OPENCL: kernels, the memory in use, and transfers."""

from __future__ import annotations

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32
from engine.lowering import known_shapes

pytestmark = pytest.mark.opencl


def chain(length: int = 4) -> Model:
    value = x = Parameter(f32, [16, 32], "x")
    for _ in range(length):
        value = ops.Softmax(ops.MatMul(value, Constant(np.eye(32, dtype=np.float32))), axis=-1)
    return Model([value], [x])


def test_memory_in_use_is_what_the_arena_is_laid_out_for() -> None:
    network = Core().compile_model(chain(), "OPENCL", {"PERF_COUNT": True})
    plan = network.pool.take_for(known_shapes(network.graph)).plan  # type: ignore[attr-defined]
    assert len(plan.live_bytes) == len(plan.launches)
    assert 0 < max(plan.live_bytes) <= plan.arena_bytes


def test_records_have_kernels_memory_and_transfers() -> None:
    network = Core().compile_model(chain(), "OPENCL", {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer({"x": np.ones((16, 32), np.float32)})
    profile = request.profiling_info
    assert all(record.kernel for record in profile.nodes)
    assert all(record.live_bytes is not None for record in profile.nodes)
    (fetched,) = [each for each in profile.transfers if each.source == "OPENCL"]
    assert (fetched.target, fetched.byte_size) == ("host", 16 * 32 * 4)
    assert profile.begun_ns <= fetched.start_ns <= profile.stages[-1].end_ns
