"""Costs from earlier measurements, from new ones, or from default rates, in this order."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import PropertyError
from engine.files import CacheFolder
from engine.plugin_api import Config, CoreHandle
from engine.properties import ALLOW_SHARED_CACHE, CACHE_DIR, DEVICE_ID, ENABLE_MMAP, PERF_COUNT
from engine_hetero.affinity.costs.calibration import (
    Calibration,
    Figure,
    merge,
    read_calibration,
    signature_of,
    update_calibration,
)
from engine_hetero.affinity.costs.cost_model import DEFAULT_RATES, CostModel, default_costs
from engine_hetero.affinity.costs.measuring import BYTE, SUBGRAPH, VALUE, Subject, measure
from engine_hetero.affinity.costs.probes import Deadline, border_probe
from engine_hetero.properties import CALIBRATION_FILE
from engine_hetero.query.claims import REFUSED, Claims

logger = logging.getLogger("engine.hetero")

ConfigOf: TypeAlias = Callable[[str], Mapping[str, Any]]

_DEFAULT_FILE: Final = "hetero-calibration.json"
_WITHOUT_EFFECT: Final = frozenset(
    {PERF_COUNT.name, CACHE_DIR.name, ALLOW_SHARED_CACHE.name, ENABLE_MMAP.name, DEVICE_ID.name}
)
"""Properties that affect the time of nodes; the device itself is identified by its full name."""


def calibration_path(config: Config) -> str:
    """The file of measured times: CALIBRATION_FILE, otherwise a file in CACHE_DIR, otherwise none.

    CACHE_DIR is created, or not used if other users can change it; the file that a user states is used in any case.
    """
    if config[CALIBRATION_FILE] or not config[CACHE_DIR]:
        return str(config[CALIBRATION_FILE])
    folder = CacheFolder(Path(config[CACHE_DIR]), config[ALLOW_SHARED_CACHE])
    try:
        folder.make()
        if (why := folder.refusal(_DEFAULT_FILE)) is not None:
            raise PermissionError(why)
    except (OSError, ValueError) as e:
        logger.warning("measured times are not cached in %s: %s", folder.path, e)
        return ""
    return str(folder.path / _DEFAULT_FILE)


def measured_costs(
    core: CoreHandle, claims: Claims, config_of: ConfigOf, path: str, seconds: float, *, is_private: bool = False
) -> CostModel:
    """The costs of nodes and transfers on the devices of `claims`: calibrated, otherwise measured now, otherwise
    defaults.

    Args:
        config_of: the configuration with which each device compiles its part of the model.
        path: the calibration file, read before and updated after; empty for none.
        is_private: whether only its owner may read that file.
        seconds: how long to measure. Each device gets an equal share of the time left by the devices before it.

    Raises `PropertyError` for a damaged calibration file, and the error of a device that cannot compile at all. A node
    that cannot be measured is not an error: it keeps its default time, and the reason is logged.
    """
    known = read_calibration(path) if path else Calibration()
    costs = default_costs(claims.graph, claims.devices, claims.levels)
    deadline = Deadline.after(seconds)
    new = Calibration()
    figures: list[Mapping[str, Figure]] = []
    for device, name in enumerate(claims.devices):
        config = _measuring(config_of(name))
        key = device_key(core, name, config)
        share = Deadline.after(deadline.left() / (len(claims.devices) - device))
        subject = Subject(core, name, config, claims.graph, device, claims, costs.node_seconds[device])
        new = merge(new, Calibration({key: measure(subject, merge(known, new).of(key), share)}))
        figures.append(merge(known, new).of(key))
        costs = _with_figures(costs, device, claims, figures[-1])
    if path and any(new.devices.values()):
        try:
            update_calibration(path, new, is_private=is_private)
        except PropertyError as e:
            logger.warning("the measured times are used, but could not be saved: %s", e)
    return _with_borders(costs, figures)


def device_key(core: CoreHandle, device: str, config: Mapping[str, Any]) -> str:
    """The key of a device's times: its full name, its plugin's version, driver and such, its configuration.

    Equal devices with different names share their times. Raises the errors of compiling for the device.
    """
    network = core.compile_model(border_probe(1, 1), device, config)
    plugin = network.plugin
    features = plugin.host_features(plugin.resolve_device_id(network.config[DEVICE_ID]))
    stated = {name: value for name, value in network.config.to_json().items() if name not in _WITHOUT_EFFECT}
    listed = {kind: [value] if isinstance(value, str) else sorted(value) for kind, value in features.items()}
    full_name = core.get_property(device, "FULL_DEVICE_NAME")
    kind = f"{type(plugin).__module__}.{type(plugin).__qualname__}"
    return f"{full_name} | {kind} {plugin.version} | {json.dumps([listed, stated], sort_keys=True)}"


def _measuring(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a device for models that are compiled only to be measured."""
    return {**config, PERF_COUNT.name: True, CACHE_DIR.name: ""}


def _with_figures(costs: CostModel, device: int, claims: Claims, figures: Mapping[str, Figure]) -> CostModel:
    """Add a device's times to the cost model."""
    claimed = claims.levels[device] != REFUSED
    found = [figures.get(signature_of(node)) if claimed[n] else None for n, node in enumerate(claims.graph.nodes)]
    seconds = [np.nan if figure is None else figure.seconds for figure in found]
    return costs.with_measured(device, np.array(seconds, np.float64))


def _with_borders(costs: CostModel, figures: Sequence[Mapping[str, Figure]]) -> CostModel:
    """Add starts and transfers to the cost model; a transfer costs the sum of its parts on the two devices."""
    value, byte = np.diag(costs.transfer_overhead) / 2, np.full(len(figures), 0.5 / DEFAULT_RATES.transfer_bytes)
    start = costs.subgraph_overhead.copy()
    for device, known in enumerate(figures):
        if {SUBGRAPH, VALUE, BYTE} <= known.keys():
            start[device], value[device], byte[device] = (known[each].seconds for each in (SUBGRAPH, VALUE, BYTE))
    return replace(
        costs,
        subgraph_overhead=start,
        transfer_overhead=np.add.outer(value, value),
        transfer_per_byte=np.add.outer(byte, byte),
    )
