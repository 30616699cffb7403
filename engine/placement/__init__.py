"""A device's answer to a query (`support`); how a device that runs on others divides a model: `engine query --why`."""

from engine.placement.consistency import inconsistencies
from engine.placement.report import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport

__all__ = ["Crossing", "NodeRefusal", "PlacedSubgraph", "PlacementReport", "inconsistencies"]
