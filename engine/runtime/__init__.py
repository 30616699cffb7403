"""Executors, inference requests and their queue."""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.runtime.async_request import AsyncInferRequest, Callback, Pipeline
    from engine.runtime.executors import Executor, InlineExecutor, ThreadExecutor, shared_executor
    from engine.runtime.growing import GrowingArray, GrowingForm, GrowingSet
    from engine.runtime.port import Port
    from engine.runtime.queue import AsyncInferQueue
    from engine.runtime.records import NodeProfile, StageProfile, TransferProfile
    from engine.runtime.remote import RemoteContext, RemoteTensor, Transfers
    from engine.runtime.result import InferResult, ProfilingInfo
    from engine.runtime.run import RequestState
    from engine.runtime.shadow import Shadow, ShadowDifference, ShadowStatistics
    from engine.runtime.signature import Signature
    from engine.runtime.states import StatePort, VariableState
    from engine.runtime.submission import InferFuture
    from engine.runtime.sync_request import RequestOwner, Stage, SyncInferRequest
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.runtime.async_request": ["AsyncInferRequest", "Callback", "Pipeline"],
        "engine.runtime.executors": ["Executor", "InlineExecutor", "ThreadExecutor", "shared_executor"],
        "engine.runtime.growing": ["GrowingArray", "GrowingForm", "GrowingSet"],
        "engine.runtime.port": ["Port"],
        "engine.runtime.queue": ["AsyncInferQueue"],
        "engine.runtime.records": ["NodeProfile", "StageProfile", "TransferProfile"],
        "engine.runtime.remote": ["RemoteContext", "RemoteTensor", "Transfers"],
        "engine.runtime.result": ["InferResult", "ProfilingInfo"],
        "engine.runtime.run": ["RequestState"],
        "engine.runtime.shadow": ["Shadow", "ShadowDifference", "ShadowStatistics"],
        "engine.runtime.signature": ["Signature"],
        "engine.runtime.states": ["StatePort", "VariableState"],
        "engine.runtime.submission": ["InferFuture"],
        "engine.runtime.sync_request": ["RequestOwner", "Stage", "SyncInferRequest"],
    })  # fmt: skip

__all__ = [
    "AsyncInferQueue",
    "AsyncInferRequest",
    "Callback",
    "Executor",
    "GrowingArray",
    "GrowingForm",
    "GrowingSet",
    "InferFuture",
    "InferResult",
    "InlineExecutor",
    "NodeProfile",
    "Pipeline",
    "Port",
    "ProfilingInfo",
    "RemoteContext",
    "RemoteTensor",
    "RequestOwner",
    "RequestState",
    "Shadow",
    "ShadowDifference",
    "ShadowStatistics",
    "Signature",
    "Stage",
    "StageProfile",
    "StatePort",
    "SyncInferRequest",
    "ThreadExecutor",
    "TransferProfile",
    "Transfers",
    "VariableState",
    "shared_executor",
]
