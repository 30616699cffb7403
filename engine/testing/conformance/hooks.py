"""`HookWatch`: which hook of a plugin is running, readable after the process has died in it."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engine.errors import PluginContractError
from engine.plugin_api import ExecutableNetwork, Plugin, RemoteContext, RemoteTensor, SyncInferRequest

HOOKS: Final[dict[type, tuple[str, ...]]] = {
    Plugin: (
        "__init__", "compile_model", "query_model", "import_network", "create_context", "compile_in_context",
        "import_in_context", "device_ids", "metric", "host_features", "check_blob",
    ),
    ExecutableNetwork: (
        "create_infer_request_impl", "pipeline", "export_sections", "requirements", "preferences", "metric", "memory",
        "forecast_memory", "release_caches", "parts", "node_counts", "can_share", "begin_sharing", "prepare",
    ),
    SyncInferRequest: (
        "infer_preprocess", "start_pipeline", "wait_pipeline", "infer_postprocess", "abort_pipeline", "request_cancel",
        "bind_again", "clear_tensors",
    ),
    RemoteContext: ("create_tensor_impl", "wrap_impl", "close_impl"),
    RemoteTensor: ("read", "write", "copy_on_device", "host_view", "shares_memory", "release"),
}  # fmt: skip
"""The methods that a plugin implements, by the class that it subclasses."""


class HookWatch:
    """Writes the name of the hook that was called last, of those running, to a file; ends children of hooks that fork.

    Classes that are defined after `install` are watched: the plugin's classes, which are imported later.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._forks = 0
        self._lock = threading.RLock()  # a hook may run while garbage is collected
        self._running: dict[object, str] = {}
        os.register_at_fork(before=self._count_fork)

    def install(self) -> None:
        """Watch the hooks of classes that are defined from now on, outside the engine."""
        for base, names in HOOKS.items():
            self._watch_subclasses(base, names)

    def _watch_subclasses(self, base: type, names: tuple[str, ...]) -> None:
        def init_subclass(cls: type, /, **options: Any) -> None:
            super(base, cls).__init_subclass__(**options)  # type: ignore[arg-type]
            if not cls.__module__.startswith("engine."):
                for name in names:
                    function = cls.__dict__.get(name)
                    if callable(function):
                        setattr(cls, name, self._watched(function, f"{base.__name__}.{name}"))

        base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]

    def _watched(self, function: Callable[..., Any], hook: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            process, forks, call = os.getpid(), self._forks, object()
            with self._lock:
                self._running[call] = hook
                self._write()
            try:
                result = function(*arguments, **options)
            finally:
                if os.getpid() != process:
                    os._exit(0)  # a child would continue the checks of its parent
                with self._lock:
                    del self._running[call]
                    self._write()
            if self._forks != forks:
                raise PluginContractError(f"{hook} forked the process; start programs with subprocess instead")
            return result

        return run

    def _count_fork(self) -> None:
        self._forks += 1

    def _write(self) -> None:
        hook = next(reversed(self._running.values()), "")
        os.pwrite(self._file, hook.ljust(_WIDTH).encode(), 0)


_WIDTH: Final = 64
