"""`replace_onnxruntime`: this engine under onnxruntime's name, for packages that import onnxruntime by themselves."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from engine import errors
from engine.errors import UnsupportedError

VERSION: Final = "1.32.0"
"""The version of onnxruntime whose interface `engine.session` has; packages compare with it."""

_EXCEPTIONS: Final = {
    "EPFail": errors.PluginError,
    "EngineError": errors.EngineError,
    "Fail": errors.EngineError,
    "InvalidArgument": errors.InputError,
    "InvalidGraph": errors.ModelError,
    "InvalidProtobuf": errors.ModelReadError,
    "NoModel": errors.ModelReadError,
    "NoSuchFile": errors.ModelReadError,
    "NotImplemented": errors.UnsupportedError,
    "RuntimeException": errors.InferError,
}
"""The exceptions by onnxruntime's names, for code that catches them."""


def replace_onnxruntime() -> ModuleType:
    """Make `import onnxruntime` import this engine's sessions from now on, in this process; return the module.

    Its submodules for Python code, below `onnxruntime.capi`, also exist, with the names of exceptions. Raises
    `UnsupportedError` if onnxruntime was imported before: code that has its names would continue to use it.
    """
    session = sys.modules[__name__.rpartition(".")[0]]  # which has imported this module
    before = sys.modules.get("onnxruntime")
    if before is not None and not hasattr(before, "__engine__"):
        raise UnsupportedError("onnxruntime is imported already; call replace_onnxruntime before anything imports it")
    public = {name: getattr(session, name) for name in session.__all__ if name != "replace_onnxruntime"}
    top = _module("onnxruntime", {**public, "__version__": VERSION, "get_version_string": lambda: VERSION})
    capi = _module("onnxruntime.capi", {})
    top.capi = capi  # type: ignore[attr-defined]
    for name, names in (
        ("_pybind_state", {**public, **_EXCEPTIONS}),
        ("onnxruntime_pybind11_state", {**public, **_EXCEPTIONS}),
        ("onnxruntime_inference_collection", public),
    ):
        setattr(capi, name, _module(f"onnxruntime.capi.{name}", names))
    return top


def _module(name: str, names: dict[str, object]) -> ModuleType:
    module = ModuleType(name, "engine.session under onnxruntime's name.")
    # `importlib.util.find_spec`, by which packages see whether a module is there, raises for one without a spec.
    spec = ModuleSpec(name, None, origin=__file__, is_package=True)
    module.__dict__.update(names, __engine__=True, __path__=[], __package__=name, __spec__=spec)
    sys.modules[name] = module
    return module
