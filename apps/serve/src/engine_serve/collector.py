"""Metrics that are computed when Prometheus requests them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_serve.generative_model import GenerativeModel
from engine_serve.repository import Repository

_MODEL: Final = ("model", "version")


class ServerCollector(Collector):  # type: ignore[misc]
    """Computes the metrics of queues, readiness, batches, schedulers and devices when Prometheus requests them."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        REGISTRY.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return nothing: without this method, the registry would collect once to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all models, as they are at this moment."""
        waiting = GaugeMetricFamily("engine_queue_length", "Requests that wait.", labels=_MODEL)
        held = GaugeMetricFamily("engine_queue_bytes", "Bytes of the inputs of requests that wait.", labels=_MODEL)
        running = GaugeMetricFamily("engine_running_inferences", "Inferences that run.", labels=_MODEL)
        ready = GaugeMetricFamily("engine_model_ready", "1 if a version can be used, else 0.", labels=_MODEL)
        batches = HistogramMetricFamily("engine_batch_size", "The number of requests in each batch.", labels=_MODEL)
        sequences = GaugeMetricFamily("engine_sequences", "Sequences that have begun.", labels=_MODEL)
        lowered = CounterMetricFamily(
            "engine_lowered_plans", "Plans that the device made for shapes since the model was loaded.", labels=_MODEL
        )
        memory = GaugeMetricFamily("engine_model_bytes", "Bytes that a model takes.", labels=_MODEL)
        kept = GaugeMetricFamily("engine_sequence_bytes", "Bytes of the variables of sequences.", labels=_MODEL)
        for name, version, state in self._repository.states():
            labels = (name, version)
            ready.add_metric(labels, float(state.problem is None))
            if state.model is None:
                continue
            waiting.add_metric(labels, state.model.queue.waiting)
            held.add_metric(labels, state.model.queue.waiting_bytes)
            running.add_metric(labels, state.model.queue.running)
            if state.model.sequences is not None:
                sequences.add_metric(labels, state.model.sequences.count)
                kept.add_metric(labels, state.model.sequences.nbytes)
            memory.add_metric(labels, state.model.memory_bytes)
            if (plans := state.model.lowered_plans()) is not None:
                lowered.add_metric(labels, plans)
            if (sizes := state.model.batch_sizes()) is not None:
                batches.add_metric(labels, *_buckets(sizes))
        yield from (waiting, held, running, ready, batches, sequences, kept, lowered, memory)
        yield from self._of_language_models()
        busy = CounterMetricFamily("engine_device_busy_seconds", "Seconds with an inference.", labels=("device",))
        for device, seconds in self._repository.clock.seconds().items():
            busy.add_metric((device,), seconds)
        yield busy

    def _of_language_models(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily("engine_slots", "Sequences that can be computed together.", labels=_MODEL)
        used = GaugeMetricFamily("engine_used_slots", "Sequences that get tokens.", labels=_MODEL)
        prompts = GaugeMetricFamily(
            "engine_waiting_prompts", "Sequences whose prompts are not computed.", labels=_MODEL
        )
        groups = GaugeMetricFamily("engine_sequence_groups", "Groups of sequences computed together.", labels=_MODEL)
        cache = GaugeMetricFamily("engine_cache_bytes", "Bytes of keys and values of sequences.", labels=_MODEL)
        prefixes = GaugeMetricFamily(
            "engine_prefix_cache_bytes", "Bytes of keys and values that are kept for later prompts.", labels=_MODEL
        )
        proposed = CounterMetricFamily("engine_proposed_tokens", "Tokens that were proposed.", labels=_MODEL)
        accepted = CounterMetricFamily("engine_accepted_tokens", "Of these, tokens that were chosen.", labels=_MODEL)
        for name, version, state in self._repository.states():
            if not isinstance(state.model, GenerativeModel):
                continue
            labels, found = (name, version), state.model.scheduled
            slots.add_metric(labels, state.model.slots)
            used.add_metric(labels, found.running)
            prompts.add_metric(labels, found.waiting)
            groups.add_metric(labels, found.groups)
            cache.add_metric(labels, found.state_bytes)
            prefixes.add_metric(labels, found.prefix_bytes)
            proposed.add_metric(labels, found.proposed_tokens)
            accepted.add_metric(labels, found.accepted_tokens)
        yield from (slots, used, prompts, groups, cache, prefixes, proposed, accepted)


def _buckets(sizes: dict[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts of batches, by powers of two, and the sum of their sizes."""
    bounds = [1]
    while bounds[-1] < max(sizes, default=1):
        bounds.append(2 * bounds[-1])
    counts = [(str(float(bound)), float(sum(n for size, n in sizes.items() if size <= bound))) for bound in bounds]
    counts.append(("+Inf", float(sum(sizes.values()))))
    return counts, float(sum(size * n for size, n in sizes.items()))
