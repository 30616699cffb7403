"""Executors, inference requests and their queue."""

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
