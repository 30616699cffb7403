"""Plans that run a batch slice by slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.native import PlanBuilder
from engine.testing.networks import seeded_network
from engine.testing.networks.batches import repeated, with_any_batch

_BATCH = 4
_SLOW = ["efficientnet_b0", "densenet121", "segformer_b0", "yolo", "convnext_t", "resnet50", "unet"]


@pytest.mark.parametrize(
    "name", ["mobilenet_v2", "squeezenet", *(pytest.param(n, marks=pytest.mark.slow) for n in _SLOW)]
)
def test_slices_of_a_batch_have_the_bits_of_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = seeded_network(name)
    inputs = repeated(network.inputs, _BATCH)
    model = Core().read_model(with_any_batch(network.model).SerializeToString())
    model.reshape({name: value.shape for name, value in inputs.items()})
    config = {"INFERENCE_NUM_THREADS": 1, "COMPILE_EFFORT": "none"}
    divided = Core().compile_model(model, "CPU", config)

    made = PlanBuilder.__init__

    def undivided(self: PlanBuilder, **options: Any) -> None:
        made(self, **(options | {"threads": _BATCH - 1}))  # which would wait for one another

    monkeypatch.setattr(PlanBuilder, "__init__", undivided)
    together = Core().compile_model(model, "CPU", config)
    expected, actual = together(inputs), divided(inputs)
    for output in expected:
        np.testing.assert_array_equal(actual[output], expected[output])
    barriers = [network.native_plans()[0].barriers for network in (divided, together)]  # type: ignore[attr-defined]
    assert barriers[0] < barriers[1]
