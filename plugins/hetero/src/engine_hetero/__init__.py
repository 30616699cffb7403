"""HETERO: one model over several devices. `stages` shows the way of a model through the folders."""

from engine_hetero.affinity.user_affinity import set_affinity
from engine_hetero.division.partitioning import Partition, partition
from engine_hetero.plugin import HeteroPlugin

__all__ = ["HeteroPlugin", "Partition", "partition", "set_affinity"]
