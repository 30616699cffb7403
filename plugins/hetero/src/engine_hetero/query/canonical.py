"""Brings a model into the form used for device queries."""

from __future__ import annotations

from engine.passes import Manager
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.init_node_info import InitNodeInfo
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Model


def canonical_model(model: Model) -> Model:
    """A copy of `model` without operations that need not run, in which every operation has a unique name.

    Nothing is fused: devices transform their subgraphs themselves, and users see their own nodes.
    """
    copy = model.clone()
    manager = Manager(name="CanonicalModel")
    for item in (InitNodeInfo, ShapeSimplification, ConstantFolding, IdentityElimination, DeadCodeElimination):
        manager.register_pass(item)
    manager.run_passes(copy)
    _name_apart(copy)
    return copy


def _name_apart(model: Model) -> None:
    """Rename operations with duplicate names: devices answer by name."""
    taken: set[str] = set()
    for node in model.ordered_nodes():
        if not is_operation(node):
            continue
        name, count = node.friendly_name, 1
        while node.friendly_name in taken:
            count += 1
            node.friendly_name = f"{name}:{count}"
        if not node.has_own_name:
            node.friendly_name = name  # generated names differ between copies of a model
        taken.add(node.friendly_name)
