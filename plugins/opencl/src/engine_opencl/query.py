"""Query answers."""

from __future__ import annotations

from engine import lowering
from engine.ir import Model
from engine.plugin_api import QueryResult
from engine_opencl.lowering import LOWERINGS
from engine_opencl.transform import passes_for


def query(model: Model, precision: str, *, on_integers: bool) -> QueryResult:
    """Answer for the operations of `model`."""
    return lowering.query(model, LOWERINGS, passes_for(precision, on_integers))
