"""Puts the JSON object of a benchmark together: figures, circumstances, layers, earlier results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from engine.cli.benchmark.document import (
    SCHEMA,
    compare_with_earlier,
    describe_file,
    describe_inputs,
    describe_layer,
    describe_series,
)
from engine.cli.benchmark.layers import measure_layers, measure_peak
from engine.cli.benchmark.machine import clocks, describe_machine, describe_versions
from engine.cli.benchmark.schedule import Series
from engine.cli.benchmark.subject import Subject


def describe_circumstances(
    subject: Subject,
    inputs: Mapping[str, Any],
    sources: Mapping[str, str],
    *,
    command: str,
    seed: int,
    cores: Sequence[int],
    warm_up: int,
) -> dict[str, Any]:
    """The circumstances needed to repeat a measurement, as they are before it; `sources` are the files of inputs."""
    return {
        "schema": SCHEMA,
        "label": subject.label,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "seed": seed,
        "cores": list(cores),
        "warm_up": warm_up,
        "model": describe_file(subject.file),
        "inputs": describe_inputs(inputs, sources),
        "machine": describe_machine(),
        "versions": describe_versions(),
    }


def complete_document(
    set_up: Mapping[str, Any],
    series: Series,
    circumstances: Mapping[str, Any],
    subject: Subject,
    inputs: Mapping[str, Any],
    *,
    earlier: Sequence[str],
    with_layers: bool,
) -> dict[str, Any]:
    """The JSON object of a measured subject, compared with the results in the files `earlier`.

    With layers, the subject is profiled, unless the measurement was interrupted. Raises `InputError`.
    """
    document = {**set_up, **describe_series(series), **circumstances}
    document |= {"clocks_after_mhz": clocks(), "layers": None, "peak_gflops": None}
    document["compared"] = [compare_with_earlier(path, document) for path in earlier]
    if with_layers and not series.is_interrupted:
        peaks = [measure_peak(subject)]
        layers = measure_layers(subject, inputs)
        peaks.append(measure_peak(subject))  # other processes may have slowed one down
        peak = max((each for each in peaks if each is not None), default=None)
        document |= {"peak_gflops": peak, "layers": [describe_layer(layer, peak) for layer in layers]}
    return document
