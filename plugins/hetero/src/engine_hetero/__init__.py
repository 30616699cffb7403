"""HETERO: one model over several devices."""

from engine_hetero.partitioning import Partition, partition
from engine_hetero.placing.user_affinity import set_affinity
from engine_hetero.plugin import HeteroPlugin

__all__ = ["HeteroPlugin", "Partition", "partition", "set_affinity"]
