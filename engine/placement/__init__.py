"""A device's answer to a query (`support`); how a device that runs on others divides a model: `engine query --why`."""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.placement.consistency import inconsistencies
    from engine.placement.report import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.placement.consistency": ["inconsistencies"],
        "engine.placement.report": ["Crossing", "NodeRefusal", "PlacedSubgraph", "PlacementReport"],
    })  # fmt: skip

__all__ = ["Crossing", "NodeRefusal", "PlacedSubgraph", "PlacementReport", "inconsistencies"]
