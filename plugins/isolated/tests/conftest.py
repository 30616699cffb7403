"""A core with a device that fails, and a model for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine import Core
from engine.hosting.network import HostedNetwork
from engine.ir import Model

from .faulty_device import TARGET, doubling


@pytest.fixture
def core() -> Core:
    """A core whose device FAULTY another process can import."""
    made = Core()
    made.register_plugin("FAULTY", TARGET)
    return made


@pytest.fixture
def compiled(core: Core) -> Callable[..., HostedNetwork[Any]]:
    """Compiles the model for ISOLATED:FAULTY."""

    def compile_model(model: Model | None = None, **config: object) -> HostedNetwork[Any]:
        return core.compile_model(model or doubling(), "ISOLATED:FAULTY", config)

    return compile_model
