"""What a process pays before its first result: classes that are made quickly, and modules that are loaded on demand."""

from engine.startup.classes import dataclass
from engine.startup.collector import paused_collector
from engine.startup.names import names_on_demand

__all__ = ["dataclass", "names_on_demand", "paused_collector"]
