"""The JSON object of a benchmark: its results, and all that is needed to repeat it; and reading an earlier one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from engine.cli.benchmark.layers import Layer
from engine.cli.benchmark.machine import SAME
from engine.cli.benchmark.schedule import Compared, Series
from engine.cli.benchmark.statistics import PERCENTILES, Verdict, histogram, judge_apart
from engine.errors import InputError
from engine.files import why_not_opened

SCHEMA: Final = 1
"""The version of the object's structure; raised when a key changes its meaning. New keys do not raise it."""
_POINTS: Final = 600
_MIN_MS, _MAX_MS = 1e-9, 1e12
"""The range in which times of blocks must be, since a file may have any number, and infinity."""


def describe_series(series: Series) -> dict[str, Any]:
    """Latencies and throughput of one subject: percentiles, a histogram, blocks, and points over time for a plot."""
    found = series.all
    milliseconds = found.latencies_ns / 1e6
    return {
        "requests": found.requests,
        "inferences": found.count,
        "duration_s": found.seconds,
        "latency_ms": {name: found.latency(percent) for name, percent in PERCENTILES.items()},
        "throughput_per_s": found.throughput,
        "interrupted": series.is_interrupted,
        "blocks_ms": series.block_milliseconds,
        "histogram": [asdict(each) for each in histogram(milliseconds)],
        "latencies_over_time_ms": _thinned(milliseconds.tolist()),
    }


def _thinned(values: Sequence[float]) -> list[float]:
    """At most `_POINTS` values: of each group of neighbours the largest, so that no outlier is lost."""
    size = -(-len(values) // _POINTS)
    return [max(values[start : start + size]) for start in range(0, len(values), size)] if size else []


def describe_inputs(inputs: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """For each input its type and shape, and where its value comes from: a file, or random values."""
    return {name: {"type": type_text(value), "source": files.get(name, "random")} for name, value in inputs.items()}


def type_text(value: Any) -> str:
    """The element type and shape of an array; the kind of another value."""
    return (
        f"{value.dtype}[{','.join(map(str, value.shape))}]" if isinstance(value, np.ndarray) else type(value).__name__
    )


def describe_file(path: str) -> dict[str, Any]:
    """Identifies a model's or blob's file; weights in files of their own are not included."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return {"path": os.path.abspath(path), "bytes": os.path.getsize(path), "sha256": digest.hexdigest()}


def describe_layer(layer: Layer, peak: float | None) -> dict[str, Any]:
    """A layer, with its rate and its share of the peak."""
    rate = layer.gflops
    return {**asdict(layer), "gflops": rate, "peak_share": rate / peak if rate and peak else None}


def describe_compared(each: Compared) -> dict[str, Any]:
    """One subject of a comparison, with its ratio to the base."""
    return {
        "label": each.subject.label,
        "file": each.subject.file,
        **{key: value for key, value in each.about.items() if key not in ("inputs", "requests")},
        **describe_series(each.series),
        "peak_bytes": each.peak_bytes,
        "output_difference": each.difference,
        "comparison": describe_verdict(each.verdict, is_alternating=True),
    }


def describe_verdict(verdict: Verdict | None, *, is_alternating: bool) -> dict[str, Any] | None:
    """The verdict as values for JSON, with how the subjects were run; None stays None."""
    return None if verdict is None else {**asdict(verdict), "alternating": is_alternating}


def compare_with_earlier(path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a result with the one in the file `path`; an entry as `describe_compared` makes them.

    Raises `InputError` as `read_earlier` and `require_comparable` do.
    """
    earlier = read_earlier(path)
    require_comparable(path, earlier, document)
    verdict = judge_apart(document["blocks_ms"], earlier["blocks_ms"])
    kept = ("file", "device", "config", "latency_ms", "throughput_per_s", "blocks_ms", "versions", "started")
    return {
        "label": f"{path} ({earlier['started'][:10]})",
        **{key: earlier.get(key) for key in kept},
        "output_difference": None,
        "comparison": describe_verdict(verdict, is_alternating=False),
    }


def require_comparable(path: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `InputError` if the two were measured on other machines, with inputs of other types or other requests.

    `now` needs only the keys "machine", "inputs" and "requests", so that this is checked before anything is measured.
    """
    for key in SAME:
        was, here = earlier["machine"].get(key), now["machine"][key]
        if was != here:
            raise InputError(
                f"{path} was measured on another machine ({key} {was}; here {here}); times compare only on one "
                "machine: measure again here"
            )
    types, own = (_types(each["inputs"]) for each in (earlier, now))
    if types != own:
        raise InputError(
            f"{path} was measured with the inputs {types}; this run has {own}; use the same --shape or files"
        )
    if earlier["requests"] != now["requests"]:
        raise InputError(
            f"{path} was measured with {earlier['requests']} requests in flight; this run has {now['requests']}; "
            f"use -n {earlier['requests']}"
        )


def read_earlier(path: str) -> dict[str, Any]:
    """Read the object that an earlier benchmark has written. Raises `InputError`."""
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError) as e:
        why = why_not_opened(path, e)
        raise InputError(f"{path}: it cannot be read as a result of `engine benchmark --json`: {why}") from e
    if not isinstance(found, dict) or not isinstance(found.get("schema"), int):
        raise InputError(f"{path}: it is not a result of `engine benchmark --json`")
    if found["schema"] != SCHEMA:
        raise InputError(f"{path}: it has version {found['schema']} of the results' structure; expected {SCHEMA}")
    blocks = found.get("blocks_ms")
    is_whole = (
        isinstance(found.get("machine"), dict)
        and isinstance(found.get("inputs"), dict)
        and all(isinstance(each, dict) for each in found["inputs"].values())
        and isinstance(found.get("started"), str)
        and isinstance(found.get("requests"), int)
        and isinstance(blocks, list)
        and bool(blocks)
        and all(isinstance(each, (int, float)) and _MIN_MS < each < _MAX_MS for each in blocks)
    )
    if not is_whole:
        raise InputError(f"{path}: the result is damaged or incomplete")
    return found


def _types(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {each.get('type')}" for name, each in inputs.items()) or "none"
