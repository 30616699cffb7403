"""An inference engine: compiles ONNX models for devices that plugins provide, into portable networks.

    from engine import Core

    core = Core()
    network = core.compile_model("model.onnx", "TEMPLATE")
    result = network({"x": array})["y"]

These names are for applications. Authors of plugins use `engine.plugin_api`; `engine.errors` has every error,
`engine.ir` the graph, `engine.properties` the properties.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.core import Core
    from engine.errors import EngineError, EngineWarning
    from engine.extensions import Extension, Operator
    from engine.include import include_dir
    from engine.ir import Model
    from engine.plugin_api import ExecutableNetwork, QueryResult
    from engine.preprocessing import PrePostProcessor
    from engine.runtime import AsyncInferQueue, AsyncInferRequest, InferResult, RemoteContext, RemoteTensor

    __version__: str

__all__ = [
    "AsyncInferQueue", "AsyncInferRequest", "Core", "EngineError", "EngineWarning", "ExecutableNetwork", "Extension",
    "InferResult", "Model", "Operator", "PrePostProcessor", "QueryResult", "RemoteContext", "RemoteTensor",
    "__version__", "include_dir",
]  # fmt: skip

# Loaded on first use, so that `import engine` is fast and a plugin imports only the modules that it uses.
_HOMES = {
    "AsyncInferQueue": "engine.runtime",
    "AsyncInferRequest": "engine.runtime",
    "Core": "engine.core",
    "EngineError": "engine.errors",
    "EngineWarning": "engine.errors",
    "ExecutableNetwork": "engine.plugin_api",
    "Extension": "engine.extensions",
    "InferResult": "engine.runtime",
    "Model": "engine.ir",
    "Operator": "engine.extensions",
    "PrePostProcessor": "engine.preprocessing",
    "QueryResult": "engine.plugin_api",
    "RemoteContext": "engine.runtime",
    "RemoteTensor": "engine.runtime",
    "include_dir": "engine.include",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("engine.hosting").engine_version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
