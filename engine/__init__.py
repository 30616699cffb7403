"""An inference engine: compiles ONNX models for devices that plugins provide, into portable networks.

    from engine import Core

    core = Core()
    network = core.compile_model("model.onnx", "TEMPLATE")
    result = network({"x": array})["y"]

These names are for applications. Authors of plugins use `engine.plugin_api`; `engine.errors` has every error,
`engine.ir` the graph, `engine.properties` the properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.startup import names_on_demand

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
_load = names_on_demand(
    __name__,
    {
        "engine.core": ["Core"],
        "engine.errors": ["EngineError", "EngineWarning"],
        "engine.extensions": ["Extension", "Operator"],
        "engine.include": ["include_dir"],
        "engine.ir": ["Model"],
        "engine.plugin_api": ["ExecutableNetwork", "QueryResult"],
        "engine.preprocessing": ["PrePostProcessor"],
        "engine.runtime": ["AsyncInferQueue", "AsyncInferRequest", "InferResult", "RemoteContext", "RemoteTensor"],
    },
)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _load(name)
    from engine.hosting.version import engine_version

    value = globals()[name] = engine_version()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
