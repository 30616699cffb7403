"""HETERO: one model over several devices."""

from engine_hetero.partitioning import Partition, partition

__all__ = ["Partition", "partition"]
