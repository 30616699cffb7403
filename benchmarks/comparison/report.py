"""The tables of a comparison, in Markdown, and the JSON file with every figure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.measure import OURS, OURS_IN_F32, EngineResult, ModelResult

_KINDS = 4
"""The types of operators that a row of a sweep names."""


def ratio_to_peers(result: ModelResult, figure: Callable[[EngineResult], float | None]) -> float | None:
    """The best peer's figure divided by ours, where less is better: above 1, this engine is better."""
    ours = figure(result.engines[OURS]) if OURS in result.engines else None
    peers = [
        value
        for name, r in result.engines.items()
        if name not in (OURS, OURS_IN_F32) and (value := figure(r)) is not None
    ]
    return min(peers) / ours if ours and peers else None


def ratios_of_rounds(result: ModelResult) -> list[float]:
    """The ratio to the faster peer in each round; empty without a right result of this engine and of a peer."""
    measured = {name: each for name, each in result.engines.items() if each.rounds and each.agrees is not False}
    ours = measured.pop(OURS, None)
    measured.pop(OURS_IN_F32, None)
    if ours is None or not measured:
        return []
    peer = min(measured.values(), key=lambda each: statistics.median(each.rounds))
    return [theirs / own for theirs, own in zip(peer.rounds, ours.rounds, strict=True)]


def ratio_to_f32(result: ModelResult) -> float | None:
    """The time of this engine on the f32 model divided by that on the model compared; None if either is unknown."""
    ours, f32 = (_time(result.engines[name]) if name in result.engines else None for name in (OURS, OURS_IN_F32))
    return f32 / ours if ours and f32 else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean; None for an empty list."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def speed_table(results: Sequence[ModelResult], precision: str, peak: Mapping[str, float], streams: int) -> str:
    """Latency or throughput of each engine, the ratio to the faster peer, and the share of the peak."""
    engines = list(results[0].engines) if results else []
    unit = "inferences/s" if streams else "ms"
    header = ["model", *(f"{engine} ({unit})" for engine in engines), "to the faster peer", "share of peak"]
    header += ["to our f32"] if OURS_IN_F32 in engines else []
    rows, ratios = [], []
    for result in results:
        ratio = ratio_to_peers(result, _time)
        ratios += [ratio] if ratio is not None else []
        cells = [_number((r.rate if streams else r.milliseconds), r.problem) for r in result.engines.values()]
        share = _share(result, peak.get(precision))
        rows.append([result.name, *cells, _times(ratio), "-" if share is None else f"{share:.0%}"])
        rows[-1] += [_times(ratio_to_f32(result))] if OURS_IN_F32 in engines else []
    rows.append(["geometric mean", *("" for _ in engines), _times(geometric_mean(ratios)), ""])
    rows[-1] += [""] if OURS_IN_F32 in engines else []
    return markdown(header, rows)


def _time(result: EngineResult) -> float | None:
    """Milliseconds for each inference, by latency or by throughput; None if the result is wrong."""
    if result.agrees is False:
        return None
    return result.milliseconds if result.rate is None else 1e3 / result.rate


def _share(result: ModelResult, peak: float | None) -> float | None:
    ours = _time(result.engines[OURS]) if OURS in result.engines else None
    return result.operations / (ours * 1e6) / peak if ours and peak else None


def cost_table(results: Sequence[ModelResult]) -> str:
    """Seconds to load and to import, and peak memory."""
    engines = list(results[0].engines) if results else []
    header = [
        "model",
        *(f"{engine} load (s)" for engine in engines),
        *(f"{engine} import (s)" for engine in engines),
        *(f"{engine} peak (MB)" for engine in engines),
    ]
    rows = []
    for result in results:
        found = result.engines.values()
        loads = [_number(r.load_seconds, r.problem) for r in found]
        imports = [_number(r.import_seconds) for r in found]
        rows.append([result.name, *loads, *imports, *("-" if r.peak_megabytes is None else f"{r.peak_megabytes:.0f}"
                                                      for r in found)])  # fmt: skip
    return markdown(header, rows)


def losers_table(results: Sequence[ModelResult]) -> str:
    """The models by their ratio to the faster peer, the slowest first, and the operators that take our time."""
    ratios = [(ratio, result) for result in results if (ratio := ratio_to_peers(result, _time)) is not None]
    rows = []
    for ratio, result in sorted(ratios, key=lambda pair: pair[0]):
        kinds = result.engines[OURS].kinds
        total = sum(kinds.values()) or 1.0
        largest = sorted(kinds.items(), key=lambda item: -item[1])[:_KINDS]
        rows.append([result.name, _times(ratio), ", ".join(f"{kind} {time / total:.0%}" for kind, time in largest)])
    return markdown(["model", "to the faster peer", "our time by operator"], rows)


def problems(results: Sequence[ModelResult]) -> list[str]:
    """The engines that failed or deviate, with the reason."""
    return [f"{r.name}: {e.problem}" for r in results for e in r.engines.values() if e.problem]


def write_json(path: Path, about: Mapping[str, Any], results: Sequence[ModelResult]) -> None:
    """Write every figure, with the machine and the settings."""
    document = {**about, "models": [result.as_json() for result in results]}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _number(value: float | None, problem: str = "") -> str:
    if value is None:
        return "(fails)" if problem else "-"
    digits = 3 if value < 1 else 2 if value < 10 else 1
    return f"{value:.{digits}f}" + (" (wrong)" if problem else "")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [_line(header, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return "\n".join(lines + [_line(row, widths) for row in rows])


def first_cells(text: str) -> list[str]:
    """The first cells of the rows of Markdown tables, with the cells of their headers."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [row.strip("|").partition(" |")[0].strip() for row in rows]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
