"""How the tests run the ready passes: checked, twice, and with the results compared with the original model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.ir import Model
from engine.onnx import read_model
from engine.passes import Manager, Pass, check_equivalence

EXPORTS = Path(__file__).parents[2] / "fixtures" / "exports"
_LEAVES = ("Parameter", "Constant", "Result")


def operators(model: Model) -> Counter[str]:
    """How many nodes of each operator the model has."""
    return Counter(node.op_type for node in model.ordered_nodes() if node.op_type not in _LEAVES)


def feed_of(model: Model, seed: int = 0, length: int = 3) -> dict[str, Any]:
    """Random inputs; masks of tokens are ones but for one zero, so that every row has a key."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Any] = {}
    for parameter in model.parameters:
        shape = [dim.get_length() if dim.is_static else length for dim in parameter.type.shape.dims]
        if parameter.type.element_type.is_integral:
            feed[parameter.friendly_name] = rng.integers(1, 8, shape).astype(parameter.type.element_type.numpy)
        else:
            feed[parameter.friendly_name] = rng.standard_normal(shape).astype(parameter.type.element_type.numpy)
    if len(feed) == 2 and all(value.dtype == np.int64 for value in feed.values()):
        mask = np.ones_like(list(feed.values())[1])
        mask[0, -1] = 0
        feed[model.parameters[1].friendly_name] = mask
    return feed


@pytest.fixture
def load() -> Callable[[str], Model]:
    """Reads one of the committed exports by its name without `.onnx`."""
    return lambda name: read_model(EXPORTS / f"{name}.onnx")


@pytest.fixture
def count() -> Callable[[Model], Counter[str]]:
    return operators


@pytest.fixture
def feed() -> Callable[..., dict[str, Any]]:
    return feed_of


@pytest.fixture
def apply() -> Callable[..., Counter[str]]:
    """`apply(model, Pass, ...)`: the operators that are left.

    The passes run with every check; the model computes what it did; a second run finds nothing to do. `modified` is
    what the first run has to answer.
    """

    def run(
        model: Model,
        *passes: Pass | type[Pass],
        modified: bool = True,
        inputs: dict[str, Any] | None = None,
        rtol: float | None = None,
        enable: tuple[type[Pass], ...] = (),
    ) -> Counter[str]:
        before = model.clone()
        manager = Manager(checked=True)
        for item in passes:
            manager.register_pass(item)
        manager.pass_config.enable(*enable)
        assert manager.run_passes(model) is modified
        assert manager.run_passes(model) is False
        check_equivalence(before, model, inputs=inputs or feed_of(before), rtol=rtol)
        return operators(model)

    return run
