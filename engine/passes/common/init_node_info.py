"""`InitNodeInfo`: every operation remembers the names of the original nodes that it stands for."""

from __future__ import annotations

from engine.ir import Model
from engine.passes.base import ModelPass
from engine.passes.runtime_info import init_node_info


class InitNodeInfo(ModelPass):
    """Writes each operation's friendly name into its rt_info as `fused_names`, bodies included.

    Passes that call `copy_runtime_info` carry the names on, so that `check_rt_info` finds those that do not, and a
    device can tell which of the original nodes an operation stands for. Names that are there already stay.
    """

    is_transformation = False

    def run_on_model(self, model: Model) -> bool:
        """True where a node got its name."""
        return init_node_info(model)
