"""The extension module `_core`, or its substitute if it cannot be loaded."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

from engine.errors import (
    Busy,
    Cancelled,
    DeviceError,
    ExtensionError,
    GraphError,
    InputError,
    NativeCoreError,
    OutOfMemoryError,
    PartitionError,
    PlanError,
    PropertyError,
)

_NAME: Final = "engine._core"


class _MissingCore:
    """The substitute for an extension that cannot be imported: using it raises."""

    def __init__(self, reason: ImportError) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        if str(self._reason).startswith(f"{_NAME}: "):  # the extension was found, and says itself what to do
            raise NativeCoreError(str(self._reason)) from self._reason
        raise NativeCoreError(f"the native core cannot be loaded ({self._reason}); {_remedy()}")


def _remedy() -> str:
    """How to get the missing extension."""
    from importlib import metadata  # for this message alone: it takes 15 ms

    here = Path(__file__).resolve().parent.parent
    for installed in metadata.distributions(name="engine-sdk"):
        elsewhere = Path(str(installed.locate_file("engine"))).resolve()
        is_compiled = any((elsewhere / f"_core{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
        if elsewhere != here and is_compiled:
            return (
                f"Python imports engine from {here}, where it is not compiled, instead of the installed {elsewhere}: "
                f"start Python outside {here.parent}, or compile engine there: pip install -e {here.parent}"
            )
    return "it is compiled when engine-sdk is installed: install it again with a C++17 compiler (g++) on PATH"


try:
    import engine._core as _core
except ImportError as error:
    _core = _MissingCore(error)  # type: ignore[assignment]
else:
    _core.set_error_types(
        plan=PlanError,
        setting=PropertyError,
        input=InputError,
        busy=Busy,
        cancelled=Cancelled,
        memory=OutOfMemoryError,
        device=DeviceError,
        extension=ExtensionError,
    )
    if hasattr(_core, "graph"):  # builds that only run plans have none
        _core.graph.set_error_types(graph=GraphError, partition=PartitionError)

__all__ = ["_core"]
