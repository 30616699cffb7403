"""What a device that runs on others tells of where it puts a model: the report behind `engine query --why`."""

from engine.placement.consistency import inconsistencies
from engine.placement.report import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport

__all__ = ["Crossing", "NodeRefusal", "PlacedSubgraph", "PlacementReport", "inconsistencies"]
