"""Models, and results of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from engine.testing.networks import seeded_network


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The file of a small convolutional network, and inputs of it."""
    network = seeded_network("squeezenet", small=True)
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(network.model, path)
    return path, dict(network.inputs)


@pytest.fixture
def other_inputs() -> Any:
    """A function that writes a model with the inputs a and b."""
    from engine.testing.behaviour.basic import BASIC

    return lambda path: onnx.save(BASIC.model(), path)
