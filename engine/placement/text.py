"""A placement report as text, as `engine query --why` prints it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from engine.drawing.table import byte_count, count, duration, printable, table
from engine.placement.report import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport

_MAX_SUBGRAPHS = 30
_MAX_CROSSINGS = 10
_MAX_NAMES = 3
_MAX_NUMBERS = 6
_MAX_NAME_CHARACTERS = 60


def placement_text(report: PlacementReport, model: str, *, is_complete: bool = False, hint: str = "") -> str:
    """Describe a placement: subgraphs, totals, transfers, refusals and findings.

    Args:
        model: the model's name.
        is_complete: list every subgraph, transfer and refused node, however many.
        hint: how to list all of them, printed after shortened lists.
    """
    cut = _Cut(is_complete, hint)
    sections = [
        _heading(report, model),
        _subgraphs(report, cut),
        _devices(report),
        _totals(report),
        _crossings(report, cut),
        _refusals(report, cut),
        _findings(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


class _Cut:
    """Shortens lists and states how many items are omitted."""

    def __init__(self, is_complete: bool, hint: str) -> None:
        self.is_complete = is_complete
        self._hint = f" ({hint})" if hint else ""

    def count(self, total: int, most: int) -> int:
        """How many of `total` are listed."""
        return total if self.is_complete else min(total, most)

    def rest(self, total: int, most: int, what: str) -> str:
        """A note of how many items are omitted; empty if none are."""
        left = total - self.count(total, most)
        return f"and {left} more {what}{self._hint}" if left else ""


def operator_summary(subgraph: PlacedSubgraph, most: int = 3) -> str:
    """The main operators of a subgraph: `Conv x5, Relu x4, 3 others`."""
    counts = Counter(map(printable, subgraph.op_types))
    shown = [f"{op} x{number}" if number > 1 else op for op, number in counts.most_common(most)]
    others = sum(counts.values()) - sum(number for _, number in counts.most_common(most))
    return ", ".join([*shown, f"{others} others"] if others else shown)


def transfer_size(crossings: Iterable[Crossing]) -> str:
    """The bytes of some transfers; `+ ?` if a length is known only during an inference."""
    crossings = list(crossings)
    known = byte_count(sum(crossing.byte_size or 0 for crossing in crossings))
    if all(crossing.byte_size is not None for crossing in crossings):
        return known
    return f"{known} + ?" if any(crossing.byte_size for crossing in crossings) else "?"


def _heading(report: PlacementReport, model: str) -> list[str]:
    cloned = f", and {len(report.cloned)} computed wherever needed" if report.cloned else ""
    sources = Counter(report.sources.values()).most_common()
    return [
        f"placement of `{printable(model)}` over {', '.join(report.devices)}: "
        f"{count(report.node_count, 'operation')} in {count(len(report.subgraphs), 'subgraph')}{cloned}",
        f"strategy {report.strategy}, mode {report.mode}, placement {report.placement}; "
        f"operations placed by {', '.join(f'{source}: {number}' for source, number in sources) or 'nobody'}",
    ]


def _subgraphs(report: PlacementReport, cut: _Cut) -> list[str]:
    incoming, outgoing = defaultdict[int, list[Crossing]](list), defaultdict[int, list[Crossing]](list)
    for crossing in report.crossings:
        incoming[crossing.target].append(crossing)
        outgoing[crossing.source].append(crossing)
    total = len(report.subgraphs)
    rows = [
        (
            subgraph.index,
            subgraph.device,
            len(subgraph.nodes),
            operator_summary(subgraph) or "-",
            transfer_size(incoming[subgraph.index]),
            transfer_size(outgoing[subgraph.index]),
            _time(subgraph.predicted_seconds),
            _time(subgraph.measured_seconds),
            _numbers(subgraph.depends_on, cut),
        )
        for subgraph in report.subgraphs[: cut.count(total, _MAX_SUBGRAPHS)]
    ]
    header = ("SUBGRAPH", "DEVICE", "NODES", "OPERATORS", "IN", "OUT", "PREDICTED", "MEASURED", "READS FROM")
    return _lines(table(rows, header, right=(4, 5, 6, 7)), cut.rest(total, _MAX_SUBGRAPHS, "subgraphs"))


def _numbers(numbers: Sequence[int], cut: _Cut) -> str:
    shown = ", ".join(map(str, numbers[: cut.count(len(numbers), _MAX_NUMBERS)])) or "-"
    return f"{shown}, ..." if len(numbers) > cut.count(len(numbers), _MAX_NUMBERS) else shown


def _devices(report: PlacementReport) -> list[str]:
    evaluated = {(refusal.node, refusal.device) for refusal in report.refusals if refusal.level == "reference"}
    rows = []
    for device in report.devices:
        mine = [subgraph for subgraph in report.subgraphs if subgraph.device == device]
        nodes = [name for subgraph in mine for name in subgraph.nodes]
        rows.append(
            (
                device,
                len(mine),
                len(nodes),
                sum((name, device) in evaluated for name in nodes),
                _sum(subgraph.predicted_seconds for subgraph in mine),
                _sum(subgraph.measured_seconds for subgraph in mine),
            )
        )
    return table(rows, ("DEVICE", "SUBGRAPHS", "NODES", "BY REFERENCE", "PREDICTED", "MEASURED"), right=(4, 5))


def _totals(report: PlacementReport) -> list[str]:
    subgraphs, bound = len(report.subgraphs), report.lower_bound
    fewest = "the minimum" if subgraphs == bound else f"no partition has fewer than {bound}"
    unknown = sum(crossing.byte_size is None for crossing in report.crossings)
    rest = f"; the lengths of {unknown} are known only during an inference" if unknown else ""
    transfers = _sum(crossing.predicted_seconds for crossing in report.crossings)
    rows = [
        ("subgraphs", f"{subgraphs}; lower bound {bound}: {fewest}"),
        ("bytes crossing", f"{byte_count(report.crossing_bytes)} in {count(len(report.crossings), 'transfer')}{rest}"),
        ("predicted time", _predicted(report)),
        ("of transfers", transfers if report.crossings else "none"),
        ("measured time", _measured(report)),
    ]
    return table(rows)


def _predicted(report: PlacementReport) -> str:
    compared = report.predicted_seconds
    times = [
        f"{mode} {duration(seconds)}{' (chosen)' if mode == report.mode and len(compared) > 1 else ''}"
        for mode, seconds in compared.items()
    ]
    parts = [subgraph.predicted_seconds for subgraph in report.subgraphs if subgraph.predicted_seconds is not None]
    if not times and not parts:
        return "none: the costs of these devices are unknown"
    guess = ", for comparison only" if report.costs == "default" else ""
    return f"{', '.join(times) or f'{duration(sum(parts))} for all subgraphs'}; from {report.costs} costs{guess}"


def _measured(report: PlacementReport) -> str:
    if report.measured_seconds is not None:
        return duration(report.measured_seconds)
    measured = [subgraph.measured_seconds for subgraph in report.subgraphs if subgraph.measured_seconds is not None]
    if measured:
        return f"{duration(sum(measured))} for the operations of {len(measured)} of {len(report.subgraphs)} subgraphs"
    if report.placement == "measured":
        return "none: these subgraphs were not measured"
    return "none: --config PLACEMENT=measured measures them"


def _crossings(report: PlacementReport, cut: _Cut) -> list[str]:
    device = {subgraph.index: subgraph.device for subgraph in report.subgraphs}
    # Unknown sizes may be large, so they come first.
    largest = sorted(report.crossings, key=lambda c: (c.byte_size is not None, -(c.byte_size or 0)))
    total = len(largest)
    rows = [
        (
            f"`{printable(crossing.value, _MAX_NAME_CHARACTERS)}`",
            f"{crossing.source} ({device[crossing.source]}) -> {crossing.target} ({device[crossing.target]})",
            transfer_size([crossing]),
            _time(crossing.predicted_seconds),
        )
        for crossing in largest[: cut.count(total, _MAX_CROSSINGS)]
    ]
    header = ("LARGEST TRANSFERS", "FROM -> TO", "BYTES", "PREDICTED")
    return _lines(table(rows, header, right=(2, 3)), cut.rest(total, _MAX_CROSSINGS, "transfers"))


def _refusals(report: PlacementReport, cut: _Cut) -> list[str]:
    groups = defaultdict[tuple[str, str, str, str], list[NodeRefusal]](list)
    for refusal in report.refusals:
        groups[refusal.device, refusal.level, refusal.op_type, refusal.cause].append(refusal)
    if not groups:
        return ["every operation runs natively, and no device listed earlier refused one"]
    where = {name: subgraph.device for subgraph in report.subgraphs for name in subgraph.nodes}
    order = {device: position for position, device in enumerate(report.devices)}
    lines = ["not native on a device listed earlier, or evaluated on the host, and why:"]
    for key in sorted(groups, key=lambda k: (order.get(k[0], len(order)), k[1] != "refused", -len(groups[k]), k)):
        lines += _refusal_group(groups[key], where, cut)
    return lines


def _refusal_group(group: Sequence[NodeRefusal], where: dict[str, str], cut: _Cut) -> Iterator[str]:
    first = group[0]
    verb = "refuses" if first.level == "refused" else "evaluates on the host"
    targets = ", ".join(dict.fromkeys(where.get(refusal.node, "every device that needs it") for refusal in group))
    cause = f" ({printable(first.cause)})" if first.cause else ""
    now = "" if targets == first.device else f", now on {targets}"
    yield f"  {first.device} {verb} {len(group)} {printable(first.op_type)}{cause}{now}"
    if cut.is_complete:
        yield from (f"    {_name(refusal)}: {printable(refusal.reason) or 'no reason given'}" for refusal in group)
        return
    names = ", ".join(map(_name, group[:_MAX_NAMES]))
    yield "    " + " ".join(_lines([names], cut.rest(len(group), _MAX_NAMES, "nodes")))
    reasons = [printable(reason) for reason in dict.fromkeys(refusal.reason for refusal in group) if reason]
    yield from ("    " + " ".join(_lines([reason], cut.rest(len(reasons), 1, "reasons"))) for reason in reasons[:1])


def _name(refusal: NodeRefusal) -> str:
    return f"`{printable(refusal.node)}`"


def _findings(report: PlacementReport) -> list[str]:
    if report.findings:
        return ["findings:", *(f"  {printable(finding)}" for finding in report.findings)]
    if not report.crossings:
        return ["no value crosses, so no transfer or split costs more than it gains"]
    if not report.predicted_seconds:
        return ["whether a transfer or a split costs more than it gains is unknown without predictions"]
    return ["no transfer or split is known to cost more than it gains"]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _sum(seconds: Iterable[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return duration(sum(known)) if known else "-"


def _lines(lines: list[str], last: str) -> list[str]:
    return [*lines, last] if last else lines
