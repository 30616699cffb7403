"""HETERO: one model over several devices."""

from engine_hetero.partitioning import Partition, partition
from engine_hetero.plugin import HeteroPlugin
from engine_hetero.user_affinity import set_affinity

__all__ = ["HeteroPlugin", "Partition", "partition", "set_affinity"]
