"""The HTML report of a benchmark, from its JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.cli.benchmark.tables import Table, comparison_table, layer_table
from engine.drawing.charts import Interval, bar_chart, interval_chart, point_chart
from engine.drawing.html import plain_table
from engine.drawing.page import page, paragraph, section

_MANY = 60
"""The layers that the picture shows; the table has all."""


def benchmark_page(document: Mapping[str, Any]) -> str:
    """A complete document: figures, latencies over time, histogram, comparison, layers, and how to repeat it."""
    sections = [_summary(document), _latencies(document)]
    sections += [_comparison(document)] if document["compared"] else []
    sections += [_layers(document)] if document.get("layers") else []
    sections += [_inputs(document), _machine(document)]
    return page(f"Benchmark of {document['network']} on {document['label']}", sections)


def _summary(document: Mapping[str, Any]) -> str:
    latency = document["latency_ms"]
    in_flight = document["requests"]
    rows = [
        ("latency, median", f"{latency['median']:.3f} ms"),
        ("latency, 90th and 99th percentile", f"{latency['p90']:.3f} ms, {latency['p99']:.3f} ms"),
        ("latency, minimum and maximum", f"{latency['min']:.3f} ms, {latency['max']:.3f} ms"),
        ("throughput", f"{document['throughput_per_s']:.2f} inferences/s"),
        ("inferences", f"{document['inferences']} in {document['duration_s']:.2f} s"),
        ("in flight", str(in_flight) if in_flight else "one after the other"),
        ("read, compile or import", f"{document['read_s']:.3f} s, {document['compile_s']:.3f} s"),
        ("first inference", f"{document['first_inference_s']:.3f} s"),
    ]
    note = [paragraph("Interrupted: these are the results until then.", "bad")] if document["interrupted"] else []
    return section("Figures", *note, plain_table(("what", "measured"), rows, {1}))


def _latencies(document: Mapping[str, Any]) -> str:
    bars = [(f"{each['low']:.3f}..{each['high']:.3f} ms", float(each["count"])) for each in document["histogram"]]
    tail = "The last bar has everything beyond the 99th percentile." if len(bars) > 1 else ""
    return section(
        "Latencies",
        point_chart(document["latencies_over_time_ms"], unit="ms", below="in the order of the inferences"),
        bar_chart(bars, unit="times"),
        paragraph(f"{tail} Of neighbours that fall on one point above, the slowest is shown.".strip(), "faint"),
    )


def _comparison(document: Mapping[str, Any]) -> str:
    rows = [
        Interval(each["label"], found["ratio"], found["low"], found["high"], f"{found['ratio']:.2f}x {found['word']}")
        for each in document["compared"]
        for found in [each["comparison"]]
    ]
    return section(
        "Comparison",
        paragraph(f"Ratios to {document['label']}: above 1, it is faster. A line is the interval that has the true "
                  "ratio with a probability of 95 %; one that holds 1 is level."),
        interval_chart(rows),
        _html(comparison_table(document, None)),
        paragraph("OUTPUTS: the largest difference from the base's outputs, relative to their largest magnitude. An "
                  "earlier result did not alternate with this run: only 5 % and more count.", "faint"),
    )  # fmt: skip


def _layers(document: Mapping[str, Any]) -> str:
    layers, peak = document["layers"], document["peak_gflops"]
    known = "not measured" if peak is None else f"{peak:.0f} GFLOP/s, by a large matrix product on the same device"
    bars = [(each["name"], 100 * each["share"]) for each in layers[:_MANY]]
    more = f" The picture has the first {_MANY} of {len(layers)} layers." if len(layers) > _MANY else ""
    return section(
        "Layers",
        paragraph(f"In the order of execution, share of the time.{more} Peak: {known}."),
        bar_chart(bars, unit="%"),
        _html(layer_table(document, None, None)),
        paragraph("Operations count as in the direct algorithm, so a convolution by Winograd's may exceed the peak. "
                  "Profiling costs time itself, which short layers show.", "faint"),
    )  # fmt: skip


def _inputs(document: Mapping[str, Any]) -> str:
    rows = [(name, each["type"], each["source"]) for name, each in document["inputs"].items()]
    return section("Inputs", plain_table(("input", "type", "value"), rows))


def _machine(document: Mapping[str, Any]) -> str:
    machine = {
        key: json.dumps(value) if isinstance(value, list) else value for key, value in document["machine"].items()
    }
    settings = ", ".join(f"{key}={value}" for key, value in document["config"].items()) or "defaults"
    rows = [
        ("command", document["command"]),
        ("started", document["started"]),
        ("file", document["model"]["path"]),
        ("SHA-256 of the file", document["model"]["sha256"]),
        ("device", ", ".join(document["device"])),
        ("settings", settings),
        *((key.replace("_", " "), "not reported" if value is None else value) for key, value in machine.items()),
        *((f"{name}, version", version) for name, version in document["versions"].items()),
    ]
    return section("To repeat it", plain_table(("what", "value"), rows))


def _html(table: Table) -> str:
    return plain_table(table.header, table.rows, table.right)
