"""`InitNodeInfo`: every operation records the names of the original nodes that it replaces."""

from __future__ import annotations

from engine.ir import Model
from engine.passes.base import ModelPass
from engine.passes.runtime_info import init_node_info


class InitNodeInfo(ModelPass):
    """Writes each operation's friendly name into its rt_info as `fused_names`, bodies included.

    Passes that call `copy_runtime_info` propagate the names, so `check_rt_info` finds passes that do not, and a device
    can tell which original nodes an operation replaces. Existing names stay.
    """

    is_transformation = False

    def run_on_model(self, model: Model) -> bool:
        """True if a node got its name."""
        return init_node_info(model)
