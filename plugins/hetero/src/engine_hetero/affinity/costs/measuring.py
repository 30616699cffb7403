"""Measures the costs of nodes, subgraphs and transfers on the devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import EngineError
from engine.plugin_api import CoreHandle
from engine.startup import dataclass
from engine_hetero.affinity.costs.calibration import (
    Figure,
    signature_of,
)
from engine_hetero.affinity.costs.cost_model import Floats
from engine_hetero.affinity.costs.probes import Deadline, Timing, border_probe, nodes_probe, run_probe
from engine_hetero.query.claims import REFUSED, Claims
from engine_hetero.query.model_graph import Ints, ModelGraph

logger = logging.getLogger("engine.hetero")

SUBGRAPH: Final = "@subgraph"
"""The entry for starting a subgraph with one input and one output."""
VALUE: Final = "@value"
"""The entry for each further input or output of a subgraph."""
BYTE: Final = "@byte"
"""The entry for moving one byte to or from a device, without computing."""

_SMALL: Final = 64
_LARGE: Final = 1 << 20
_MANY: Final = 8
_FASTEST: Final = 1e-11
"""Seconds per byte below which no data is moved: smaller values are measurement error."""
_ALL_REPORTED: Final = 0.8
"""If the reported nodes account for this share of an inference, other nodes are assumed to run as parts of them."""


@dataclass(frozen=True)
class Subject:
    """A device and the part of a model that it claims.

    `weights` are the default seconds of each node, used to divide a time among several nodes.
    """

    core: CoreHandle
    name: str
    config: Mapping[str, Any]
    graph: ModelGraph
    device: int
    claims: Claims
    weights: Floats

    @property
    def claimed(self) -> Ints:
        """The numbers of the nodes that the device runs."""
        return np.flatnonzero(self.claims.levels[self.device] != REFUSED)


def measure(subject: Subject, known: Mapping[str, Figure], deadline: Deadline) -> dict[str, Figure]:
    """Measure times missing in `known`: starts and transfers, and all nodes that the device claims, by signature.

    The claimed nodes are compiled as one model, whose profile gives the median time of each over several inferences; a
    time reported for several nodes is divided among them. Nodes that are not reported are compiled and timed one by
    one, the most expensive first.
    """
    found: dict[str, Figure] = {}
    if not {SUBGRAPH, VALUE, BYTE} <= known.keys():
        found |= _border_figures(subject, deadline)
    signatures = {int(number): signature_of(subject.graph.nodes[number]) for number in subject.claimed}
    if all(signature in known for signature in signatures.values()):
        return found
    start = found.get(SUBGRAPH, known.get(SUBGRAPH, Figure(0.0, 1))).seconds
    seconds = _profiled(subject, start, deadline)
    missing = [n for n in signatures if n not in seconds and signatures[n] not in known]
    seconds |= _timed_alone(subject, missing, signatures, start, deadline)
    for number, each in seconds.items():
        signature = signatures[number]
        if signature not in known:
            figure = Figure(each, 1)
            found[signature] = found[signature].merged(figure) if signature in found else figure
    return found


def _border_figures(subject: Subject, deadline: Deadline) -> dict[str, Figure]:
    """Times from three models with almost no computation: one small value, many small ones, one large one."""
    outside = []
    for values, length in ((1, _SMALL), (_MANY, _SMALL), (1, _LARGE)):
        timing = run_probe(subject.core, border_probe(values, length), subject.name, subject.config, deadline)
        if timing is None:
            return {}
        outside.append(max(0.0, timing.seconds - sum(timing.nodes.values())))
    one, many, large = outside
    per_byte = max(0.0, large - one) / (2 * 4 * (_LARGE - _SMALL))
    return {
        SUBGRAPH: Figure(one, 1),
        VALUE: Figure(max(0.0, many - one) / (2 * (_MANY - 1)), 1),
        BYTE: Figure(per_byte if per_byte > _FASTEST else 0.0, 1),
    }


def _profiled(subject: Subject, start: float, deadline: Deadline) -> dict[int, float]:
    """The seconds of nodes, from the profile of all claimed nodes as one model; empty if that does not run."""
    claimed = subject.claimed
    if not len(claimed) or deadline.has_passed():
        return {}
    probe = nodes_probe([subject.graph.nodes[number] for number in claimed], subject.graph.floating)
    try:
        timing = run_probe(subject.core, probe, subject.name, subject.config, deadline)
    except EngineError as e:
        logger.warning("%s: the nodes that the device claims do not run as one model: %s", subject.name, e)
        return {}
    return {} if timing is None else attributed(subject, timing, start)


def attributed(subject: Subject, timing: Timing, start: float) -> dict[int, float]:
    """Divide reported times among the nodes that they cover.

    These are the members of an atom. If the device reports nodes of its own, they cover the model's nodes that are not
    reported; if the reported nodes account for the inference, the others count as parts of their consumers.
    """
    numbers = {name: number for number, name in enumerate(subject.graph.names)}
    reported = {numbers[name]: seconds for name, seconds in timing.nodes.items() if name in numbers}
    known = numbers.keys() | {node.friendly_name for node in subject.graph.floating}
    own = sum(seconds for name, seconds in timing.nodes.items() if name not in known)
    leader = {number: number for number in reported}
    for atom in subject.claims.atoms[subject.device]:
        if members := [int(number) for number in atom if int(number) in reported]:
            leader |= dict.fromkeys(map(int, atom), members[0])
    if own > 0:
        leader |= {int(number): _OWN for number in subject.claimed if int(number) not in leader}
    elif reported and sum(reported.values()) >= _ALL_REPORTED * (timing.seconds - start):
        _follow(subject, leader)
    totals = {_OWN: own}
    shares: dict[int, float] = {}
    for number, seconds in reported.items():
        totals[leader[number]] = totals.get(leader[number], 0.0) + seconds
    for number, first in leader.items():
        shares[first] = shares.get(first, 0.0) + float(subject.weights[number])
    return {n: totals[first] * float(subject.weights[n]) / shares[first] for n, first in leader.items()}


_OWN: Final = -1
"""The leader of nodes that run as nodes created by the device."""


def _follow(subject: Subject, leader: dict[int, int]) -> None:
    """Assign nodes without a leader to the leader of their first consumer, or otherwise of their producers."""
    claimed = set(subject.claimed.tolist())
    edges = [(a, b) for a, b in subject.graph.edges.tolist() if a in claimed and b in claimed]
    for producer, consumer in sorted(edges, key=lambda edge: (-edge[0], edge[1])):
        if producer not in leader and consumer in leader:
            leader[producer] = leader[consumer]
    for producer, consumer in sorted(edges, key=lambda edge: edge[1]):
        if consumer not in leader and producer in leader:
            leader[consumer] = leader[producer]


def _timed_alone(
    subject: Subject, numbers: Sequence[int], signatures: Mapping[int, str], start: float, deadline: Deadline
) -> dict[int, float]:
    """The seconds of nodes compiled one by one, equal ones once, without the time for starting them."""
    by_signature: dict[str, float | None] = {}
    for number in sorted(numbers, key=lambda n: -subject.weights[n]):
        if deadline.has_passed():
            logger.info("%s: MEASURE_SECONDS has passed; default times are used for the remaining nodes", subject.name)
            break
        if signatures[number] not in by_signature:
            by_signature[signatures[number]] = _alone(subject, number, start, deadline)
    found = ((number, by_signature.get(signatures[number])) for number in numbers)
    return {number: seconds for number, seconds in found if seconds is not None}


def _alone(subject: Subject, number: int, start: float, deadline: Deadline) -> float | None:
    node = subject.graph.nodes[number]
    try:
        timing = run_probe(
            subject.core, nodes_probe([node], subject.graph.floating), subject.name, subject.config, deadline
        )
    except EngineError as e:
        logger.info("%s: %s cannot be measured separately: %s", subject.name, node, e)
        return None
    if timing is None:
        return None
    return sum(timing.nodes.values()) if timing.nodes else max(0.0, timing.seconds - start)
