"""`SessionOptions` and `RunOptions`: which options have an effect here, which are ignored, and which are refused."""

from __future__ import annotations

import threading
import warnings
from dataclasses import field
from enum import IntEnum
from typing import Any, Final, Protocol

from engine.errors import Cancelled, EngineWarning, UnsupportedError
from engine.startup import dataclass


class GraphOptimizationLevel(IntEnum):
    """How much a graph is optimized. This engine always optimizes; results differ by rounding at most."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether independent nodes run at once. Here the device decides."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order of independent nodes. Here the device decides."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


# Entries about memory, threads, files and the choice of kernels, which change results by rounding at most.
_WITHOUT_EFFECT: Final = (
    "optimization.", "session.debug_layout_transformation", "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback", "session.disable_double_qdq_remover", "session.disable_prepacking",
    "session.disable_quant_qdq", "session.dynamic_block_base", "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop", "session.inter_op", "session.intra_op", "session.load_model_format",
    "session.qdqisint8allowed", "session.qdq_matmulnbits", "session.save_model_format", "session.use_device_allocator",
    "session.use_env_allocators", "session.use_memory_mapped", "session.use_ort_model_bytes",
    "session.x64quantprecision",
)  # fmt: skip


@dataclass(slots=True)
class SessionOptions:
    """The options of a session. Setting one that onnxruntime does not have is an `AttributeError`.

    These have an effect here: `intra_op_num_threads` (0: the device chooses), `enable_profiling` with
    `profile_file_prefix`, `use_deterministic_compute` (kernels are not chosen by measurement), and the overrides of
    free dimensions by name. `optimized_model_filepath` is refused. All others change neither results nor errors here,
    and are kept as set.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    config_entries: dict[str, str] = field(default_factory=dict, repr=False)
    free_dimensions: dict[str, int] = field(default_factory=dict, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an entry. An `EngineWarning` names one that has no meaning here and could change results."""
        if not key.startswith(_WITHOUT_EFFECT):
            text = f"the session config entry {key}={value} has no meaning for this engine"
            warnings.warn(EngineWarning(text), stacklevel=2)
        self.config_entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """The value of an entry. Raises `KeyError` if it was not set."""
        return self.config_entries[key]

    def add_free_dimension_override_by_name(self, name: str, length: int) -> None:
        """Fix the length that inputs call `name`."""
        self.free_dimensions[name] = length

    def add_free_dimension_override_by_denotation(self, denotation: str, length: int) -> None:
        """Raises `UnsupportedError`: name the dimension, or use `Model.reshape`."""
        raise _unsupported("denotations of dimensions", "add_free_dimension_override_by_name, or Model.reshape")

    def add_initializer(self, name: str, value: object) -> None:
        """Raises `UnsupportedError`: pass the weights to `Core.read_model`."""
        raise _unsupported("initializers from outside the model", "Core.read_model(model, weights=FILE)")

    def add_external_initializers(self, names: object, values: object) -> None:
        """Raises `UnsupportedError`: pass the weights to `Core.read_model`."""
        raise _unsupported("initializers from outside the model", "Core.read_model(model, weights=FILE)")

    def register_custom_ops_library(self, path: str) -> None:
        """Raises `UnsupportedError`: use `Core.add_extension` (docs/extensions.md)."""
        raise _unsupported("libraries for onnxruntime's custom operators", "Core.add_extension (docs/extensions.md)")

    def check(self) -> None:
        """Raise `UnsupportedError` if an option that is set cannot be honoured."""
        if self.optimized_model_filepath:
            raise _unsupported("optimized_model_filepath", "ExecutableNetwork.export_model, which writes a blob")


def _unsupported(what: str, way_out: str) -> UnsupportedError:
    return UnsupportedError(f"engine.session does not support {what}; use {way_out}")


class Cancellable(Protocol):
    """An inference that runs and can be stopped, such as an `AsyncInferRequest`."""

    def cancel(self) -> Any:
        """End the inference; its caller gets an error."""


class RunOptions:
    """The options of a run: `terminate = True`, set by another thread, ends the runs that have these options.

    `only_execute_path_to_fetches` and what concerns the log have no effect here.
    """

    __slots__ = (
        "_config_entries", "_lock", "_running", "_terminate", "log_severity_level", "log_verbosity_level", "logid",
        "only_execute_path_to_fetches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self._config_entries: dict[str, str] = {}
        self._terminate = False
        self._running: set[Cancellable] = set()
        self._lock = threading.Lock()

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end with `Cancelled`."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        with self._lock:
            self._terminate = bool(value)
            running = list(self._running) if value else []
        for each in running:
            each.cancel()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set an entry, which has no effect here: they concern memory and devices of onnxruntime."""
        self._config_entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The value of an entry. Raises `KeyError` if it was not set."""
        return self._config_entries[key]

    def require_not_terminated(self) -> None:
        """Raise `Cancelled` if `terminate` is set."""
        if self._terminate:
            raise Cancelled("the run was not started: terminate is set in its RunOptions; set it to False first")

    def watch(self, run: Cancellable) -> None:
        """Cancel a run, which has begun, when `terminate` is set, or now if it is set already."""
        with self._lock:
            self._running.add(run)
            is_late = self._terminate
        if is_late:
            run.cancel()

    def unwatch(self, run: Cancellable) -> None:
        """Forget a run that has ended."""
        with self._lock:
            self._running.discard(run)
