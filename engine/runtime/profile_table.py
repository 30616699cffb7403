"""Profiles as text: the stages, and the nodes by their time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from engine.drawing.table import count, duration, printable, table
from engine.runtime.records import InferenceProfile
from engine.startup import dataclass

_WIDEST = 80
_OPERATOR = 14
_KERNEL = 18
_PART = 12
_EXECUTOR = 34
_STAGE = 20


@dataclass(slots=True)
class NodeTime:
    """The records of one node: how long it ran in all inferences together, on which kernels, and where.

    `nodes` are the nodes of a subgraph that ran as one; of a single node, it is empty.
    """

    name: str
    op_type: str
    nanoseconds: int = 0
    kernels: dict[str, None] = field(default_factory=dict)
    parts: dict[str, None] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """The kernels, or how it ran if the device names none."""
        return ", ".join(self.kernels)

    @property
    def part(self) -> str:
        """The names of the subgraphs that ran the node, separated by commas."""
        return ", ".join(self.parts)


def layers_of(profiles: Sequence[InferenceProfile]) -> list[NodeTime]:
    """The nodes of inferences of one network, the longest first, and subgraphs that ran as one.

    Records of subgraphs whose nodes have records of their own are left out.
    """
    found: dict[str, NodeTime] = {}
    for profile in profiles:
        for record in profile.nodes:
            if record.is_total:
                continue
            layer = found.setdefault(record.node_name, NodeTime(record.node_name, record.op_type, nodes=record.nodes))
            layer.nanoseconds += record.duration_ns
            layer.kernels[record.kernel or record.status] = None
            if record.part:
                layer.parts[record.part] = None
    return sorted(found.values(), key=lambda layer: -layer.nanoseconds)


def stages_of(profiles: Sequence[InferenceProfile]) -> dict[tuple[str, str], int]:
    """The nanoseconds of each stage, by name and executor, in the order in which they run, with waits between."""
    found: dict[tuple[str, str], int] = {}
    for profile in profiles:
        end = profile.begun_ns
        for stage in profile.stages:
            wait = ("(waiting)", stage.executor)
            if stage.executor != "inline":
                found[wait] = found.get(wait, 0) + max(0, stage.start_ns - end)
            key = (stage.name, stage.executor)
            found[key] = found.get(key, 0) + stage.end_ns - stage.start_ns
            end = stage.end_ns
    return found


def profile_table(profiles: Sequence[InferenceProfile], most: int | None = None) -> str:
    """The stages and the nodes of inferences of one network, times being means, as lines of at most 80 columns.

    At most `most` nodes are listed. Shares refer to the whole inference.
    """
    profiles = [profile for profile in profiles if profile.stages]
    if not profiles:
        return "no profile: the network was compiled without PERF_COUNT, or nothing has run"
    number = len(profiles)
    total = sum(profile.duration_ns for profile in profiles) or 1
    mean = duration(total / number / 1e9)
    lines = [f"one inference takes {mean}" if number == 1 else f"{number} inferences take {mean} each, in the mean"]

    def times(nanoseconds: int) -> tuple[str, str]:
        return duration(nanoseconds / number / 1e9), f"{100 * nanoseconds / total:.1f} %"

    rows = [
        (printable(name, _STAGE), printable(executor, _EXECUTOR), *times(nanoseconds))
        for (name, executor), nanoseconds in stages_of(profiles).items()
    ]
    lines += ["", *table(rows, ("STAGE", "EXECUTOR", "TIME", "SHARE"), right={2, 3})]
    layers = layers_of(profiles)
    shown = layers if most is None else layers[:most]
    if shown:
        lines += ["", *_node_table(shown, times)]
    if rest := layers[len(shown) :]:
        share = 100 * sum(layer.nanoseconds for layer in rest) / total
        lines.append(f"and {count(len(rest), 'more node')}, which take {share:.1f} %")
    return "\n".join(lines)


def _node_table(layers: Sequence[NodeTime], times: Callable[[int], tuple[str, str]]) -> list[str]:
    """The lines of a table; names get the columns that the others leave free."""
    has_parts = any(layer.part for layer in layers)
    others = [
        (
            printable(layer.op_type, _OPERATOR),
            printable(layer.how, _KERNEL),
            *([printable(layer.part, _PART)] if has_parts else []),
            *times(layer.nanoseconds),
        )
        for layer in layers
    ]
    header = ["OPERATOR", "KERNEL", *(["SUBGRAPH"] if has_parts else []), "TIME", "SHARE"]
    columns = len(header)
    room = _WIDEST - 2 - max(map(len, table(others, header, right={columns - 2, columns - 1})))
    rows = [(_end(layer.name, room), *other) for layer, other in zip(layers, others, strict=True)]
    return table(rows, ["NODE", *header], right={columns - 1, columns})


def _end(name: str, longest: int) -> str:
    """A name whose beginning is left out if it is too long: names in one group differ at their end."""
    name = printable(name)
    return name if len(name) <= longest else "..." + name[len(name) - longest + 3 :]
