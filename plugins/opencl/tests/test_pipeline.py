"""Stages of several requests.

If a case fails here, a GPU idles between the inferences of a busy service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from engine_opencl.execution.context import Context

from engine import Core, ops
from engine.ir import Model, Parameter, Result, f32


def test_kernels_are_handed_over_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    second_is_there = threading.Event()
    handed_over: list[Context] = []
    compute, wait = Context.compute, Context.wait

    def counted(self: Context, check_cancelled: Callable[[], None]) -> None:
        compute(self, check_cancelled)
        handed_over.append(self)
        if len(handed_over) == 2:
            second_is_there.set()

    def held_up(self: Context) -> None:
        assert second_is_there.wait(60)
        wait(self)

    x = Parameter(f32, (3,))
    network = Core().compile_model(Model([Result(ops.create("Exp", [x], {}))], [x], name="exp"), "OPENCL")
    monkeypatch.setattr(Context, "compute", counted)
    monkeypatch.setattr(Context, "wait", held_up)
    requests = [network.create_infer_request() for _ in range(2)]
    for request in requests:
        request.start_async([np.zeros(3, np.float32)])
    for request in requests:
        request.wait(120)
        np.testing.assert_array_equal(next(iter(request.results.values())), np.ones(3, np.float32))
    assert len({id(context) for context in handed_over}) == 2
