"""Chooses a device for each operation from the devices' answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from engine.plugin_api import Config, CoreHandle, Model
from engine.properties import ALLOW_SHARED_CACHE
from engine.startup import dataclass
from engine_hetero.affinity.budget import within_budgets
from engine_hetero.affinity.costs.calibrated_costs import calibration_path, measured_costs
from engine_hetero.affinity.costs.cost_model import CostModel, default_costs
from engine_hetero.affinity.measured_placing import place_by_cost
from engine_hetero.affinity.placement import UNPLACED, Placement, UnplaceableError, place_by_priority
from engine_hetero.affinity.user_affinity import stated_affinity
from engine_hetero.device_list import DeviceList
from engine_hetero.properties import AFFINITY_FILE, CALIBRATION_FILE, MEASURE_SECONDS, PLACEMENT
from engine_hetero.query.claims import Claims
from engine_hetero.query.model_graph import Ints


@dataclass(frozen=True, slots=True)
class Placements:
    """The placements worth dividing, and the costs to compare their divisions by."""

    alternatives: tuple[Placement, ...]
    costs: CostModel


def place(
    core: CoreHandle, model: Model, claims: Claims, devices: DeviceList, config: Config, allowed: Mapping[str, int]
) -> Placements:
    """Place every node by the user's affinities, then by PLACEMENT, within the memory of devices.

    Args:
        model: the user's, whose names an affinity file has.
        allowed: the bytes that devices with a budget may take.

    Raises `UnplaceableError` naming every node that cannot be placed, and `MemoryBudgetError`.
    """
    stated = stated_affinity(claims.graph, claims.devices, config[AFFINITY_FILE], user_model=model)
    if config[PLACEMENT] != "measured":
        costs = default_costs(claims.graph, claims.devices, claims.levels)
        if allowed:
            claims = within_budgets(claims, stated, costs, allowed, is_measured=False)
        return Placements((place_by_priority(claims, stated),), costs)
    path, seconds = calibration_path(config), config[MEASURE_SECONDS]
    is_private = not (config[CALIBRATION_FILE] or config[ALLOW_SHARED_CACHE])
    costs = measured_costs(core, claims, devices.configs.__getitem__, path, seconds, is_private=is_private)
    if allowed:
        claims = within_budgets(claims, stated, costs, allowed, is_measured=True)
    return Placements((*_simple_placements(claims, stated), place_by_cost(claims, stated, costs)), costs)


def _simple_placements(claims: Claims, stated: Ints) -> list[Placement]:
    """Placement by priority, and all free nodes on one device, for each device that supports them all."""
    found: list[Placement] = []
    for device in (None, *range(len(claims.devices))):
        free = stated if device is None else np.where(stated == UNPLACED, device, stated)
        with suppress(UnplaceableError):
            placement = place_by_priority(claims, free)
            sources = zip(placement.sources, stated, strict=True)
            named = ("user" if d != UNPLACED else "measured" if s != "atom" else s for s, d in sources)
            found.append(replace(placement, sources=tuple(named)))
    return found
