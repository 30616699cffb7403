"""The behaviour suite: requirements that every device must meet.

A plugin subclasses `BehaviourSuite` in a test file and names its device; pytest does the rest. A group of checks can be
subclassed separately. A check that does not apply, because of the device's declaration (IMPORT_EXPORT_SUPPORT) or its
refusal of a model, is skipped with the device's reason. The class attributes `limit` and `memory_share` set how long a
check may wait and how much the checks of memory repeat. Most checks run the basic model (`basic.py`), which is made of
two operators that the device claims.
"""

from engine.testing.behaviour.async_requests import AsyncChecks
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.collisions import CollisionChecks
from engine.testing.behaviour.completion import CompletionChecks
from engine.testing.behaviour.divisions import DivisionChecks
from engine.testing.behaviour.effects import EffectChecks
from engine.testing.behaviour.export_import import ExportImportChecks
from engine.testing.behaviour.honesty import HonestyChecks
from engine.testing.behaviour.isolation import IsolationChecks
from engine.testing.behaviour.large import LargeChecks
from engine.testing.behaviour.lengths import LengthChecks
from engine.testing.behaviour.memory import MemoryChecks
from engine.testing.behaviour.operators import OperatorChecks
from engine.testing.behaviour.profiles import ProfileChecks
from engine.testing.behaviour.profiling import ProfilingChecks
from engine.testing.behaviour.properties import PropertyChecks
from engine.testing.behaviour.query import QueryChecks
from engine.testing.behaviour.queues import QueueChecks
from engine.testing.behaviour.remote import RemoteChecks
from engine.testing.behaviour.repeatable import RepeatableChecks
from engine.testing.behaviour.requests import RequestChecks
from engine.testing.behaviour.results import ResultChecks
from engine.testing.behaviour.states import StateChecks
from engine.testing.behaviour.threads import ThreadChecks
from engine.testing.behaviour.weights import WeightChecks

__all__ = [
    "AsyncChecks", "BehaviourSuite", "CollisionChecks", "CompletionChecks", "DeviceChecks", "DivisionChecks",
    "EffectChecks", "ExportImportChecks", "HonestyChecks", "IsolationChecks", "LargeChecks", "LengthChecks",
    "MemoryChecks", "OperatorChecks", "ProfileChecks", "ProfilingChecks", "PropertyChecks", "QueryChecks",
    "QueueChecks", "RemoteChecks", "RepeatableChecks", "RequestChecks", "ResultChecks", "StateChecks", "ThreadChecks",
    "WeightChecks",
]  # fmt: skip


class BehaviourSuite(
    ResultChecks,
    LargeChecks,
    OperatorChecks,
    LengthChecks,
    RequestChecks,
    AsyncChecks,
    QueueChecks,
    ThreadChecks,
    PropertyChecks,
    RepeatableChecks,
    ProfilingChecks,
    ExportImportChecks,
    WeightChecks,
    QueryChecks,
    HonestyChecks,
    DivisionChecks,
    StateChecks,
    RemoteChecks,
    EffectChecks,
    CompletionChecks,
    CollisionChecks,
    ProfileChecks,
    IsolationChecks,
    MemoryChecks,
):
    """All checks. Set `device` and, if needed, `config`, `rtol` and `atol`; see `DeviceChecks`."""
