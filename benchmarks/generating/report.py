"""Tables of the measurements of one model in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from comparison.report import markdown

from generating.worker import Resident
from generating.writer import Decoder

OURS = "engine"


@dataclass(slots=True)
class Times:
    """The measurements of one engine."""

    first: dict[int, list[float]] = field(default_factory=dict)
    """Seconds until the first token, by the length of the prompt."""
    each: dict[int, list[float]] = field(default_factory=dict)
    """Medians of the seconds of the tokens of each block, by the length of the prompt."""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    resident: Resident = field(default_factory=lambda: Resident(0, 0, 0))
    load: float = 0.0
    lowered: list[int] = field(default_factory=list)
    """How many plans were lowered, after each round; empty if the engine does not say."""


def speed_table(model: Decoder, form: str, contexts: Sequence[int], times: dict[str, Times], bandwidth: float) -> str:
    """Milliseconds of tokens and prompts; `bandwidth` in GB/s gives the time to read the weights once."""
    limit = model.read_bytes(form) / bandwidth / 1e6
    header = ["engine", *(f"ms a token at {c}" for c in contexts), "of the limit", "longest / shortest"]
    header += [*(f"first token after {c}, ms" for c in contexts), "load, s", "same tokens"]
    rows = []
    for engine, found in times.items():
        each = [1e3 * median(found.each[c]) for c in contexts]
        first = [f"{1e3 * median(found.first[c]):.0f}" for c in contexts]
        shares = ", ".join(f"{100 * limit / one:.0f}%" for one in each)
        growth = f"{each[-1] / each[0]:.2f}"
        agreement = _agreement(times, engine, contexts)
        rows.append([engine, *(f"{one:.2f}" for one in each), shares, growth, *first, f"{found.load:.1f}", agreement])
    rest = [""] * (len(contexts) + 4)
    rows.append([f"limit at {bandwidth:.1f} GB/s", *[f"{limit:.2f}"] * len(contexts), *rest])
    peers = {engine: found for engine, found in times.items() if engine != OURS}
    for peer, found in peers.items() if OURS in times else ():
        rows.append([f"{peer} / {OURS}", *_ratios([found], times[OURS], contexts)])
    if OURS in times and len(peers) > 1:
        rows.append([f"the fastest peer / {OURS}", *_ratios(list(peers.values()), times[OURS], contexts)])
    return markdown(header, rows)


def _ratios(peers: Sequence[Times], ours: Times, contexts: Sequence[int]) -> list[str]:
    each, first = (
        [f"{min(median(getattr(p, kind)[c]) for p in peers) / median(getattr(ours, kind)[c]):.2f}x" for c in contexts]
        for kind in ("each", "first")
    )
    return [*each, "", "", *first, "", ""]


def _agreement(times: dict[str, Times], engine: str, contexts: Sequence[int]) -> str:
    """How many of the first tokens equal the first engine's."""
    first = next(iter(times.values()))
    counts = []
    for context in contexts:
        pairs = list(zip(times[engine].tokens[context], first.tokens[context], strict=True))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        counts.append(f"{same}/{len(pairs)}")
    return " ".join(counts)


def differing(times: dict[str, Times]) -> list[str]:
    """The engines whose tokens differ from the first engine's."""
    first = next(iter(times.values()))
    return [engine for engine, found in times.items() if found.tokens != first.tokens]


def memory_table(weights: float, cache: float, times: dict[str, Times]) -> str:
    """Resident memory in MB beside the size of weights and caches, and the bound: 1.1 times that and 80 MB."""
    bound = 1.1 * (weights + cache) + 80
    rows = [
        [engine, *(f"{x:.0f}" for x in (each.now, each.anonymous, each.peak)), f"{each.now / bound:.2f}"]
        for engine, each in ((engine, found.resident) for engine, found in times.items())
    ]
    header = ["engine", "resident, MB", "without files", "at its peak", f"of {bound:.0f} MB"]
    return f"Weights {weights:.0f} MB, room for keys and values {cache:.0f} MB; bound {bound:.0f} MB.\n\n" + markdown(
        header, rows
    )


def lowering_line(counts: Sequence[int]) -> str:
    """Says how many plans were lowered; `counts` are the numbers after each round."""
    return f"Plans that {OURS} lowered: {counts[0]} in the first round, {counts[-1] - counts[0]} in those that count."
