"""HETERO: one model over several devices."""

from engine_hetero.affinity.user_affinity import set_affinity
from engine_hetero.division.partitioning import Partition, partition
from engine_hetero.plugin import HeteroPlugin

__all__ = ["HeteroPlugin", "Partition", "partition", "set_affinity"]
