"""HETERO: one model over several devices. `stages` shows which folders a model passes through."""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine_hetero.affinity.user_affinity import set_affinity
    from engine_hetero.division.partitioning import Partition, partition
    from engine_hetero.plugin import HeteroPlugin
else:
    # Listing devices, and importing a network, need only the plugin.
    __getattr__ = names_on_demand(__name__, {
        "engine_hetero.affinity.user_affinity": ["set_affinity"],
        "engine_hetero.division.partitioning": ["Partition", "partition"],
        "engine_hetero.plugin": ["HeteroPlugin"],
    })  # fmt: skip

__all__ = ["HeteroPlugin", "Partition", "partition", "set_affinity"]
