"""The guide names every key and metric of the device; users would not find those that it leaves out."""

from __future__ import annotations

from pathlib import Path

from engine_hetero.device_list import PASSED_ON
from engine_hetero.network.network import HeteroNetwork
from engine_hetero.plugin import HeteroPlugin

GUIDE = Path(__file__).parents[3] / "docs" / "hetero.md"


def test_every_property_is_explained() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    declared = [*HeteroPlugin.properties, *HeteroNetwork.metrics, *PASSED_ON]
    assert [item.name for item in declared if f"`{item.name}`" not in text] == []
    for item in HeteroPlugin.properties:
        assert [choice for choice in item.choices or () if f"`{choice}`" not in text] == []
