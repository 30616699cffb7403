"""Answers queries: which operations of a model have kernels on a device."""

from __future__ import annotations

from engine import lowering
from engine.ir import Model
from engine.plugin_api import QueryResult
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering import lowerings_of
from engine_opencl.transform import passes_for


def query(model: Model, facts: DeviceFacts, precision: str) -> QueryResult:
    """Answer for the operations of `model`."""
    return lowering.query(model, lowerings_of(facts), passes_for(precision, facts.multiplies_integers))
