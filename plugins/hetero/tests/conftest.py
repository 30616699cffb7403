"""Devices for tests: TEMPLATE that leaves some operations to others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_template import TemplatePlugin

from engine.core import Core
from engine.plugin_api import Config, ExecutableNetwork, Model, QueryResult, RefusalCause, Support, UnsupportedError


@pytest.fixture(scope="session")
def leaving() -> Callable[[str, Callable[[str], bool]], type[TemplatePlugin]]:
    """`leaving("PICKY", leaves)`: TEMPLATE as the device PICKY, refusing the nodes for whose name `leaves` is true."""
    return _leaving


@pytest.fixture
def make_picky_core() -> Callable[[], Core]:
    """Makes cores with the device PICKY, which refuses about every other node, the same in every process."""

    def make() -> Core:
        core = Core()
        core.register_plugin("PICKY", _leaving("PICKY", lambda node: sum(node.encode()) % 2 == 1))
        return core

    return make


def _leaving(name: str, leaves: Callable[[str], bool]) -> type[TemplatePlugin]:
    """TEMPLATE as the device `name`, refusing the operations whose friendly name `leaves` is true for."""

    class Leaving(TemplatePlugin):
        def query_model(self, model: Model, config: Config) -> QueryResult:
            answer = super().query_model(model, config)
            refused = Support.refused(RefusalCause.OP, f"{name} leaves this node to others")
            return QueryResult({node: refused if leaves(node) else s for node, s in answer.nodes.items()})

        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            for node in model.ordered_nodes():
                if node.op_type not in ("Parameter", "Constant", "Result") and leaves(node.friendly_name):
                    raise UnsupportedError(f"{name} was given `{node.friendly_name}`, which it refused")
            return super().compile_model(model, config)

    Leaving.name = name
    return Leaving
