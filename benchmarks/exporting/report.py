"""The table of a sweep, in Markdown, written between two marks of a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from comparison.report import first_cells, geometric_mean, markdown

from exporting.check import Checked
from exporting.recipe import Recipe

BEGIN, END = "<!-- sweep -->", "<!-- end of sweep -->"


def page_with(page: str, found: Sequence[Checked], recipes: Mapping[str, Recipe]) -> str:
    """`page` with the tables of `found` between the marks.

    Raises `ValueError` if it has none, or has networks that are not among `found`.
    """
    head, _, rest = page.partition(BEGIN)
    before, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    checked = {each.name.split(".")[0] for each in found}
    if lost := [name for name in first_cells(before) if name in recipes and name not in checked]:
        raise ValueError(f"the page has rows of {', '.join(lost)}, which were not checked; check all networks first")
    return f"{head}{BEGIN}\n\n{tables(found, recipes)}\n\n{END}{tail}"


def tables(found: Sequence[Checked], recipes: Mapping[str, Recipe]) -> str:
    """A table for each family, the operators that are not native, and the figures of all."""
    parts = [summary(found)]
    by_network: dict[str, list[Checked]] = {}
    for each in found:
        by_network.setdefault(each.name.split(".")[0], []).append(each)
    families = dict.fromkeys(recipe.family for recipe in recipes.values())
    header = ["network", "exported by", "results", "nodes not native", "to the faster peer"]
    for family in families:
        rows = [_row(name, by_network[name]) for name, recipe in recipes.items()
                if recipe.family == family and name in by_network]  # fmt: skip
        if rows:
            parts.append(f"### {family[0].upper()}{family[1:]}\n\n{markdown(header, rows)}")
    parts.append(f"### Nodes that are not native\n\n{operators_table(found)}")
    return "\n\n".join(parts)


def summary(found: Sequence[Checked]) -> str:
    """One paragraph of counts."""
    right = [each for each in found if not each.problem]
    native = [each for each in right if not each.others]
    ratios = [ratio for each in right if (ratio := ratio_of(each)) is not None]
    mean = geometric_mean(ratios)
    text = (f"{len(found)} files of {len({each.name.split('.')[0] for each in found})} networks: {len(right)} right, "
            f"{sum(bool(each.lengths) for each in right)} of them also at other lengths, {len(native)} with all nodes "
            "native.")  # fmt: skip
    return text if mean is None else f"{text} Geometric mean of the ratios to the faster peer: {mean:.2f}x."


def ratio_of(checked: Checked) -> float | None:
    """The time of the faster peer divided by ours: above 1, this engine is faster."""
    peers = [time for name, time in checked.milliseconds.items() if name != "engine"]
    ours = checked.milliseconds.get("engine")
    return min(peers) / ours if ours and peers else None


def operators_table(found: Sequence[Checked]) -> str:
    """The operators of nodes that are not native, with their number, the number of files, and a reason."""
    counts: Counter[str] = Counter()
    files: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for each in found:
        for operator in {operator for operator, _ in each.others}:
            files[operator] += 1
        for (operator, reason), count in each.others.items():
            counts[operator] += count
            reasons.setdefault(operator, reason)
    rows = [[operator, str(count), str(files[operator]), reasons[operator].replace("|", "/")[:140]]
            for operator, count in counts.most_common()]  # fmt: skip
    return markdown(["operator", "nodes", "files", "a reason"], rows)


def _row(name: str, found: Sequence[Checked]) -> list[str]:
    exporters = ", ".join(each.name.split(".", 1)[1].replace(".", " ") for each in found)
    results = "; ".join(dict.fromkeys(_result(each) for each in found))
    others = Counter[str]()
    for each in found:
        others.update({operator: count for (operator, _), count in each.others.items()})
    nodes = sum(each.nodes for each in found)
    listed = ", ".join(f"{count} {operator}" for operator, count in others.most_common())
    ratios = ", ".join("-" if (ratio := ratio_of(each)) is None else f"{ratio:.2f}x" for each in found)
    return [name, exporters, results, f"{listed} of {nodes}" if listed else f"none of {nodes}", ratios]


def _result(checked: Checked) -> str:
    if checked.problem:
        return checked.problem.replace("|", "/")[:160]
    return "right, also at other lengths" if checked.lengths else "right"


def write_json(path: Path, found: Sequence[Checked]) -> None:
    """Every figure."""
    entries = [{**asdict(each), "others": [[*key, count] for key, count in each.others.items()]} for each in found]
    path.write_text(json.dumps(entries, indent=1) + "\n")


def read_json(path: Path) -> list[Checked]:
    """The findings that `write_json` wrote; empty if the file does not exist."""
    if not path.exists():
        return []
    entries = json.loads(path.read_text())
    return [
        Checked(**{
            **each,
            "others": Counter({(operator, reason): count for operator, reason, count in each["others"]}),
            "scales": {int(index): value for index, value in each["scales"].items()},
        })
        for each in entries
    ]  # fmt: skip
