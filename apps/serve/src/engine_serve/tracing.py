"""Traces of OpenTelemetry: each request to a model has a span, and in it one for each of its parts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.errors import UnsupportedError
from engine_serve.request_queue import Times

_FLUSH_SECONDS: Final = 5.0
"""Kubernetes kills a process that takes longer than the grace period and a little more."""

_log = logging.getLogger("engine.serving")
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
            f'traces need packages that are not installed ({e}): pip install "engine-serve[tracing]"'
        ) from e
    # Shut down by `flush_traces`: at the exit of the interpreter, it would wait for a collector for half a minute.
    provider = TracerProvider(resource=Resource.create({"service.name": "engine"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _tracers[:], _providers[:] = [provider.get_tracer("engine.serving")], [provider]


def flush_traces() -> None:
    """Send the waiting spans at the end of the program. Spans that a collector does not accept within 5 seconds are
    lost.
    """
    for provider in _providers:
        ending = threading.Thread(target=provider.shutdown, name="engine-traces", daemon=True)
        ending.start()
        ending.join(_FLUSH_SECONDS)
        if ending.is_alive():
            _log.warning("the collector of traces did not answer within %g s; the last spans are lost", _FLUSH_SECONDS)


@contextlib.contextmanager
def request_span(
    model: str, version: str, device: str, headers: Mapping[str, str] | None, times: Times
) -> Iterator[None]:
    """The span of a request, whose parent is the current span, or otherwise the one in the client's headers.

    `times` are read at the end. Without `configure_tracing`, there is no span.
    """
    if not _tracers:
        yield
        return
    (tracer,) = _tracers
    attributes = {"model.name": model, "model.version": version, "device": device}
    with tracer.start_as_current_span("infer", context=_parent(headers), attributes=attributes):
        try:
            yield
        finally:
            _add_part(tracer, "queue", times.arrived, times.began)
            _add_part(tracer, "run", times.began, time.perf_counter())


@contextlib.contextmanager
def generation_span(
    model: str, version: str, device: str, headers: Mapping[str, str] | None, prompt_tokens: int, times: Sequence[float]
) -> Iterator[Any]:
    """The span of an answer of tokens, with one for the first token and one for the others; None without traces.

    Its parent is chosen as for `request_span`. It is not the current span, since an asynchronous generator may end in
    another context than it began in: see `in_span`. `times`, of the beginning and of each token, are read at the end.
    """
    if not _tracers:
        yield None
        return
    from opentelemetry import trace

    (tracer,) = _tracers
    attributes = {"model.name": model, "model.version": version, "device": device, "tokens.prompt": prompt_tokens}
    span = tracer.start_span("generate", context=_parent(headers), attributes=attributes)
    try:
        yield span
    except Exception as e:
        span.record_exception(e)
        span.set_status(trace.StatusCode.ERROR, f"{type(e).__name__}: {e}")
        raise
    finally:
        span.set_attribute("tokens.answer", len(times) - 1)
        context = trace.set_span_in_context(span)
        if len(times) > 1:
            _add_part(tracer, "first token", times[0], times[1], context)
        if len(times) > 2:
            _add_part(tracer, "further tokens", times[1], times[-1], context)
        span.end()


def in_span(span: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes the span of an answer of tokens the current one, for example for the log; without a span, it does nothing.

    It does not record errors that pass through it; `generation_span` does.
    """
    if span is None:
        return contextlib.nullcontext()
    from opentelemetry import trace

    manager: contextlib.AbstractContextManager[Any] = trace.use_span(
        span, record_exception=False, set_status_on_exception=False
    )
    return manager


def current_trace() -> str:
    """The identity of the current trace, for the log; empty if there is none."""
    if not _tracers:
        return ""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


def _parent(headers: Mapping[str, str] | None) -> Any:
    """The context of a span for a request: the current one, or otherwise the one in the client's headers."""
    from opentelemetry import propagate, trace

    has_span = trace.get_current_span().get_span_context().is_valid
    return None if has_span else propagate.extract(dict(headers or {}))


def _add_part(tracer: Any, name: str, begin: float, end: float, context: Any = None) -> None:
    """Add a span of a part that has ended, from times in seconds of `time.perf_counter`; none if it has not begun."""
    if not begin or not end:
        return
    offset = time.time() - time.perf_counter()
    tracer.start_span(name, context, start_time=int((begin + offset) * 1e9)).end(int((end + offset) * 1e9))
