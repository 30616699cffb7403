"""The package onnxruntime as it is installed: its providers, sessions, and errors in one line."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from engine.plugin_api import Config, DeviceError, DeviceNotFoundError, Model, UnsupportedError
from engine.startup import dataclass
from engine_onnxruntime.properties import PRECISION, PROVIDER_OPTIONS, SESSION_OPTIONS

Adjust: TypeAlias = Callable[[Any], object]
"""Changes the runtime's options of a session."""

_SUFFIX: Final = "ExecutionProvider"
_CPU: Final = "CPU"
_REMOTE: Final = frozenset({"AzureExecutionProvider"})
"""Providers that call a service instead of computing."""
_TF32: Final = {"CUDA": "use_tf32"}
"""Options of providers that would compute f32 in less by default."""
_SILENT: Final = 4
_CHECKED_PRODUCTS: Final = "session.x64quantprecision"  # otherwise, u8 by i8 products saturate on CPUs without VNNI
_PROVIDER_ONLY: Final = "session.disable_cpu_ep_fallback"
_FILE_BYTES: Final = 64 << 20
"""Models with more weights than this are handed over in files, which the runtime maps."""
_CODE: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ")


def load_runtime() -> Any:
    """The module onnxruntime. Raises `DeviceNotFoundError` that says how to install it."""
    try:
        module = importlib.import_module("onnxruntime")
        _ = module.InferenceSession, module.get_available_providers
    except (ImportError, AttributeError) as e:  # of a distribution whose files another one removed, folders are left
        raise DeviceNotFoundError(
            f"the runtime onnxruntime cannot be imported ({e}); install it: pip install onnxruntime, or "
            "onnxruntime-gpu for CUDA; never both, since they overwrite each other's files: uninstall both first"
        ) from e
    return module


def providers() -> dict[str, str]:
    """The execution providers of the installed package, by device id; CPU, which always works, is the first."""
    names = [name for name in load_runtime().get_available_providers() if name not in _REMOTE]
    found = {name.removesuffix(_SUFFIX).upper(): name for name in names}
    return {device_id: found[device_id] for device_id in sorted(found, key=lambda each: each != _CPU)}


@dataclass(frozen=True, slots=True)
class Session:
    """A model that the runtime has loaded, with the names of its inputs and outputs in order. Thread-safe."""

    handle: Any
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """How sessions are made.

    Attributes:
        streams: how many inferences run at once, each in a thread of the engine.
        threads: on how many threads one of them computes. They share those of the session, so that all together use no
            more than INFERENCE_NUM_THREADS.
        provider_options, session_options: in the runtime's own terms.
    """

    device_id: str
    streams: int
    threads: int
    provider_options: Mapping[str, str]
    session_options: Mapping[str, str]

    @classmethod
    def of(cls, config: Config, device_id: str) -> SessionPlan:
        """The plan of a configuration; options that the user states take precedence."""
        cores = config["INFERENCE_NUM_THREADS"] or _usable_cores()
        streams = config["NUM_STREAMS"] or (cores if config["PERFORMANCE_HINT"] == "THROUGHPUT" else 1)
        own, entries = (_texts(config[each.name]) for each in (PROVIDER_OPTIONS, SESSION_OPTIONS))
        is_exact = config[PRECISION.name] == "f32"
        if not is_exact and device_id not in _TF32:
            raise UnsupportedError(f"ONNXRUNTIME.{device_id} has no tf32; set {PRECISION.name} to f32")
        options = {**({_TF32[device_id]: "0" if is_exact else "1"} if device_id in _TF32 else {}), **own}
        return cls(device_id, streams, max(1, cores - streams + 1), options, {_CHECKED_PRODUCTS: "1", **entries})

    def open(self, model: Model, adjust: Adjust | None = None, *, is_alone: bool = False) -> Session:
        """A session of a model, as `load` makes it."""
        from engine.lowering import constants_of, hand_over  # imported here, since listing devices needs neither

        weights = sum(constant.byte_size for constant in constants_of(model))
        with hand_over(model, as_file=weights > _FILE_BYTES) as given:
            return Session(self.load(given.source, adjust, is_alone=is_alone), given.inputs, given.outputs)

    def for_query(self, options: Any) -> None:
        """Adjust options to a question: no optimizations, and no other threads."""
        options.intra_op_num_threads = 1
        options.graph_optimization_level = load_runtime().GraphOptimizationLevel.ORT_DISABLE_ALL

    def load(self, source: bytes | str, adjust: Adjust | None = None, *, is_alone: bool = False) -> Any:
        """The runtime's session of an ONNX model, as bytes or by its path; `adjust` changes its options before.

        With `is_alone`, the provider must run every node, so that none falls back to the CPU.

        Raises `UnsupportedError` with the runtime's words, `DeviceError` if the provider cannot be used.
        """
        runtime, provider = load_runtime(), providers()[self.device_id]
        options = runtime.SessionOptions()
        options.log_severity_level = _SILENT  # errors are exceptions, too
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        chain = [(provider, dict(self.provider_options))]
        try:
            for key, value in self.session_options.items():
                options.add_session_config_entry(key, value)
            if adjust is not None:
                adjust(options)
            if self.device_id != _CPU and is_alone:
                options.add_session_config_entry(_PROVIDER_ONLY, "1")
            elif self.device_id != _CPU:  # for lengths, and what a provider leaves out
                chain.append((f"{_CPU}{_SUFFIX}", {}))
            handle = runtime.InferenceSession(source, options, providers=chain)
        except Exception as e:  # the classes of the runtime have no common base
            raise UnsupportedError(f"onnxruntime {runtime.__version__}: {said(e)}") from e
        if provider not in handle.get_providers():  # it goes on with others, and prints a warning
            raise DeviceError(
                f"onnxruntime {runtime.__version__} cannot start {provider} on this machine: its device or its "
                "libraries are missing; install them, or use ONNXRUNTIME.CPU"
            )
        return handle


def said(error: BaseException) -> str:
    """The runtime's message in one line, without its own numbers and paths of its sources."""
    text = _CODE.sub("", " ".join(str(error).split()))
    return re.sub(r"/\S*/onnxruntime/(\S+:\d+)", r"\1", text)[:600] or type(error).__name__


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in values.items()}
