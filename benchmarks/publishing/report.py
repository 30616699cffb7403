"""The page of published models: a table of packages, of models, and of packages' own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from comparison.report import geometric_mean, markdown

from publishing.check import Checked, OnDevice
from publishing.own_code import Compared
from publishing.packages import Package

MODELS: Final = ("<!-- models -->", "<!-- end of models -->")
CODE: Final = ("<!-- own code -->", "<!-- end of own code -->")
OURS: Final = "engine"


def page_with_models(page: str, found: Sequence[Checked], packages: Sequence[Package]) -> str:
    """`page` with the tables of `found` between their marks."""
    parts = [summary(found), "### Packages", packages_table(packages), "### Results", results_table(found, packages)]
    if divided := parts_table(found):
        parts += ["### Subgraphs of HETERO", divided]
    if any(each.figures for each in found):
        parts += ["### Times and memory", *figures_tables(found)]
    if evaluated := evaluated_table(found):
        parts += ["### Nodes on the reference evaluator", evaluated]
    return between(page, MODELS, "\n\n".join(parts))


def page_with_code(page: str, found: Sequence[Compared]) -> str:
    """`page` with the table of packages' own code between its marks."""
    rows = [[each.name, each.calls, each.result.replace("|", "/")] for each in found]
    return between(page, CODE, markdown(["package", "what is called", "result"], rows))


def between(page: str, marks: tuple[str, str], text: str) -> str:
    """`page` with `text` between two marks. Raises `ValueError` if it does not have them."""
    head, begin, rest = page.partition(marks[0])
    _, end, tail = rest.partition(marks[1])
    if not end:
        raise ValueError(f"the page has no lines {marks[0]} and {marks[1]}")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def summary(found: Sequence[Checked]) -> str:
    """One paragraph of counts."""
    devices = list(dict.fromkeys(device for each in found for device in each.devices))
    counts = []
    for device in devices:
        problems = [each.devices[device].problem for each in found if device in each.devices]
        refused = sum(problem.startswith("UnsupportedError") for problem in problems)
        wrong = f" ({refused} refused)" if refused else ""
        counts.append(f"{device} {problems.count('')} of {len(problems)}{wrong}")
    stateful = sum(any(device.steps for device in each.devices.values()) for each in found)
    native = sum(not each.evaluated for each in found if each.nodes)
    lengths = sum(each.two_lengths for each in found)
    text = (f"{len(found)} models. Right: {', '.join(counts)}; {lengths} at two lengths, {stateful} over 20 steps of "
            f"state. On CPU, {native} run by kernels only.")  # fmt: skip
    ratios = [ratio for each in found if (ratio := ratio_of(each, "milliseconds")) is not None]
    mean = geometric_mean(ratios)
    return text if mean is None else f"{text} Geometric mean of the speed beside the faster peer: {mean:.2f}x."


def packages_table(packages: Sequence[Package]) -> str:
    """The fetched packages."""
    rows = [[each.name, each.version, each.registry, each.what] for each in packages]
    return markdown(["package", "version", "from", "models"], rows)


def results_table(found: Sequence[Checked], packages: Sequence[Package]) -> str:
    """A row for each model, or for models of one package with equal findings."""
    groups: dict[tuple[str, ...], list[Checked]] = {}
    for each in found:
        package = each.name.split("/")[0]
        results = "; ".join(f"{device}: {text}" for device, text in _by_result(each))
        lengths = "two" if each.two_lengths else "one"
        steps = max((device.steps for device in each.devices.values()), default=0)
        groups.setdefault((package, lengths, str(steps or ""), results), []).append(each)
    order = {package.folder: index for index, package in enumerate(packages)}
    rows = [
        [package, _names(group), lengths, steps, _nodes(group), results.replace("|", "/")]
        for (package, lengths, steps, results), group in sorted(groups.items(), key=lambda item: order[item[0][0]])
    ]
    return markdown(["package", "models", "lengths", "steps", "kernels", "results"], rows)


def _by_result(each: Checked) -> list[tuple[str, str]]:
    texts: dict[str, list[str]] = {}
    for device, found in each.devices.items():
        texts.setdefault(result_text(found), []).append(device)
    return [(", ".join(devices), text) for text, devices in texts.items()]


def result_text(found: OnDevice) -> str:
    """The page's text about one device."""
    if found.problem:
        return found.problem[:200]
    blob = f", but a blob has {found.blob}" if found.blob else ""
    return f"right{f' ({found.judged_by} decides)' if found.judged_by else ''}{blob}"


def _names(group: Sequence[Checked]) -> str:
    names = [each.name.rpartition("/")[2].removesuffix(".onnx") for each in group]
    return ", ".join(names) if len(names) <= 6 else f"{names[0]} to {names[-1]} ({len(names)})"


def _nodes(group: Sequence[Checked]) -> str:
    nodes = sum(each.nodes for each in group)
    return f"{nodes - sum(sum(each.evaluated.values()) for each in group)} of {nodes}" if nodes else ""


def ratio_of(each: Checked, figure: str) -> float | None:
    """The better peer's figure divided by ours: above 1, this engine is better."""
    peers = [figures[figure] for name, figures in each.figures.items() if name != OURS]
    ours = each.figures.get(OURS, {}).get(figure)
    return min(peers) / ours if ours and peers else None


def parts_table(found: Sequence[Checked]) -> str:
    """The subgraphs by device, as `2 OPENCL, 1 CPU`, of models that HETERO divides; empty if there are none."""
    groups: dict[tuple[str, str, str], list[Checked]] = {}
    for each in found:
        for device, result in each.devices.items():
            if result.parts:
                listed = ", ".join(f"{count} {name}" for name, count in result.parts.items())
                groups.setdefault((each.name.split("/")[0], device, listed), []).append(each)
    rows = [[package, _names(group), device, parts] for (package, device, parts), group in groups.items()]
    return markdown(["package", "models", "device", "subgraphs"], rows) if rows else ""


def figures_tables(found: Sequence[Checked]) -> list[str]:
    """For each machine, its name and the figures that were measured there."""
    machines: dict[str, list[Checked]] = {}
    for each in found:
        if OURS in each.figures:
            machines.setdefault(each.measured_on, []).append(each)
    return [part for machine, measured in machines.items() for part in (f"On {machine}:", figures_table(measured))]


def figures_table(found: Sequence[Checked]) -> str:
    """Ours, and the better peer's as a ratio."""
    rows = []
    for each in found:
        ours = each.figures[OURS]
        cells = [f"{ours['milliseconds']:.2f}", f"{ours['first']:.2f}", f"{ours['megabytes']:.0f}"]
        ratios = [ratio_of(each, figure) for figure in ("milliseconds", "first", "megabytes")]
        shown = [cell if ratio is None else f"{cell} ({ratio:.2f}x)" for cell, ratio in zip(cells, ratios, strict=True)]
        package, _, rest = each.name.partition("/")
        rows.append([package, rest.rpartition("/")[2].removesuffix(".onnx"), f"{each.megabytes:.1f}", *shown])
    return markdown(["package", "model", "file, MB", "inference, ms", "first result, s", "memory, MB"], rows)


def evaluated_table(found: Sequence[Checked]) -> str:
    """The nodes that are not native on CPU; empty if there are none."""
    rows = [
        [each.name.split("/")[0], each.name.rpartition("/")[2].removesuffix(".onnx"), str(count), operator]
        for each in found
        for operator, count in each.evaluated.items()
    ]
    return markdown(["package", "model", "nodes", "operator"], rows) if rows else ""
