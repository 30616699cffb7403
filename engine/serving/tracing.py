"""Traces of OpenTelemetry: each request to a model has a span, and in it one for the queue and one for its run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from engine.errors import UnsupportedError
from engine.serving.request_queue import Times

_tracers: list[Any] = []
"""The tracer, once `configure_tracing` was called."""
_providers: list[Any] = []


def configure_tracing() -> None:
    """Send traces over OTLP, to where the variables of OpenTelemetry say (OTEL_EXPORTER_OTLP_ENDPOINT and others).

    Raises `UnsupportedError` if the packages of the extra `tracing` are not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise UnsupportedError(
            f'traces need packages that are not installed ({e}): pip install "engine-sdk[serve,tracing]"'
        ) from e
    provider = TracerProvider(resource=Resource.create({"service.name": "engine"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _tracers[:], _providers[:] = [provider.get_tracer("engine.serving")], [provider]


def flush_traces() -> None:
    """Send the spans that wait; else the end of the interpreter does."""
    for provider in _providers:
        provider.shutdown()


@contextlib.contextmanager
def request_span(
    model: str, version: str, device: str, headers: Mapping[str, str] | None, times: Times
) -> Iterator[None]:
    """The span of a request, whose parent is the current span, or else the one in the client's headers.

    `times` are read at the end. Without `configure_tracing`, there is no span.
    """
    if not _tracers:
        yield
        return
    from opentelemetry import propagate, trace

    (tracer,) = _tracers
    parent = None if trace.get_current_span().get_span_context().is_valid else propagate.extract(dict(headers or {}))
    attributes = {"model.name": model, "model.version": version, "device": device}
    with tracer.start_as_current_span("infer", context=parent, attributes=attributes):
        try:
            yield
        finally:
            _add_part(tracer, "queue", times.arrived, times.began)
            _add_part(tracer, "run", times.began, time.perf_counter())


def current_trace() -> str:
    """The identity of the current trace, for the log; empty if there is none."""
    if not _tracers:
        return ""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


def _add_part(tracer: Any, name: str, begin: float, end: float) -> None:
    """A span of what has happened, in seconds of `time.perf_counter`; none if it has not begun."""
    if not begin or not end:
        return
    offset = time.time() - time.perf_counter()
    tracer.start_span(name, start_time=int((begin + offset) * 1e9)).end(int((end + offset) * 1e9))
