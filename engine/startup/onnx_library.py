"""The package `onnx`, without the modules that reading and compiling a model do not need.

`import onnx` loads about 130 modules: checkers, parsers, two text formats, `tarfile`, `argparse`. Compiling a model
needs two: the messages, which protobuf's compiler has generated, and the native module, which has the schemas of
operators and infers types. `onnx` of this module loads these two, and the whole package once anything else is asked of
it. If the package is there already, it is used.

The two modules have their real names in `sys.modules`, so that a later `import onnx` finds them: there is one class
`ModelProto` and one registry of schemas in the process.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from engine.startup.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    import onnx

__all__ = ["default_value", "function_body", "onnx"]

_PACKAGE: Final = "onnx"
_MESSAGES: Final = "onnx.onnx_ml_pb2"
_NATIVE: Final = "onnx.onnx_cpp2py_export"

_lock: Final = RLock()


def default_value(attribute: onnx.defs.OpSchema.Attribute) -> onnx.AttributeProto:
    """The default of an attribute in a schema; its type is UNDEFINED if there is none."""
    proto = onnx.AttributeProto()
    proto.ParseFromString(attribute._default_value)  # type: ignore[attr-defined]
    return proto


def function_body(schema: onnx.defs.OpSchema) -> onnx.FunctionProto:
    """The function that defines an operator."""
    proto = onnx.FunctionProto()
    proto.ParseFromString(schema._function_body)  # type: ignore[attr-defined]
    return proto


class _Part:
    """Looks each name up once; `find` raises AttributeError if the light modules do not have it."""

    def __init__(self, module: str, find: Callable[[str], Any]) -> None:
        self._module = module
        self._find = find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        with paused_collector():
            try:
                value = self._find(name)
            except AttributeError:
                value = _of_package(self._module, name)
        setattr(self, name, value)
        return value


def _of_package(package: str, name: str) -> Any:
    import_module(_PACKAGE)  # first: a module of a package that is being imported would not wait for it
    module = import_module(package)
    if not hasattr(module, name):
        with suppress(ModuleNotFoundError):
            return import_module(f"{package}.{name}")
    return getattr(module, name)


def _find(name: str) -> Any:
    parts = _parts()
    if parts is None or _PACKAGE in sys.modules:
        return _of_package(_PACKAGE, name)
    messages, native = parts
    if name in _FINDERS:
        return _Part(f"{_PACKAGE}.{name}", partial(_FINDERS[name], native))
    return getattr(messages, name)


def _definition(native: Any, name: str) -> Any:
    if name == "C":
        return native.defs
    if name == "onnx_opset_version":
        return lambda: native.defs.schema_version_map()[""][1]
    return getattr(native.defs, "has_schema" if name == "has" else name)


def _checker(native: Any, name: str) -> Any:
    if name != "ValidationError":
        raise AttributeError(name)
    return native.checker.ValidationError


def _inference(native: Any, name: str) -> Any:
    if name == "InferenceError":
        return native.shape_inference.InferenceError
    if name == "infer_shapes":
        return partial(_infer_shapes, native.shape_inference.infer_shapes)
    if name == "infer_node_outputs":
        return _infer_node_outputs
    raise AttributeError(name)


def _infer_shapes(native: Callable[..., bytes], model: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    inferred = onnx.ModelProto()
    inferred.ParseFromString(native(model.SerializeToString(), False, False, data_prop))
    return inferred


def _infer_node_outputs(
    schema: Any,
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
    *,
    opset_imports: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, onnx.TypeProto]:
    found = schema._infer_node_outputs(
        node.SerializeToString(),
        {name: value.SerializeToString() for name, value in types.items()},
        {name: value.SerializeToString() for name, value in data.items()},
        {},
        {each.domain: each.version for each in opset_imports},
        onnx.IR_VERSION,
    )
    return {name: onnx.TypeProto.FromString(value) for name, value in found.items()}


_FINDERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "checker": _checker,
    "defs": _definition,
    "shape_inference": _inference,
}


@cache
def _parts() -> tuple[Any, Any] | None:
    """The module of messages and the native module; None if they cannot be had without the package."""
    with _lock, suppress(ImportError):
        if _PACKAGE not in sys.modules and _NATIVE not in sys.modules:
            _load_parts()
    if _PACKAGE in sys.modules or _NATIVE not in sys.modules:
        return None
    return sys.modules[_MESSAGES], sys.modules[_NATIVE]


def _load_parts() -> None:
    """Load both modules, unless another thread has begun to import the package: it would load the native one again."""
    binder = _BindParts()
    sys.meta_path.insert(0, binder)
    try:
        folders = binder.folders()
        if folders is not None:
            _load(_MESSAGES, folders)
            if _PACKAGE not in sys.modules:
                _load(_NATIVE, folders)
    finally:
        if _NATIVE not in sys.modules or _PACKAGE in sys.modules:
            _remove_binders()
            if _PACKAGE not in sys.modules:
                sys.modules.pop(_MESSAGES, None)


def _load(name: str, folders: Sequence[str]) -> ModuleType:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return sys.modules.setdefault(name, module)


class _BindParts:
    """A finder and loader for a later import of the package: the parts become its attributes, as `import` does it.

    It is there before the parts are loaded, so that another thread's import of the package waits for them.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader = loader

    def folders(self) -> Sequence[str] | None:
        """The folders of the package, if it is installed as files."""
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(_PACKAGE)
        return None if spec is None else spec.submodule_search_locations

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != _PACKAGE:
            return None
        with _lock:
            others = [finder for finder in sys.meta_path if not isinstance(finder, _BindParts)]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _BindParts(spec.loader)  # type: ignore[assignment]
                return spec
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as `get_data`, without an import

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        for name in (_MESSAGES, _NATIVE):
            if name in sys.modules:
                setattr(module, name.rpartition(".")[2], sys.modules[name])
        _remove_binders()
        self._loader.exec_module(module)


def _remove_binders() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _BindParts)]


if not TYPE_CHECKING:
    onnx = _Part(_PACKAGE, _find)
